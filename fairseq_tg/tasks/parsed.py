"""The options of a task that fairseq still defines by argparse, as a config, and from it as that task wants them.

In the config an option is what was typed: `--langs de,en` is the text "de,en". So it goes through fairseq-train and
fairseq-hydra-train alike, and into checkpoints; the task's own parser makes of it what the task works with.
"""

import argparse
from dataclasses import field, make_dataclass
from typing import Any, List, Mapping, NoReturn, Optional, Type

from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask
from omegaconf import II

from fairseq_tg.errors import UserError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (an option of --task {self.prog})")


def _actions(task: Type[FairseqTask], name: str) -> "tuple[_Parser, List[argparse.Action]]":
    parser = _Parser(prog=name, add_help=False, allow_abbrev=False)
    task.add_args(parser)
    return parser, parser._actions


def config_of(
    task: Type[FairseqTask], name: str, base: Type[FairseqDataclass], inherited: Mapping[str, str]
) -> Type[FairseqDataclass]:
    """A config with the options of `task` beside those of `base`.

    Args:
        name: of the config.
        inherited: options of other groups that the task reads, as in seed=common.seed.
    """
    fields: List[Any] = [(option, Any, field(default=II(place))) for option, place in inherited.items()]
    for action in _actions(task, name)[1]:
        kind: Any = bool if action.nargs == 0 else Optional[action.type if action.type in (int, float) else str]
        metadata = {"help": action.help or ""}
        alias = [flag for flag in action.option_strings if not flag.startswith("--")]
        if alias:
            metadata["argparse_alias"] = alias[0]
        fields.append((action.dest, kind, field(default=action.default, metadata=metadata)))
    return make_dataclass(name, fields, bases=(base,))


def namespace_of(task: Type[FairseqTask], name: str, config: Any, inherited: Mapping[str, str]) -> argparse.Namespace:
    """The options of a config as `task`'s own parser gives them."""
    parser, actions = _actions(task, name)
    words: List[str] = []
    for action in actions:
        value = config[action.dest]
        if action.nargs == 0:
            words += action.option_strings[-1:] if value else []
        elif value is not None:
            words.append(f"{action.option_strings[-1]}={value}" if action.option_strings else str(value))
    try:
        parsed = vars(parser.parse_args(words))
    except (NameError, SyntaxError) as error:  # of what fairseq evaluates: --langtoks and its kin
        raise UserError(f"an option of --task {name} is no Python dictionary: {error}") from None
    return argparse.Namespace(**{option: config[option] for option in inherited}, **parsed)
