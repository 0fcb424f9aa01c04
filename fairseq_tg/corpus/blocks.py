"""Blocks: consecutive sentences of a corpus with their k-best lists, committed together, whole or not at all.

A block is a compressed file of JSON lines, one for each sentence, and a summary that is written after it and holds its
hash: a block is there when its summary is. Neither holds a time or a name of a machine, so that the same work gives
the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import sys
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Dict, Iterable, Iterator, List, Optional

from fairseq_tg.errors import UserError
from fairseq_tg.files import parse_json, replacing

#: Of one sentence with its k-best list; a few bytes of gzip may stand for many
LONGEST_LINE = 1 << 26
#: Beyond any number of tokens or sentences; the largest that is a number and not infinite
MOST_NUMBER, MOST_SCORE = 1 << 31, sys.float_info.max


@dataclass
class Hypothesis:
    """One translation: its dictionary ids (no end of sentence), its words, and what model and objective say of it."""

    tokens: List[int]
    text: str
    score: float  # the search's, normalised by length
    log_prob: float
    objective: Optional[float] = None


@dataclass
class Sentence:
    """A source sentence's k-best list, in the order of the beam, and the ranks chosen from it; or why there is none."""

    id: int
    hypotheses: List[Hypothesis] = field(default_factory=list)
    chosen: List[int] = field(default_factory=list)
    greedy: Optional[Hypothesis] = None
    skipped: Optional[str] = None
    kept: Optional[bool] = None  # the list is an earlier model's
    source: Optional[List[int]] = None  # what was translated (no end of sentence), where it is not the data's own

    def to_json(self) -> str:
        fields = {name: value for name, value in vars(self).items() if value not in (None, [])}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), default=vars)

    @classmethod
    def from_json(cls, line: str) -> Sentence:
        raw = parse_json(line)
        raw["hypotheses"] = [Hypothesis(**hypothesis) for hypothesis in raw.get("hypotheses", [])]
        if raw.get("greedy"):
            raw["greedy"] = Hypothesis(**raw["greedy"])
        sentence = cls(**raw)
        sentence.check()
        return sentence

    def check(self) -> None:
        """Raise ValueError if it is none that `to_json` wrote: whatever a file's hash says, it is used after that."""
        found = [*self.hypotheses, *([self.greedy] if self.greedy else [])]
        if not _are_numbers([self.id, *self.chosen, *(self.source or [])]):
            raise ValueError("ids that are none")
        if not all(0 <= rank < len(self.hypotheses) for rank in self.chosen) or len({*self.chosen}) < len(self.chosen):
            raise ValueError(f"sentence {self.id} has {len(self.hypotheses)} hypotheses, and {self.chosen} are chosen")
        if not all(_are_numbers(one.tokens) and isinstance(one.text, str) for one in found):
            raise ValueError(f"sentence {self.id} has tokens that are none")
        scores = [score for one in found for score in (one.score, one.log_prob, one.objective or 0.0)]
        if not all(type(score) in (int, float) and abs(score) <= MOST_SCORE for score in scores):
            raise ValueError(f"sentence {self.id} has scores that are none")
        if not isinstance(self.skipped, (str, type(None))):
            raise ValueError(f"sentence {self.id} does not say why it is skipped")
        if self.kept is not None and self.kept is not True:
            raise ValueError(f"sentence {self.id} does not say whether its list was kept")
        if (self.skipped is None and not self.hypotheses) or (self.skipped is not None and self.chosen):
            raise ValueError(f"sentence {self.id} is neither there nor skipped, or both")


