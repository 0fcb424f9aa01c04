"""What `fairseq-tg compile` and `fairseq-tg translate` are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from fairseq_tg.arguments import option


@dataclass(frozen=True)
class Compilation:
    """Of `fairseq-tg compile`."""

    checkpoint: str = option("a checkpoint of any family, with actors (tg.pt) or without", positional=True)
    out: str = option("the file to write, as model.tg", positional=True)
    data: Optional[str] = option("data directory with the dictionaries; where it was trained if not given", None)
    actor_weights: Optional[str] = option("actor file to put on the checkpoint", None)
    sentencepiece_model: Optional[str] = option("the source side's subword model, of sentencepiece", None)
    bpe_codes: Optional[str] = option("the source side's subword model, of subword-nmt", None)
    no_subword: bool = option("lines are in the dictionary's symbols already", False)
    tokenizer: str = option("applied before subwords", "none", choices=("none", "moses"))
    int8: bool = option("weights of 8 bits: a quarter of the size, faster", False)
    shortlist: Optional[str] = option(
        "k-best lists of the base: translate with the tokens seen there with those of the source", None, metavar="FILE"
    )
    shortlist_each: int = option("tokens that a source token brings", 100, least=0)
    shortlist_frequent: int = option("and the most frequent ones that are always there", 400, least=0)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Of a translator; lengths as in fairseq."""

    threads: int = option("cores to use", 1, least=1)
    max_len_a: float = option("at most a x + b tokens for a source of x: a", 0.0, range=(0, 100))
    max_len_b: int = option("b", 200)
    min_len: int = option("at least these tokens", 1)
    source_lang: Optional[str] = option("of a model of many languages: what the lines are in", None)
    target_lang: Optional[str] = option("and what to translate them into", None)
    unk_penalty: float = option("taken from the score of unknown words", 0.0, flag="--unkpen", range=(-1e6, 1e6))
    beam: int = option("hypotheses that a search goes on with; 1 is greedy search", 1, least=1)
    nbest: int = option("hypotheses that are given of a line, best first", 1, least=1)
    length_penalty: float = option(
        "scores are divided by length to this power", 1.0, flag="--lenpen", range=(-100, 100)
    )
    no_shortlist: bool = option("choose among all tokens, if the model has a shortlist", False)


@dataclass(frozen=True, kw_only=True)
class Translation(SearchOptions):
    """Of `fairseq-tg translate`."""

    model: str = option("a file that `fairseq-tg compile` made", positional=True)
    batch_size: int = option("lines translated together; 1 gives each at once", 1, least=1)
    scores: bool = option("begin every translation with its score and a tab", False)
    actor: Tuple[str, ...] = option(
        "an actor file for the compiled base, and its name; of several, every line names one: NAME, a tab and the text",
        (),
        metavar="NAME=FILE",
    )


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """Of `fairseq-tg explain`."""

    model: str = option("a file that `fairseq-tg compile` made", positional=True)
    text: str = option("one sentence, or several", positional=True, metavar="TEXT")
    json: bool = option("print JSON", False)
    svg: Optional[str] = option("write the picture to this file", None)
    source_lang: Optional[str] = option("of a model of many languages: what the text is in", None)
    target_lang: Optional[str] = option("and what to translate it into", None)
