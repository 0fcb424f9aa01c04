"""Training actors (or, to compare, the whole base) with fairseq-train, with settings that work."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
from fairseq.models import MODEL_REGISTRY
from tqdm import tqdm

from fairseq_tg.corpus.directory import hash_file, with_contents
from fairseq_tg.corpus.drawing import Best
from fairseq_tg.corpus.lists import read_lists
from fairseq_tg.criterions.risk import ActorRiskConfig
from fairseq_tg.criterions.trie import ActorTrieConfig
from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.report import TRAIN_LOG
from fairseq_tg.launch.processes import Command, fairseq, run_all
from fairseq_tg.loading.changes import PATIENCE
from fairseq_tg.loading.checkpoints import load_checkpoint
from fairseq_tg.models.record import Base, recorded_base
from fairseq_tg.names import LIST_CRITERIA
from fairseq_tg.recipe.options import Training
from fairseq_tg.recipe.stages import Stage
from fairseq_tg.subwords import WordOptions

#: How many hypotheses of a list criteria take: the option, its default, and the fewest
HYPOTHESES = {
    "actor_risk": ("--candidates", ActorRiskConfig.candidates, 2),
    "actor_trie": ("--paths", ActorTrieConfig.paths, 1),
}
BEST, LAST = "checkpoint_best.pt", "checkpoint_last.pt"
#: Updates after which it is saved and validated within an epoch, too: of a very large corpus that takes hours
WITHIN = 10_000


def check_hypotheses(training: Training, beam: int, flag: str = "--hypotheses") -> None:
    """Refuse what lists of so many hypotheses are too short for, or a criterion too few of them."""
    _, usual, fewest = HYPOTHESES.get(training.criterion, ("", 1, 1))
    count = training.hypotheses or usual
    if not fewest <= count <= beam:
        raise UserError(
            f"{training.criterion} with {count} hypotheses of lists of {beam} (--beam): give {flag} from {fewest} to "
            f"{beam}"
        )


def training_flags(training: Training, base: str, family: str, updates: int) -> List[str]:
    """The flags of fairseq-train, but for the task's."""
    flags = ["--optimizer", "adam", "--lr", str(training.lr), "--clip-norm", "1.0"]
    flags += ["--label-smoothing", str(training.label_smoothing), "--max-tokens", str(training.max_tokens)]
    flags += ["--seed", str(training.seed), "--max-update", str(updates)]
    # The learning rate goes down to nothing over the training: its end does not depend on the last batches
    flags += ["--lr-scheduler", "polynomial_decay", "--warmup-updates", str(min(100, updates // 10))]
    flags += ["--total-num-update", str(updates), "--end-learning-rate", "0"]
    if not training.actor:
        return [*flags, "--criterion", "label_smoothed_cross_entropy", "--finetune-from-model", base]
    flags += ["--criterion", training.criterion, "--arch", f"tg_{family}", "--base-checkpoint", base]
    for name in ("actor", "actor_hidden", "actor_rank", "actor_sites", "actor_site_rank"):
        flags += [f"--{name.replace('_', '-')}", str(getattr(training, name))]
    if training.hypotheses and training.criterion in HYPOTHESES:
        flags += [HYPOTHESES[training.criterion][0], str(training.hypotheses)]
    if training.criterion == "actor_risk" and training.risk_keep_length:
        flags.append("--risk-keep-length")
    return flags + (["--base-dropout"] if training.base_dropout else [])


@dataclass(frozen=True)
class Job:
    """A training of actors on a base, or of the whole base, in a directory of its own.

    Args:
        training: its settings; those that are not given are what is best for the base's family.
        base: the base's checkpoint.
        record: its family and its options.
        task: has the target's dictionary and language.
        data: a data directory with the pseudo corpus as its train split and the real validation set.
        corpus_hash: of the pseudo corpus, which the training depends on.
        updates: instead of as many as the epochs have, to compare corpora of several sizes.
        text: how the data was made of text, which is what validations score.
        start: a checkpoint whose weights are trained on.
        more: further flags of fairseq-train, which override those of the training.
    """

    training: Training
    base: str
    record: Any
    task: Any
    data: Path
    corpus_hash: str
    directory: Path
    updates: Optional[int] = None
    text: WordOptions = field(default_factory=WordOptions)
    start: Optional[Path] = None
    more: Sequence[str] = ()

    def stage(self) -> Stage:
        """Everything that its outcome depends on."""
        training = self.training.of_family(self.record.family)
        settings: Dict[str, Any] = {"training": asdict(training), "base": self.record.fingerprint}
        settings.update(corpus=self.corpus_hash, updates=self.updates, **with_contents(self.text.given()))
        if self.task.marks:
            settings["task"] = self.task.task_flags()
        if self.start is not None:
            settings["start"] = hash_file(self.start)
        if self.more:
            settings["more"] = list(self.more)
        return Stage(self.directory, settings)

    def run(self, threads: int) -> Path:
        """Train and give the best checkpoint by greedy BLEU on the validation set; what is done already is kept."""
        stage, best = self.stage(), self.directory / BEST
        if stage.is_done():
            return best
        training = self.training.of_family(self.record.family)
        updates = self.updates or count_updates(self.data, training)
        with stage.doing([BEST, TRAIN_LOG]):
            if not _has_ended(self.directory, updates, _patience(training, updates)):
                _run(self.data, self.directory, self._flags(training, updates), updates, threads)
            if training.actor and best.is_file():
                config = load_checkpoint(str(best))["cfg"]["model"]
                check_same_base(self.base, self.record, Base.from_json(recorded_base(config)).fingerprint)
        return best

    def _flags(self, training: Training, updates: int) -> List[str]:
        flags = training_flags(training, self.base, self.record.family, updates)
        if not training.actor:
            flags += architecture_flags(self.record)
        elif training.criterion in LIST_CRITERIA:
            flags += ["--kbest-lists", str(self.data)]
        if self.start is not None:
            flags += ["--finetune-from-model", str(self.start)]
        flags += [*self.task.task_flags(), *source_flags(training, self.text), *self.more]
        return flags + _validation(self.data, self.text, self.task, _patience(training, updates))


def check_same_base(base: str, base_record: Any, found: str) -> None:
    """Refuse what was made with another base than the one at the start: its own training may still be under way."""
    if found != base_record.fingerprint:
        raise UserError(f"'{base}' has changed meanwhile: give a copy that stays as it is, and another --out")


def _patience(training: Training, updates: int) -> int:
    """Its patience in validations, of which a long epoch has several."""
    assert training.epochs is not None
    return training.patience * (1 + updates // training.epochs // WITHIN)


def _has_ended(directory: Path, updates: int, patience: int) -> bool:
    """Whether only the stage was interrupted, and not its training: fairseq would do one update more, at least."""
    if not (directory / LAST).is_file():
        return False
    state = load_checkpoint(str(directory / LAST))
    counted = state["extra_state"].get(PATIENCE) or {}
    return state["optimizer_history"][-1]["num_updates"] >= updates or counted.get("num_runs", 0) >= patience


def source_flags(training: Training, text: WordOptions) -> List[str]:
    """For sources that change in every epoch."""
    rates = {"splitting": training.source_splitting, "noise": training.source_noise}
    flags = [word for name, rate in rates.items() if rate for word in (f"--source-{name}", str(rate))]
    if training.source_sampling is None:
        return flags
    if text.sentencepiece_model is None:
        raise UserError("--source-sampling needs --sentencepiece-model, the model that the data was made with")
    model = ["--bpe", "sentencepiece", "--sentencepiece-model", text.sentencepiece_model]
    return [*flags, "--source-sampling", str(training.source_sampling), *model]


def _validation(data: Path, text: WordOptions, task: Any, patience: int) -> List[str]:
    flags = ["--combine-valid-subsets"] if any(data.glob("valid[0-9]*.*-*.*")) else []
    if flags or any(
        data.glob("train[0-9]*.*-*.*")
    ):  # of which fairseq repeats the first -1 times if not told otherwise
        flags += ["--upsample-primary", "1"]
    flags += ["--eval-bleu", "--eval-bleu-args", '{"beam": 1}', "--patience", str(patience)]
    flags += ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"]
    return flags + text.validation_flags(task.target_dictionary.symbols, task.pairs[0][1])


def architecture_flags(base_record: Any) -> List[str]:
    """The flags that build a base's architecture again, for training all of it: those that its model has."""
    parser = argparse.ArgumentParser()
    MODEL_REGISTRY[base_record.family].add_args(parser)
    options: Dict[str, Any] = base_record.options
    flags = [f"--arch={options.get('arch') or options.get('_name')}"]
    for action in parser._actions:
        value = options.get(action.dest)
        from_files = action.dest.endswith(("embed_path", "freeze_embed"))  # the weights come from the base
        if not action.option_strings or from_files or value is None or value is False:
            continue
        # In one word: a value that begins as an option does is none
        flags.append(action.option_strings[0] + ("" if action.nargs == 0 else f"={value}"))
    return flags


def count_updates(data: Path, training: Training) -> int:
    """About how many batches all epochs have, from the sizes of the corpus."""
    from fairseq.data import indexed_dataset

    sides = sorted({path.with_suffix("") for path in data.glob("train.*-*.*.idx")})
    if not sides or len(sides) % 2:
        raise UserError(f"'{data}' has no binarized train split: build the corpus again")
    datasets = [indexed_dataset.make_dataset(str(side), impl="mmap") for side in sides]  # sizes live as long as these
    if training.actor and training.criterion in LIST_CRITERIA:
        # The corpus' source is the first of its languages, in train.SOURCE-TARGET.*
        source = datasets[0 if sides[0].name.split(".")[1].startswith(sides[0].suffix[1:] + "-") else 1]
        lists = read_lists(str(data), eos=0)
        most = training.hypotheses or HYPOTHESES.get(training.criterion, ("", Best.most, 1))[1]
        rows = np.minimum(lists.counts(), most) * lists.longest()
        tokens = int(np.maximum(source.sizes[lists.sources], rows).sum())
    else:  # of every pair, whose two sides are neighbours
        tokens = sum(int(np.maximum(a.sizes, b.sizes).sum()) for a, b in zip(datasets[::2], datasets[1::2]))
    assert training.epochs is not None
    return max(1, math.ceil(1.03 * tokens / training.max_tokens)) * training.epochs


def _run(data: Path, directory: Path, flags: List[str], updates: int, threads: int) -> None:
    """Run fairseq-train, which goes on where it was, with a bar over its updates."""
    log = ["--log-format", "json", "--log-interval", "20", "--log-file", str(directory / TRAIN_LOG)]
    save = ["--save-dir", str(directory), "--no-epoch-checkpoints", "--num-workers", "0"]
    save += ["--save-interval-updates", str(WITHIN), "--keep-interval-updates", "1"]
    command = Command("the training", fairseq("train", str(data), *flags, *log, *save), directory / "output.log")
    if (directory / TRAIN_LOG).is_symlink():  # fairseq adds to it, wherever it leads
        (directory / TRAIN_LOG).unlink()
    with tqdm(total=updates, unit="update", desc=f"training {directory.name}") as bar:
        run_all([command], threads, lambda: _show(bar, directory / TRAIN_LOG))


def _show(bar: Any, log: Path) -> None:
    if not log.is_file():
        return
    bleu: Optional[str] = None
    for line in log.read_text(errors="replace").splitlines():
        start = line.find("{")
        try:
            entry = json.loads(line[start:]) if start >= 0 else {}
        except ValueError:
            continue
        for name in ("num_updates", "train_num_updates", "valid_num_updates"):
            if name in entry:
                bar.n = int(float(entry[name]))
        bleu = entry.get("valid_bleu", bleu)
    if bleu is not None:
        bar.set_postfix_str(f"greedy BLEU on valid {bleu}", refresh=False)
    bar.refresh()
