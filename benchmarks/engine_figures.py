"""The native engine beside fairseq and CTranslate2, all figures in one go: a JSON and the documentation's tables.

It runs `fairseq-tg bench` (everything in one process, in turns) for a small and a large Transformer, an LSTM and a
ConvS2S, with one thread and, of the Transformers, with two, and benchmarks/kbest_engines.py for k = 35, with two. On a
machine with nothing else to do:

    python benchmarks/large_base.py large --ranks 0
    python benchmarks/engine_figures.py OUT --data bin --transformer transformer.pt --actor tg.pt --lstm lstm.pt \\
        --lstm-actor tg-lstm.pt --fconv fconv.pt --fconv-actor tg-fconv.pt --large large [--subset valid] [--quick]

OUT has figures.json, figures.md (a table of ratios, and the tables of every bench) and a directory for each run; one
that is there is not made again. Of OUT/small/bench.json benchmarks/quality_and_speed.py draws the README's picture.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

BIN, HERE = Path(sys.executable).parent, Path(__file__).parent
PRECISIONS = ("float32", "int8")
#: k-best builds on two threads: engines, the first of which the others are compared with
BUILDS = ("ctranslate2", "native", "native_int8")
BESIDE_FAIRSEQ = ("fairseq", "native")


class Run:
    """Runs commands, or takes what they left."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out = args, args.out
        self.seconds: Dict[str, float] = {}

    def bench(self, name: str, base: str, data: str, *flags: str, threads: int = 1) -> Dict[str, Any]:
        out = self.out / name
        command = [str(BIN / "fairseq-tg"), "bench", "--data", data, "--base", base, "--threads", str(threads)]
        self._once(name, [*command, *flags, "--out", str(out)], out / "bench.json", None, threads)
        return json.loads((out / "bench.json").read_text())

    def builds(
        self, name: str, base: str, data: str, subset: str, engines: Tuple[str, ...], most: int = 200
    ) -> Dict[str, Any]:
        path = self.out / f"{name}.json"
        command = [sys.executable, str(HERE / "kbest_engines.py"), "--base", base, "--data", data, "--subset", subset]
        command += ["--max-len-b", str(most)]
        turns = ["--turns", "1" if self.args.quick or engines == BESIDE_FAIRSEQ else "2", "--engines", *engines]
        self._once(name, [*command, *turns], path, path, 2)
        return json.loads(path.read_text())

    def _once(self, name: str, command: List[str], made: Path, output: Optional[Path], threads: int) -> None:
        if made.exists():
            return
        print(f"{name}: {' '.join(command)}", file=sys.stderr, flush=True)
        began = time.perf_counter()
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        self.seconds[name] = round(time.perf_counter() - began, 1)
        if output is not None:
            output.write_text(done.stdout)


def ratio(bench: Dict[str, Any], of: str, to: str, mode: str = "single") -> float:
    one, other = (bench["systems"][name][f"{mode}_tokens_per_second"]["median"] for name in (of, to))
    return round(one / other, 2)


