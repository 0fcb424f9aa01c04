"""What a shortlist changes and what it gains: share of the translations that are others, and tokens a second.

Both searches are of one compiled model, with its shortlist and among all tokens, in turns, in one process; the rates
are by the time that the process has had of its core (one thread). Usage:

    python benchmarks/shortlist.py model.tg < LINES [--beam 1 4] [--batch-size 1 32] [--sentences 300] [--turns 3]

LINES are in words if the model has its subword model, else in the dictionary's symbols. The share is of all of them,
the rates are of some. Without lists of a base with a large dictionary, speed alone can be seen of random weights:

    python benchmarks/shortlist.py --random 32000 [--int8]

is a Transformer of 512/2048 and 6 layers with that many words, each of which brings 100 others, and 400 more for all;
sources and translations have 20 words.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from typing import Any, Dict, List, Tuple

import numpy as np

from fairseq_tg.compiled import model_file
from fairseq_tg.compiled.engine import Shortlist
from fairseq_tg.compiled.model_file import CompiledModel, TextOptions
from fairseq_tg.compiled.quantize import quantize
from fairseq_tg.compiled.transformer_layout import TransformerLayout
from fairseq_tg.compiled.translator import Translator

Tokens = List[List[int]]


def translate(translator: Translator, sources: Tokens, beam: int, batch_size: int) -> Tuple[float, Tokens]:
    """Tokens a second, and the translations."""
    begun = time.process_time()
    found: Tokens = []
    for start in range(0, len(sources), batch_size):
        batch = translator.search(sources[start : start + batch_size], beam=beam, nbest=1, scores=beam > 1)
        found += [hypotheses[0].tokens for hypotheses in batch]
    return sum(map(len, found)) / (time.process_time() - begun), found


def compare(
    short: Translator, whole: Translator, sources: Tokens, beam: int, batch_size: int, turns: int
) -> List[float]:
    pairs = [[translate(each, sources, beam, batch_size)[0] for each in (short, whole)] for _ in range(turns)]
    rates = [statistics.median(of) for of in zip(*pairs)]
    return [*rates, statistics.median(a / b for a, b in pairs)]


def random_model(words: int, int8: bool) -> CompiledModel:
    """The Transformer of the documentation above."""
    numbers = np.random.default_rng(1)
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            **{"ffn": 2048, "layers": 6, "heads": 8, "pre_norm": False, "scale": 512**0.5},
            "position_kind": "sinusoidal",
        }.items()
    }
    layout = TransformerLayout(
        **{"vocabulary": words, "source_vocabulary": words, "pad": 1, "eos": 2, "unk": 3, "dim": 512},
        **{"source_positions": 100, "target_positions": 100, "encoder_dim": 512, "activation": "relu"},
        shared_embeddings=("encoder", "decoder"),
        **sides,
    )
    tensors = {
        name: np.ones(shape, np.float32)
        if name.endswith("norm.weight")
        else numbers.normal(scale=shape[-1] ** -0.5, size=shape).astype(np.float32)
        for name, (_, shape) in layout.tensors(int8=False).items()
    }
    counts = np.full(words, 100)
    counts[layout.eos] = 400
    brought = numbers.integers(4, words, counts.sum(), dtype=np.int32)
    shortlist = Shortlist(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), brought)
    symbols = [str(i) for i in range(words)]
    tensors = quantize(tensors, layout) if int8 else tensors
    return CompiledModel(layout, TextOptions("a", "b"), symbols, symbols, b"", tensors, int8, shortlist=shortlist)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="compiled with --shortlist")
    parser.add_argument("--random", type=int, metavar="WORDS", help="a random model of so many words instead")
    parser.add_argument("--int8", action="store_true", help="of the random model")
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    if not args.random and not args.model:
        parser.error("give a model, or --random WORDS")
    model = random_model(args.random, args.int8) if args.random else model_file.read(args.model)
    if model.shortlist is None:
        sys.exit(f"{args.model} has no shortlist: compile it with --shortlist")
    length = {"max_len_b": 20, "min_len": 20} if args.random else {}
    short, whole = Translator(model, **length), Translator(model, no_shortlist=True, **length)
    words = random.Random(1)
    drawn = (" ".join(str(words.randrange(4, args.random)) for _ in range(20)) for _ in range(args.sentences))
    sources = sorted((short.encode(line) for line in (drawn if args.random else sys.stdin)), key=len)
    brought = np.split(model.shortlist.tokens, model.shortlist.starts[1:-1])
    sizes = [len(np.unique(np.concatenate([brought[token] for token in source]))) for source in sources]
    result: Dict[str, Any] = {
        "vocabulary": model.layout.vocabulary,
        "mean_shortlist": round(statistics.mean(sizes)),
        "sentences": len(sources),
    }
    for beam in args.beam:
        row: Dict[str, Any] = {}
        if not args.random:
            one, other = (translate(each, sources, beam, 32)[1] for each in (short, whole))
            row["changed"] = round(sum(a != b for a, b in zip(one, other)) / len(sources), 4)
        for size in args.batch_size:
            some = sources[:: max(1, len(sources) // args.sentences)]
            rates = compare(short, whole, some, beam, size, args.turns)
            names = ("shortlist", "all", "ratio")
            row[f"batches of {size}"] = {name: round(rate, 2) for name, rate in zip(names, rates)}
        result[f"beam {beam}"] = row
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
