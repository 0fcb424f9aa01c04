"""How the time of a translation grows with its length: each length is forced, up to 512 tokens.

Prints milliseconds a sentence and microseconds a token for the compiled model and for the family's session in torch.
Attention looks back on all tokens before, so a token costs a little more the later it comes; all else is the same for
every token. Usage:

    python benchmarks/output_length.py --checkpoint tg.pt --data data-bin [--lengths 32 64 128 256 512] [--turns 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any, Callable, Dict, List

import torch

from fairseq_tg.compiled.engine import Engine, SearchSettings
from fairseq_tg.compiled.extract import extract, unsupported
from fairseq_tg.compiled.quantize import quantize
from fairseq_tg.decoding.fast_search import FastGenerator
from fairseq_tg.tasks.loading import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--lengths", type=int, nargs="*", default=[32, 64, 128, 256, 512])
    parser.add_argument("--source", type=int, default=20, help="tokens of the source sentence")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, task = load_model(args.checkpoint, args.data)
    dictionary = task.source_dictionary
    source = [4 + i % (len(dictionary) - 4) for i in range(args.source - 1)] + [dictionary.eos()]
    systems: Dict[str, Callable[[int], Any]] = {}

    def session(length: int) -> Any:
        generator = FastGenerator([model], task.target_dictionary, max_len_b=length, min_len=length)
        generator._engine_tried = True  # torch, whatever the family
        net_input = {"src_tokens": torch.tensor([source]), "src_lengths": torch.tensor([len(source)])}
        return generator.generate([model], {"net_input": net_input})

    systems["session"] = session
    if unsupported(model) is None:
        layout, tensors = extract(model)
        for name, weights in (("compiled float32", tensors), ("compiled int8", quantize(tensors, layout))):
            engine = Engine(layout, weights)
            systems[name] = lambda length, engine=engine: engine.search(
                [source], [length], SearchSettings(min_length=length), scores=False
            )

    seconds: Dict[str, Dict[int, List[float]]] = {name: {n: [] for n in args.lengths} for name in systems}
    with torch.no_grad():
        for turn in range(args.turns + 1):
            for length in args.lengths:
                for name, run in systems.items():
                    began = time.perf_counter()
                    run(length)
                    if turn:  # the first is a warm-up
                        seconds[name][length].append(time.perf_counter() - began)
    result = {}
    for name, times in seconds.items():
        medians = {length: statistics.median(values) for length, values in times.items()}
        result[name] = {
            str(length): {"milliseconds": round(value * 1e3, 2), "microseconds_a_token": round(value / length * 1e6, 1)}
            for length, value in medians.items()
        }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
