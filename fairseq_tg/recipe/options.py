"""What `fairseq-tg run` and `fairseq-tg ablate` are told. (Nothing heavy is imported where options are.)"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Optional, Tuple, TypeVar

from fairseq_tg.arguments import option
from fairseq_tg.languages import LANGUAGES, LanguageOptions
from fairseq_tg.names import ACTORS, ENGINES, LIST_CRITERIA, SITES, one_of
from fairseq_tg.subwords import WordOptions

#: The objective that follows from the length of the base's translations; the selection that validation data choose
AUTO = "auto"
#: What is tried of the latter: the paper's, and with the references beside them, which a base may have learned by heart
TRIED = ("top1", "comb")
#: Lists are made once of the base, and once of the model with the actors that these gave: see docs/results.md
ROUNDS = 2


#: What is best of settings that are not given, and for which family it is something else: see docs/results.md
USUAL: Dict[str, Any] = {
    "actor_rank": 0,
    "actor_sites": "maps",
    "actor_site_rank": 0,
    "lr": 1e-3,
    "epochs": 5,
    "base_dropout": True,
}
#: Bases of more parameters are given actors beside their maps of a rank, which take less memory to train
LARGE, LARGE_RANK = 100_000_000, 64
OF_FAMILY: Dict[str, Dict[str, Any]] = {family: {"lr": 3e-3, "base_dropout": False} for family in ("fconv", "lstm")}


def _by_family(name: str) -> str:
    def said(value: Any) -> str:
        return ("on" if value else "off") if isinstance(value, bool) else str(value)

    others = (f"{said(best[name])} for {family}" for family, best in OF_FAMILY.items() if name in best)
    return ", ".join([f"default: {said(USUAL[name])}", *others])


@dataclass(frozen=True)
class Training:
    """The settings of a training. The defaults were chosen on validation data: see docs/results.md."""

    actor: str = option(f"form of the actors: {one_of(ACTORS)}", "gate")  # "": the whole base, `cont.`
    actor_hidden: int = option("hidden size of ff, ff2 and rnn actors; 0 is that of the decoder state", 0)
    actor_rank: Optional[int] = option(
        f"factor each map of an actor through so many dimensions; 0: the paper's full map ({_by_family('actor_rank')})",
        None,
    )
    actor_sites: Optional[str] = option(
        "where actors act: at the attention (the paper's places); all: also behind the decoder's other sublayers; "
        f"maps: also beside every linear map of encoder and decoder ({_by_family('actor_sites')})",
        None,
        choices=SITES,
    )
    actor_site_rank: Optional[int] = option(
        "rank of the actors that --actor-sites all or maps adds; 0 is full maps "
        f"({_by_family('actor_site_rank')}; {LARGE_RANK} for a base of more than {LARGE // 1_000_000} M parameters)",
        None,
    )
    criterion: str = option(
        "what actors learn: the chosen translations, or more of the k-best lists (docs/training.md)",
        "actor_cross_entropy",
        choices=("actor_cross_entropy", *LIST_CRITERIA),
    )
    risk_keep_length: bool = option("actor_risk counts nothing of the objective that goes with length", True)
    hypotheses: int = option("of a list, for actor_risk and actor_trie; 0 is as many as they take by default", 0)
    lr: Optional[float] = option(
        f"the learning rate at its highest ({_by_family('lr')})",
        None,
        range=(0, 1),
    )
    label_smoothing: float = option("of the cross-entropy", 0.1, range=(0, 1))
    max_tokens: int = option("of a batch", 2048, least=1)
    epochs: Optional[int] = option(
        f"passes over the corpus ({_by_family('epochs')}; 3 over one with the references, twice as large)",
        None,
        least=1,
    )
    patience: int = option("passes over the corpus without a gain before it ends", 3, least=1)
    base_dropout: Optional[bool] = option(f"keep the base's dropout on ({_by_family('base_dropout')})", None)
    source_sampling: Optional[float] = option(
        "segment sources anew in every epoch with --sentencepiece-model: the power of probabilities",
        None,
        range=(0, 10),
    )
    source_splitting: float = option(
        "split subwords of sources into smaller ones with this probability, anew in every epoch", 0.0, range=(0, 0.5)
    )
    source_noise: float = option("leave out and swap words of sources with this probability", 0.0, range=(0, 1))
    seed: int = option("of the actors' first weights and the order of the batches", 1)

    def of_size(self, parameters: int) -> Training:
        """With the rank of a large base's actors, if it is not given."""
        if self.actor_site_rank is not None or parameters <= LARGE:
            return self
        return replace(self, actor_site_rank=LARGE_RANK)

    def of_family(self, family: str) -> Training:
        """With what was not given, as it is best for a family of bases."""
        best = {**USUAL, **OF_FAMILY.get(family, {})}
        return replace(self, **{name: value for name, value in best.items() if getattr(self, name) is None})


