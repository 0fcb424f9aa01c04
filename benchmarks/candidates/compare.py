"""The engines that were tried for compiled models, on the same tg model: speed, start-up, size, and whether they agree.

Each run is a process of its own, because engines do not share threads well; candidates take turns. Needs onnx,
onnxruntime and ninja beside the development requirements. Usage:

    python benchmarks/candidates/compare.py --checkpoint tg.pt --data data-bin --work DIRECTORY [--threads 1 2]
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

#: Name, module, and whether its weights are int8 (None: it has float32 only)
CANDIDATES: Dict[str, Any] = {
    "native float32": ("native", False),
    "native int8": ("native", True),
    "ONNX Runtime float32": ("onnx_loop", False),
    "ONNX Runtime int8": ("onnx_loop", True),
    "C++ over ATen": ("aten_loop", None),
    "AOTInductor": ("aot_inductor", None),
    "torch.compile": ("torch_compile", None),
}


def run_one(name: str, directory: Path, threads: int, request: Dict[str, Any]) -> Dict[str, Any]:
    """In a process of its own: load a candidate and translate everything, three times after a warm-up."""
    started = time.perf_counter()
    engine = importlib.import_module(CANDIDATES[name][0]).Engine(directory, threads)
    outputs = [engine.translate(request["sources"][0], request["max_len"])]
    start = time.perf_counter() - started
    rates = []
    for _ in range(4):
        began = time.perf_counter()
        outputs = [engine.translate(source, request["max_len"]) for source in request["sources"]]
        rates.append(sum(map(len, outputs)) / (time.perf_counter() - began))
    return {"start": start, "rate": statistics.median(rates[1:]), "outputs": outputs}


def reference(model: Any, task: Any, sources: List[List[int]], max_len: int) -> List[List[int]]:
    """fairseq's own greedy search."""
    import torch
    from fairseq.sequence_generator import SequenceGenerator

    generator = SequenceGenerator([model], task.target_dictionary, beam_size=1, max_len_b=max_len)
    inputs = [{"src_tokens": torch.tensor([s]), "src_lengths": torch.tensor([len(s)])} for s in sources]
    return [generator.generate([model], {"net_input": item})[0][0]["tokens"].tolist() for item in inputs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", type=Path, required=True, help="where candidates are built")
    parser.add_argument("--candidates", nargs="*", default=list(CANDIDATES), choices=list(CANDIDATES))
    parser.add_argument("--subset", default="valid")
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--max-len", type=int, default=200)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()

    from fairseq_tg.tasks.loading import load_model

    model, task = load_model(args.checkpoint, args.data)
    task.load_dataset(args.subset)
    sources = [task.dataset(args.subset).src[i].tolist() for i in range(args.sentences)]
    request = {"sources": sources, "max_len": args.max_len}
    expected = reference(model, task, sources, args.max_len)
    rows: Dict[str, Dict[str, Any]] = {}
    for name in args.candidates:
        directory = args.work / name.replace(" ", "-")
        directory.mkdir(parents=True, exist_ok=True)
        module, int8 = CANDIDATES[name]
        build = importlib.import_module(module).build
        began = time.perf_counter()
        (build if int8 is None else functools.partial(build, int8=int8))(model, directory)
        size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
        rows[name] = {"build_seconds": round(time.perf_counter() - began, 1), "megabytes": round(size / 1e6, 1)}
    rates: Dict[str, Dict[int, List[float]]] = {name: {n: [] for n in args.threads} for name in args.candidates}
    for _ in range(args.turns):
        for threads in args.threads:
            for name in args.candidates:
                answer = _in_process(name, args.work / name.replace(" ", "-"), threads, request)
                rates[name][threads].append(answer["rate"])
                rows[name]["start_seconds"] = round(answer["start"], 2)
                same = sum(a == b for a, b in zip(answer["outputs"], expected))
                rows[name]["same_as_fairseq"] = f"{same} of {len(expected)}"
    for name, by_threads in rates.items():
        for threads, values in by_threads.items():
            rows[name][f"tokens_per_second_{threads}"] = round(statistics.median(values))
            rows[name][f"range_{threads}"] = [round(min(values)), round(max(values))]
    print(json.dumps(rows, indent=2))


def _in_process(name: str, directory: Path, threads: int, request: Dict[str, Any]) -> Dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--one", name, str(directory), str(threads)],
        input=json.dumps(request), capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(run_one(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), json.load(sys.stdin))))
    else:
        main()
