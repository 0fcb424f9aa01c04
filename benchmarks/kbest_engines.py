"""Engines against fairseq's own beam search for building a corpus: sentences a second, and how often they agree.

All build the same corpus through fairseq-generate, in turns; the rates are those that fairseq-generate reports, which
leave out its start. Usage:

    python benchmarks/kbest_engines.py --base base.pt --data data-bin [--subset test] [--beam 35] [--turns 3]
        [--engines fairseq native native_int8 ctranslate2]
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import fairseq_tg

ENGINES = ("fairseq", "native", "native_int8", "ctranslate2")


def build(engine: str, args: argparse.Namespace, out: Path) -> float:
    """Build a corpus; gives the sentences a second."""
    flags = [args.data, "--user-dir", str(Path(fairseq_tg.__file__).parent), "--task", "tg_translation", "--quiet"]
    flags += ["--path", args.base, "--gen-subset", args.subset, "--beam", str(args.beam), "--kbest-dir", str(out)]
    flags += ["--kbest-jsonl", "--kbest-engine", engine, "--batch-size", str(args.batch_size)]
    flags += ["--max-len-b", str(args.max_len_b)]
    program = str(Path(sys.executable).parent / "fairseq-generate")
    done = subprocess.run([program, *flags], capture_output=True, text=True, check=True)
    found = re.search(r"\(([\d.]+) sentences/s", done.stderr + done.stdout)
    assert found is not None
    return float(found.group(1))


class Sentence(NamedTuple):
    """What was found of one."""

    chosen: Any
    tokens: List[Any]  # of every hypothesis, in their order
    scores: List[float]


def read(path: Path) -> List[Sentence]:
    with gzip.open(path / "kbest.jsonl.gz", "rt") as file:
        lists = [json.loads(line) for line in file]
    return [
        Sentence(
            one["hypotheses"][one["chosen"][0]]["tokens"] if one.get("chosen") else None,
            [hypothesis["tokens"] for hypothesis in one["hypotheses"]],
            [hypothesis["score"] for hypothesis in one["hypotheses"]],
        )
        for one in lists
    ]


def compare(ours: List[Sentence], theirs: List[Sentence]) -> Dict[str, float]:
    """How often they agree; where rounding turns a tie, hypotheses change places."""
    pairs = list(zip(ours, theirs))
    moved = sum(x != y for a, b in pairs for x, y in zip(a.tokens, b.tokens))
    return {
        "same_chosen_hypothesis": round(sum(a.chosen == b.chosen for a, b in pairs) / len(pairs), 4),
        "same_lists": round(sum(a.tokens == b.tokens for a, b in pairs) / len(pairs), 4),
        "hypotheses_in_other_places": moved,
        "hypotheses": sum(len(a.tokens) for a in ours),
        "largest_difference_of_scores": max(abs(x - y) for a, b in pairs for x, y in zip(a.scores, b.scores)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="a Transformer checkpoint")
    parser.add_argument("--data", required=True, help="its data directory")
    parser.add_argument("--subset", default="test")
    parser.add_argument("--beam", type=int, default=35)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-len-b", type=int, default=200, help="most tokens of a translation")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--engines", nargs="+", default=ENGINES, help="the first is compared with")
    args = parser.parse_args()
    rates: Dict[str, List[float]] = {engine: [] for engine in args.engines}
    with tempfile.TemporaryDirectory() as directory:
        for turn in range(args.turns):
            for engine in args.engines:
                rates[engine].append(build(engine, args, Path(directory) / f"{engine}-{turn}"))
        lists = {engine: read(Path(directory) / f"{engine}-0") for engine in args.engines}
    first, results = args.engines[0], {}
    for engine, values in rates.items():
        ratios = sorted(fast / slow for slow, fast in zip(rates[first], values))
        results[engine] = {
            "sentences_per_second": statistics.median(values),
            "ratio": round(statistics.median(ratios), 2),
            "ratio_range": [round(ratios[0], 2), round(ratios[-1], 2)],
            **compare(lists[engine], lists[first]),
        }
    print(json.dumps({**results, "beam": args.beam, "batch_size": args.batch_size}, indent=2))


if __name__ == "__main__":
    main()
