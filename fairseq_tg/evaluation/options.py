"""What `fairseq-tg report` and `fairseq-tg bench` are told. (Nothing heavy is imported where options are.)"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional, Tuple

from fairseq_tg.arguments import option
from fairseq_tg.languages import LANGUAGES, LanguageOptions
from fairseq_tg.subwords import WordOptions

#: Kinds of systems that `bench` has of every model
ENGINES = ("fairseq", "fast", "compiled")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What both look at."""

    data: str = option("data directory")
    base: str = option("the base's checkpoint")
    actor: Tuple[str, ...] = option("a tg checkpoint of it; may be given several times, as for several seeds", ())
    cont: Tuple[str, ...] = option(
        "the whole base trained on the pseudo corpus: an ordinary checkpoint; may be given several times", ()
    )
    peer: Optional[str] = option("an engine to compare with", None, choices=("ctranslate2",))
    subset: str = option("split to translate; the report takes several, as in test,test1", "test")
    max_len_b: int = option("most tokens of a translation", 200)
    threads: int = option("of every system", 1, least=1)
    languages: LanguageOptions = field(default_factory=LanguageOptions, metadata={"help": LANGUAGES})
    text: WordOptions = field(default_factory=WordOptions, metadata={"help": "how the data was made of text"})


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Evaluation):
    """Of `fairseq-tg report`."""

    out: str = option("directory for report.html, report.json, report.txt and figures")
    oracle_beam: int = option("beam of the oracle; 0: none", 35)
    speed_sentences: int = option("translated one by one, for tok/s", 40, least=1)
    turns: int = option("times that tok/s are measured", 3, least=1)
    train_log: Optional[str] = option("the actor's training log, for its norms; train.log beside it if not given", None)


@dataclass(frozen=True, kw_only=True)
class BenchOptions(Evaluation):
    """Of `fairseq-tg bench`."""

    engines: Tuple[str, ...] = option(
        "what is measured: fairseq's own search, the native engine in fairseq's commands (fast), and compiled files",
        ENGINES,
        nargs="+",
        choices=ENGINES,
    )
    sentences: int = option("translated one by one", 50, least=1)
    batched_sentences: int = option("translated in batches", 1000, least=1)
    batch_size: int = option("sentences of a batch", 32, least=1)
    turns: int = option("times everything is measured", 5, least=1)
    out: str = option("directory for the results", "bench")
