"""Batches of compiled models and of CTranslate2's with several threads, each system in processes of its own, in turns.

    fairseq-tg bench --data bin --base base.pt --peer ctranslate2 --engines compiled --out DIRECTORY --turns 1
    python benchmarks/batches_apart.py DIRECTORY --data bin --threads 2

In one process, threads of one engine that wait for work in vain would take their cores from the next. Each engine is
measured in two ways: batch by batch, all threads at one (ours divides its sentences, CTranslate2 shares its products),
and all batches at once, each thread at its own, as in bulk.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from fairseq.data import indexed_dataset

from fairseq_tg.compiled import Translator
from fairseq_tg.evaluation.batches import by_length
from fairseq_tg.evaluation.systems import SYMBOLS, System, build

Tokens = List[List[int]]
PRECISIONS, NATIVE = ("float32", "int8"), "native"


def in_bulk(directory: Path, data: str, threads: int, beam: int) -> Callable[[List[Tokens]], int]:
    """A batch for each thread: all are given at once. Gives the tokens that were made."""
    if directory.suffix == ".tg":
        translator = Translator.load(str(directory), threads=threads, beam=beam)

        def search(batches: List[Tokens]) -> int:
            sources = [tokens for batch in batches for tokens in batch]
            found = translator.search_all(sources, len(batches[0]), nbest=1, scores=False)()
            return sum(len(item[0].tokens) for item in found)

        return search
    import ctranslate2

    symbols = json.loads((directory / SYMBOLS).read_text())["source"]
    precision = directory.name.rpartition("-")[2]
    engine = ctranslate2.Translator(str(directory), inter_threads=threads, intra_threads=1, compute_type=precision)

    def translate(batches: List[Tokens]) -> int:
        words = [[symbols[token] for token in tokens[:-1]] for batch in batches for tokens in batch]
        found = engine.translate_batch(words, beam_size=beam, max_decoding_length=200, max_batch_size=len(batches[0]))
        return sum(len(item.hypotheses[0]) + 1 for item in found)

    return translate


def batch_by_batch(path: Path, data: str, threads: int, beam: int) -> Callable[[List[Tokens]], int]:
    kind = "compiled" if path.suffix == ".tg" else "ctranslate2"
    function = build(System("", kind, str(path), data, beam=beam, threads=threads))
    return lambda batches: sum(len(tokens) for batch in batches for tokens in function(batch))


def measure(args: argparse.Namespace) -> float:
    """Tokens a second of one system, in this process, after a part of them."""
    side = next(Path(args.data).glob(f"{args.subset}.*-*.{args.source}.idx"))
    dataset = indexed_dataset.make_dataset(str(side.with_suffix("")), impl="mmap")
    sources = [dataset[i].tolist() for i in range(min(args.sentences, len(dataset)))]
    batches = [[sources[i] for i in batch] for batch in by_length([len(s) for s in sources], args.batch_size)]
    translate = (in_bulk if args.bulk else batch_by_batch)(Path(args.system), args.data, args.threads, args.beam)
    translate(batches[: max(1, len(batches) // 4)])
    began = time.perf_counter()
    made = translate(batches)
    return made / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="what `fairseq-tg bench --peer ctranslate2` made")
    parser.add_argument("--data", required=True)
    parser.add_argument("--source", default="de", help="the source language")
    parser.add_argument("--subset", default="valid")
    for name, default in (("threads", 2), ("beam", 1), ("batch-size", 32), ("sentences", 640), ("turns", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--system", help=argparse.SUPPRESS)
    parser.add_argument("--bulk", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.system:
        print(measure(args))
        return
    systems: Dict[Tuple[str, str, str], List[Any]] = {}
    for precision in PRECISIONS:
        for way, flags in (("batch by batch", []), ("in bulk", ["--bulk"])):
            for engine, name in ((NATIVE, f"base.{precision}.tg"), ("CTranslate2", f"ct2-{precision}")):
                systems[engine, precision, way] = ["--system", args.directory / name, *flags]
    rates: Dict[Tuple[str, str, str], List[float]] = {name: [] for name in systems}
    for turn in range(args.turns):
        for name in sorted(systems, reverse=turn % 2 == 1):
            command = [sys.executable, __file__, *sys.argv[1:], *map(str, systems[name])]
            rates[name].append(float(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout))
    for (engine, precision, way), found in rates.items():
        ratios = sorted(one / other for one, other in zip(rates[NATIVE, precision, way], found))
        beside = f"; native is {statistics.median(ratios):.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        rate = f"{engine} {precision}, {way}: {statistics.median(found):,.0f} tok/s"
        print(rate + ("" if engine == NATIVE else beside))


if __name__ == "__main__":
    main()