def figures(run: Run) -> List[Tuple[str, str, float, float]]:
    """What is compared, of which model, the goal and what was measured."""
    args, found = run.args, []
    split = ["--subset", args.subset]
    few = ["--sentences", "10", "--batched-sentences", "64", "--turns", "2"] if args.quick else []
    some = few or ["--sentences", "40", "--batched-sentences", "640", "--turns", "5"]
    long = few or ["--sentences", "6", "--batched-sentences", "64", "--turns", "3"]
    large, large_data = str(args.large / "base.pt"), str(args.large / "bin")
    large_flags = ["--actor", str(args.large / "rank0.pt"), "--peer", "ctranslate2", *long, "--max-len-b", "30"]
    small_flags = ["--actor", args.actor, "--peer", "ctranslate2", *split, *some]
    for size, base, data, flags, goals in (
        ("small", args.transformer, args.data, small_flags, (1.8, 1.6, 1.3)),
        ("large", large, large_data, large_flags, (1.5, 1.4, 1.3)),
    ):
        bench = run.bench(size, base, data, *flags)
        for p in PRECISIONS:
            beam = f"compiled base beam 4 {p}", f"CTranslate2 beam 4 {p}"
            found.append((f"beam 4 of the base, native / CTranslate2, {p}", size, goals[0], ratio(bench, *beam)))
            beam = f"compiled tg beam 4 {p}", f"CTranslate2 beam 4 {p}"
            found.append((f"tg + beam 4, native / CTranslate2's beam 4, {p}", size, goals[1], ratio(bench, *beam)))
        for threads in (1, 2):
            # fairseq's search takes most of a bench's time, and is not asked about with two threads
            compared = ["--engines", "compiled"] if threads > 1 else []
            bench = run.bench(size if threads == 1 else f"{size}-2", base, data, *flags, *compared, threads=threads)
            for p in PRECISIONS:
                greedy = f"compiled base {p}", f"CTranslate2 greedy {p}"
                what = f"greedy in batches, native / CTranslate2, {p}, {threads} thread{'s' if threads > 1 else ''}"
                found.append((what, size, goals[2], ratio(bench, *greedy, mode="batched")))
    for size, base, data, subset, goals, most in (
        ("small", args.transformer, args.data, args.subset, (1.5, 2.0), 200),
        ("large", large, large_data, "test", (1.1, 1.5), 30),  # which all its translations have
    ):
        built = run.builds(f"k35-{size}", base, data, subset, BUILDS, most)
        for engine, what, goal in zip(BUILDS[1:], ("float32", "int8 / float32"), goals):
            found.append((f"k = 35, native / CTranslate2, {what}, 2 threads", size, goal, built[engine]["ratio"]))
    for family, base, actor, goal, speed, cost in (
        ("Transformer", args.transformer, args.actor, 2.5, None, 0.85),
        ("LSTM", args.lstm, args.lstm_actor, 2.0, 6.0, 0.85),
        ("ConvS2S", args.fconv, args.fconv_actor, 2.5, 10.0, 0.8),
    ):
        built = run.builds(f"k35-{family}-fairseq", base, args.data, args.subset, BESIDE_FAIRSEQ)["native"]
        found.append(("k = 35, native / fairseq, 2 threads", family, goal, built["ratio"]))
        found.append(("k = 35, chosen as by fairseq", family, 0.999, built["same_chosen_hypothesis"]))
        bench = run.bench("small" if speed is None else family, base, args.data, "--actor", actor, *split, *some)
        if speed is not None:
            greedy = ratio(bench, "compiled base float32", "fairseq greedy")
            found.append(("greedy, sentence by sentence, native / fairseq", family, speed, greedy))
        for p in PRECISIONS:
            tg = ratio(bench, f"compiled tg {p}", f"compiled base {p}")
            found.append((f"greedy, sentence by sentence, tg / base, {p}", family, cost, tg))
    built = run.builds("k35-large-fairseq", large, large_data, "test", BESIDE_FAIRSEQ, 30)["native"]
    return [*found, ("k = 35, native / fairseq, 2 threads", "large", 1.5, built["ratio"])]


def as_tables(found: List[Tuple[str, str, float, float]], out: Path) -> str:
    lines = ["| ratio | model | goal | measured |", "|---|---|---|---|"]
    lines += [f"| {what} | {model} | {goal:g} | {value:g} |" for what, model, goal, value in found]
    for path in sorted(out.glob("*/bench.json")):
        bench = json.loads(path.read_text())
        lines += [
            "",
            f"{path.parent.name}:",
            "",
            "| system | tok/s (range) | in batches | start | peak memory | BLEU |",
        ]
        lines.append("|---|---|---|---|---|---|")
        for name, row in bench["systems"].items():
            one, many = row["single_tokens_per_second"], row["batched_tokens_per_second"]
            rate = f"{one['median']:,.0f} ({one['low']:,.0f} to {one['high']:,.0f}) | {many['median']:,.0f}"
            memory = f"{row['start_seconds']:.1f} s | {row['peak_bytes'] / 2**20:,.0f} MiB"
            bleu = "" if row["bleu"] is None else f"{row['bleu']:.2f}"
            lines.append(f"| {name} | {rate} | {memory} | {bleu} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for name, help in (
        ("data", "data directory of the three"),
        ("transformer", "a base"),
        ("actor", "a tg checkpoint of the Transformer"),
        ("lstm", "a base"),
        ("lstm-actor", "a tg checkpoint of the LSTM"),
        ("fconv", "a base"),
        ("fconv-actor", "a tg checkpoint of the ConvS2S"),
    ):
        parser.add_argument(f"--{name}", required=True, help=help)
    parser.add_argument("--large", type=Path, required=True, help="the directory that benchmarks/large_base.py made")
    parser.add_argument("--subset", default="valid")
    parser.add_argument("--quick", action="store_true", help="few sentences and turns: to see that it works")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    run = Run(args)
    found = figures(run)
    (args.out / "figures.md").write_text(as_tables(found, args.out))
    rows = [dict(zip(("what", "model", "goal", "measured"), row)) for row in found]
    (args.out / "figures.json").write_text(json.dumps({"figures": rows, "seconds": run.seconds}, indent=1) + "\n")
    print((args.out / "figures.md").read_text(), end="")


if __name__ == "__main__":
    main()
