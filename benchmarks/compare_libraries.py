"""Two builds of the native engine on one compiled model, in turns in one process: what a change to the engine gives.

    python benchmarks/compare_libraries.py before.so after.so model.tg text --threads 2 --beam 4

The libraries are those that `make setup` builds, fairseq_tg/compiled/_native_*.so; keep one before you change
something. Translations have to be the same, token by token.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Callable, Dict, List, Tuple

from fairseq_tg.compiled import model_file
from fairseq_tg.compiled.engine import Engine, SearchSettings
from fairseq_tg.compiled.translator import Translator


def timed(translate: Callable[[], List[List[int]]]) -> Tuple[float, float, List[List[int]]]:
    wall, processor = time.perf_counter(), time.process_time()
    found = translate()
    return time.perf_counter() - wall, time.process_time() - processor, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs=2, type=Path, metavar="LIBRARY", help="before and after")
    parser.add_argument("model", help="a compiled file")
    parser.add_argument("text", type=Path, help="a file of sentences")
    for name, default in (("beam", 1), ("threads", 1), ("batch-size", 32), ("sentences", 640), ("turns", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--max-len", type=int, default=100, help="most tokens of a translation")
    args = parser.parse_args()
    model = model_file.read(args.model)
    encode = Translator(model).encode
    lines = args.text.read_text().splitlines()[: args.sentences]
    sources = sorted((encode(line) for line in lines), key=len)
    settings = SearchSettings(beam=args.beam, nbest=1)
    results: Dict[Path, List[Tuple[float, float, List[List[int]]]]] = {path: [] for path in args.libraries}
    engines = {path: Engine(model.layout, model.tensors, path.resolve()) for path in args.libraries}

    def translate(engine: Engine) -> List[List[int]]:
        found: List[List[int]] = []
        for start in range(0, len(sources), args.batch_size):
            batch = sources[start : start + args.batch_size]
            scored = engine.search(batch, [args.max_len] * len(batch), settings, args.threads, scores=args.beam > 1)
            found += [hypotheses[0].tokens for hypotheses in scored]
        return found

    for turn in range(args.turns):
        for path in args.libraries if turn % 2 else reversed(args.libraries):
            results[path].append(timed(partial(translate, engines[path])))
    before, after = (results[path] for path in args.libraries)
    assert all(one[2] == before[0][2] for one in (*before, *after)), "the translations differ"
    for place, what in enumerate(("wall time", "processor time")):
        ratios = sorted(one[place] / other[place] for one, other in zip(before, after))
        median = statistics.median(ratios)
        print(f"{what}: before / after {median:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}, {args.turns} turns)")


if __name__ == "__main__":
    main()