@dataclass(frozen=True)
class Refinement:
    """The second training, of the actors that the first gave, on whole lists."""

    refine: str = option(
        "what actors then learn from whole lists; none: no second training", "none", choices=("none", *LIST_CRITERIA)
    )
    refine_hypotheses: int = option("of a list, as --hypotheses", 5)
    refine_lr: float = option("its learning rate at its highest", 1e-3, range=(0, 1))
    refine_max_tokens: int = option("of a batch, with all hypotheses", 6000, least=1)
    refine_epochs: int = option("passes over the lists", 1, least=1)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Of `fairseq-tg run`."""

    data: str = option("data directory, with splits train and valid and --subset")
    base: str = option("the base's checkpoint")
    out: str = option("directory for pseudo-bin, actor and report")
    workers: int = option("cores to use", lambda: os.cpu_count() or 1, least=1)
    subset: str = option("split to report on", "test")
    beam: int = option("k of the oracle corpus", 35, least=1)
    rounds: Optional[int] = option(
        "how many times lists are made and trained on; from the second on with the actors trained so far, where they "
        "have changed the greedy translation. The best training by greedy BLEU on valid is kept "
        f"(default: {ROUNDS}; 1 for a model of many languages)",
        None,
        least=1,
    )
    objective: str = option(
        "what a translation is chosen by, as in a corpus build; auto: sbleu+2, sbleu+1 or sbleu, the longer the greedy "
        "translations of valid are by the model that is searched with, so that actors put their length right",
        AUTO,
    )
    selection: str = option(
        "what is learned of a k-best list, as in a corpus build; auto: a training on top1 and one on comb (also the "
        "references), of which the better by greedy BLEU on valid is kept",
        AUTO,
    )
    engine: Optional[str] = option(
        "what searches, as --kbest-engine; ctranslate2: the base alone, models with actors are searched as usual",
        None,
        choices=ENGINES,
    )
    batch_size: int = option("sentences searched together", 16, least=1)
    languages: LanguageOptions = field(default_factory=LanguageOptions, metadata={"help": LANGUAGES})
    text: WordOptions = field(default_factory=WordOptions, metadata={"help": "how the data was made of text"})
    training: Training = field(
        default_factory=Training, metadata={"help": "the training; the defaults were chosen on validation data"}
    )
    refinement: Refinement = field(
        default_factory=Refinement, metadata={"help": "a second training, on whole k-best lists, that goes on from it"}
    )

    def selections(self) -> Tuple[str, ...]:
        """What to train on, each by itself."""
        on_lists = self.training.criterion in LIST_CRITERIA  # which have the best of a list themselves
        return (self.selection,) if self.selection != AUTO else TRIED[:1] if on_lists else TRIED

    def trains_several(self) -> bool:
        """Whether there is a best of several trainings."""
        return (self.rounds or 1) > 1 or self.refined() is not None or len(self.selections()) > 1

    def training_on(self, selection: str) -> Training:
        """The training; on a corpus with the references, which is twice as large, in fewer epochs."""
        epochs = self.training.epochs
        return replace(self.training, epochs=3) if epochs is None and selection == "comb" else self.training

    def refined(self) -> Optional[Training]:
        """The second training, if there is to be one."""
        second = self.refinement
        if second.refine == "none":
            return None
        return replace(
            self.training,
            criterion=second.refine,
            hypotheses=min(second.refine_hypotheses, self.beam),
            lr=second.refine_lr,
            max_tokens=second.refine_max_tokens,
            epochs=second.refine_epochs,
        )


R = TypeVar("R", bound=Recipe)

KINDS = ("actor", "beam", "composition", "objective", "method")


@dataclass(frozen=True, kw_only=True)
class Ablation(Recipe):
    """Of `fairseq-tg ablate`."""

    rounds: Optional[int] = 1  # is not varied
    kind: str = option("what is varied", choices=KINDS, positional=True)
    selection: str = option("what is learned of a k-best list", TRIED[0])
    out: str = option("directory; the same as for `run` shares its corpus")
    subset: str = option("split to score", "valid")
    hidden: Tuple[int, ...] = option("sizes of the actors that have one; 0 is the state's", (0,), nargs="*")
    seeds: Tuple[int, ...] = option("of `method`: each is trained, or searched, with all of them", (1, 2, 3), nargs="+")
    noise: float = option("of `method`: of NPAD, before the first step", 0.3, range=(0, 100))
    beams: Tuple[int, ...] = option("the k to try", (1, 5, 10, 20, 35, 50), nargs="*", least=1)
    refinement: Refinement = field(
        default_factory=Refinement, metadata={"help": "of `method`: the second training of tg, as that of a run"}
    )
    only: Tuple[str, ...] = option("some of its rows, as gate or k=10", (), nargs="*", metavar="NAME")
