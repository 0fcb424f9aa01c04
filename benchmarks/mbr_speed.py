"""Minimum Bayes risk from shared n-gram counts, against every pair by itself: sentences a second, and the same choice?

Both choose from the same stored lists, in turns, in one process; the rates are of the scoring alone, by the time that
the process has had of its core. Usage:

    python benchmarks/mbr_speed.py CORPUS [--sentences 40] [--turns 3] [--objective sbleu sbleu+2 chrf]

CORPUS is a --kbest-dir that was built with --kbest-jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Tuple

from fairseq_tg.corpus.blocks import Sentence, read_sentences
from fairseq_tg.corpus.directory import KBEST
from fairseq_tg.corpus.selection import best_first, expected_scores
from fairseq_tg.objectives import Objective, get_objective, score_pairs


def choose(objective: Objective, sentences: List[Sentence]) -> Tuple[float, List[int]]:
    """Sentences a second, and the chosen ranks."""
    begun = time.process_time()
    chosen = []
    for sentence in sentences:
        pairs = score_pairs(objective, [h.text for h in sentence.hypotheses], sentence.id)
        chosen.append(best_first(expected_scores([h.log_prob for h in sentence.hypotheses], pairs))[0])
    return len(sentences) / (time.process_time() - begun), chosen


def compare(name: str, sentences: List[Sentence], turns: int) -> Dict[str, Any]:
    shared, plain = [], []
    for _ in range(turns):
        objective = get_objective(name)  # anew, with nothing remembered
        plain.append(choose(replace(objective, score_pairs=None), sentences))
        shared.append(choose(objective, sentences))
    ratios = sorted(fast[0] / slow[0] for fast, slow in zip(shared, plain))
    return {
        "sentences_per_second": {
            "one by one": round(statistics.median(rate for rate, _ in plain), 1),
            "shared counts": round(statistics.median(rate for rate, _ in shared), 1),
        },
        "ratio": round(statistics.median(ratios), 1),
        "ratio_range": [round(ratios[0], 1), round(ratios[-1], 1)],
        "same_choice": sum(a == b for a, b in zip(shared[0][1], plain[0][1])) / len(sentences),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="a corpus with its k-best lists")
    parser.add_argument("--sentences", type=int, default=40)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--objective", nargs="+", default=["sbleu", "sbleu+2", "chrf"])
    args = parser.parse_args()
    listed = (s for s in read_sentences(Path(args.corpus) / KBEST) if s.hypotheses)
    sentences = list(itertools.islice(listed, args.sentences))
    results = {name: compare(name, sentences, args.turns) for name in args.objective}
    print(json.dumps({"k": len(sentences[0].hypotheses), "sentences": len(sentences), **results}, indent=2))


if __name__ == "__main__":
    main()
