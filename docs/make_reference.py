"""Write docs/reference.md, every option there is, from the parsers and dataclasses that define them.

python docs/make_reference.py        after a change to an option; a test compares the file with what this gives
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Iterable, Iterator, List, Tuple

from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import TASK_REGISTRY

from fairseq_tg.cli import get_parser
from fairseq_tg.criterions.cross_entropy import ActorCrossEntropyConfig
from fairseq_tg.criterions.policy_gradient import ActorPolicyGradientConfig
from fairseq_tg.criterions.preference import ActorPreferenceConfig
from fairseq_tg.criterions.risk import ActorRiskConfig
from fairseq_tg.criterions.trie import ActorTrieConfig
from fairseq_tg.models.config import ActorConfig
from fairseq_tg.models.families import FAMILIES
from fairseq_tg.models.record import FAMILY_PREFIX
from fairseq_tg.tasks.layer import TGTask, TGTaskOptions
from fairseq_tg.tasks.marks import TG

REFERENCE = Path(__file__).with_name("reference.md")
INTRODUCTION = """# Reference: all options

Made by `python docs/make_reference.py` from the parsers and dataclasses themselves: change those, not this page.
`--help` of every command says the same.

The options of model, task and criterion work in fairseq's commands as written here, and in `fairseq-hydra-train`
as `model.actor_rank=16`, `task.kbest_dir=pseudo-bin`, `criterion.label_smoothing=0.1`.
"""
OTHER_CRITERIA = {
    "actor_risk": ActorRiskConfig,
    "actor_trie": ActorTrieConfig,
    "actor_preference": ActorPreferenceConfig,
    "actor_policy_gradient": ActorPolicyGradientConfig,
}
Row = Tuple[str, str]


def table(rows: List[Row]) -> str:
    lines = ["| option | meaning |", "|---|---|"]
    return "\n".join(lines + [f"| `{name}` | {text} |".replace("\n", " ") for name, text in rows]) + "\n"


def with_default(text: str, default: Any) -> str:
    """A help text and its default, unless it says that itself, or is off or empty without."""
    if default is None or default is False or default in ("", [], argparse.SUPPRESS) or "default" in text:
        return text
    shown = " ".join(map(str, default)) if isinstance(default, list) else default
    return f"{text} (default: {shown})".strip()


def escape(text: str) -> str:
    return text.replace("|", "\\|")


def option_rows(config: type) -> List[Row]:
    """The fields of a fairseq dataclass as options."""
    made: FairseqDataclass = config()
    rows = []
    for name in made._get_all_attributes():
        if name.startswith("_"):
            continue
        default = made._get_default(name)
        if isinstance(default, str) and default.startswith("${"):
            continue  # taken from an option of another group, which is fairseq's own
        value = "" if isinstance(default, bool) else f" {name.rpartition('_')[2].upper()}"
        text = escape(with_default(made._get_help(name) or "", default))
        rows.append((f"--{name.replace('_', '-')}{value}", text))
    return rows


def commands(parser: argparse.ArgumentParser, about: str = "") -> Iterator[Tuple[str, str, argparse.ArgumentParser]]:
    """Every command that does something, with its help."""
    deeper = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not deeper:
        yield parser.prog, about, parser
    for action in deeper:
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, command in action.choices.items():
            yield from commands(command, helps.get(name, ""))


def argument_rows(parser: argparse.ArgumentParser) -> List[Row]:
    formatter = argparse.HelpFormatter(parser.prog)
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        text = formatter._expand_help(action) if action.help else ""
        both = isinstance(action, argparse.BooleanOptionalAction)  # --this and --no-this
        name = ", ".join(action.option_strings if both else action.option_strings[-1:])
        value = "" if action.nargs == 0 else formatter._format_args(action, value_name(action))
        if action.required and action.option_strings:
            text = f"{text}; required" if text else "required"
        rows.append((escape(f"{name} {value}".strip()), escape(with_default(text, action.default))))
    return rows


def value_name(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def choices(option: str, names: Iterable[str]) -> str:
    first, *others = sorted(names)
    return ", ".join(f"`{name}`" for name in (f"{option} {first}", *others))


def reference() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "## Commands\n"]
    for name, about, parser in commands(get_parser()):
        about = about if about.startswith("fairseq") else about[:1].upper() + about[1:]
        description = " ".join(filter(None, [f"{about}.", parser.description]))
        parts += [f"### {name}\n", f"{description}\n", table(argument_rows(parser))]
    parts += [f"## Models: {choices('--arch', (FAMILY_PREFIX + family for family in FAMILIES))}\n"]
    parts += [table(option_rows(ActorConfig))]
    tasks = [name for name, task in TASK_REGISTRY.items() if issubclass(task, TGTask)]
    parts += [f"## Tasks: {choices('--task', tasks)}\n"]
    parts += [f"Beside those of fairseq's {choices('--task', (name.removeprefix(TG) for name in tasks))}.\n"]
    parts += [table(option_rows(TGTaskOptions))]
    parts += ["## Criterion: `--criterion actor_cross_entropy`\n", table(option_rows(ActorCrossEntropyConfig))]
    shared = option_rows(ActorCrossEntropyConfig)
    for name, config in OTHER_CRITERIA.items():
        parts += [f"## Criterion: `--criterion {name}`\n", "Beside those of `actor_cross_entropy`.\n"]
        parts += [table([row for row in option_rows(config) if row not in shared])]
    return "\n".join(parts)


if __name__ == "__main__":
    REFERENCE.write_text(reference())