def _are_numbers(values: Any) -> bool:
    """Whether they are numbers of tokens, sentences or ranks."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value < MOST_NUMBER for value in values)


@dataclass
class Tally:
    """Counts and sums over sentences: what progress, status and manifest report."""

    sentences: int = 0  # with a k-best list
    pairs: int = 0  # hypotheses chosen
    rank1_sum: float = 0.0
    chosen_sum: float = 0.0  # of the best chosen hypothesis; of rank 1 where none was
    not_rank1: int = 0
    kept: int = 0  # lists of an earlier model
    skipped: Dict[str, int] = field(default_factory=dict)  # by reason, without the particulars

    def add(self, sentence: Sentence) -> None:
        if sentence.skipped is not None:
            reason = sentence.skipped.split(":")[0]
            self.skipped[reason] = self.skipped.get(reason, 0) + 1
        if sentence.hypotheses:
            best = sentence.chosen[0] if sentence.chosen else 0
            self.sentences += 1
            self.pairs += len(sentence.chosen)
            self.rank1_sum += sentence.hypotheses[0].objective or 0.0
            self.chosen_sum += sentence.hypotheses[best].objective or 0.0
            self.not_rank1 += best != 0
            self.kept += sentence.kept is True

    def add_tally(self, other: Tally) -> None:
        for name, value in vars(other).items():
            if name != "skipped":
                setattr(self, name, getattr(self, name) + value)
        for reason, count in other.skipped.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + count

    def means(self) -> Dict[str, float]:
        count = max(self.sentences, 1)
        return {
            "rank 1": self.rank1_sum / count,
            "chosen": self.chosen_sum / count,
            "oracle not rank 1": self.not_rank1 / count,
        }


class BlockStore:
    """The blocks of one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def _data(self, number: int) -> Path:
        return self.directory / f"{number:06d}.jsonl.gz"

    def _summary(self, number: int) -> Path:
        return self.directory / f"{number:06d}.json"

    def numbers(self) -> List[int]:
        """The blocks that are there, in order."""
        names = (path.stem for path in self.directory.glob("[0-9]*.json"))
        return sorted(int(name) for name in names if re.fullmatch("[0-9]+", name))

    def __contains__(self, number: int) -> bool:
        return self._summary(number).exists()

    def write(self, number: int, sentences: Iterable[Sentence]) -> Tally:
        """Commit a block."""
        tally, lines = Tally(), []
        for sentence in sentences:
            tally.add(sentence)
            lines.append(sentence.to_json() + "\n")
        data = gzip.compress("".join(lines).encode(), mtime=0)
        with replacing(str(self._data(number))) as temporary:
            Path(temporary).write_bytes(data)
        summary = {"sha256": hashlib.sha256(data).hexdigest(), "tally": asdict(tally)}
        with replacing(str(self._summary(number))) as temporary:
            Path(temporary).write_text(json.dumps(summary) + "\n")
        return tally

    def summary(self, number: int) -> Dict[str, Any]:
        path = self._summary(number)
        try:
            summary = parse_json(path.read_text())
            tally = Tally(**summary["tally"])
            counts = [*tally.skipped.values(), *(n for name, n in vars(tally).items() if name != "skipped")]
            if not all(isinstance(count, (int, float)) for count in counts):
                raise ValueError("counts that are none")
            return {"sha256": str(summary["sha256"]), "tally": tally}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"'{path}' is damaged ({error}): delete it, and the block is made again") from None

    def content(self, number: int) -> bytes:
        """A block's file, checked against its hash."""
        path = self._data(number)
        data = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(data).hexdigest() != self.summary(number)["sha256"]:
            raise UserError(f"'{path}' is damaged: delete '{self._summary(number)}', and the block is made again")
        return data

    def read(self, number: int) -> List[Sentence]:
        return list(_parse(io.BytesIO(self.content(number)), self._data(number)))


def read_sentences(path: Path) -> Iterator[Sentence]:
    """The sentences of a stored kbest.jsonl.gz, in order."""
    try:
        with open(path, "rb") as file:
            yield from _parse(file, path)
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror or error}") from None


def _parse(file: IO[bytes], path: Path) -> Iterator[Sentence]:
    try:
        with gzip.open(file, "rb") as lines:
            # Line by line, and not by splitlines: words may hold other line separators than the one between lines
            while line := lines.readline(LONGEST_LINE):
                if len(line) == LONGEST_LINE:
                    raise ValueError(f"a line is longer than {LONGEST_LINE:,} bytes")
                yield Sentence.from_json(line.decode())
    except (OSError, EOFError, zlib.error, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"'{path}' is no list of k-best translations, or a damaged one: {error}") from None
