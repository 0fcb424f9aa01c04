"""Size of an exported gate actor against its base, for the paper's models; or for a base of yours with --base.

python benchmarks/actor_sizes.py [--vocabulary 40000]
python benchmarks/actor_sizes.py --base base.pt --actor-file actor.safetensors
"""

from __future__ import annotations

import argparse
import os
from argparse import Namespace
from types import SimpleNamespace
from typing import Dict

from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

import fairseq_tg  # noqa: F401  (registers the paper's presets)
from fairseq_tg.actors import build_actor
from fairseq_tg.loading.checkpoints import load_checkpoint
from fairseq_tg.models import fconv, lstm, transformer

FAMILIES = {
    "transformer_chen2018_iwslt16": transformer.TGTransformerModel,
    "transformer_chen2018_wmt": transformer.TGTransformerModel,
    "lstm_chen2018_iwslt16": lstm.TGLSTMModel,
    "lstm_chen2018_wmt": lstm.TGLSTMModel,
    "fconv_iwslt_de_en": fconv.TGFConvModel,
    "fconv_wmt_en_de": fconv.TGFConvModel,
}


def sizes(arch: str, dictionary: Dictionary) -> Dict[str, int]:
    """Parameters of a base with this dictionary on both sides, and of gate actors at all its seams."""
    args = Namespace(arch=arch, criterion="", max_source_positions=1024, max_target_positions=1024)
    ARCH_CONFIG_REGISTRY[arch](args)
    base = ARCH_MODEL_REGISTRY[arch].build_model(
        args, SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    )
    actors = [build_actor("gate", seam.state_dim, seam.context_dim) for seam in FAMILIES[arch].seams(base)]
    return {
        "base": sum(p.numel() for p in base.parameters()),
        "actor": sum(p.numel() for actor in actors for p in actor.parameters()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=40000, help="entries of each dictionary")
    parser.add_argument("--base", help="a checkpoint, to compare an actor file with its weights")
    parser.add_argument("--actor-file", help="what fairseq-tg actor export made for that base")
    args = parser.parse_args()
    if args.base:
        # What shares memory in the model is one tensor in the file
        tensors = load_checkpoint(args.base)["model"].values()
        weights = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
        actor = os.path.getsize(args.actor_file)
        print(f"{args.actor_file}: {actor:,} bytes, {100 * actor / weights:.1f}% of the base's {weights:,}")
        return
    dictionary = Dictionary()
    for index in range(args.vocabulary - len(dictionary)):
        dictionary.add_symbol(str(index))
    for arch in FAMILIES:
        size = sizes(arch, dictionary)
        share = 100 * size["actor"] / size["base"]
        print(f"{arch:30} base {size['base'] / 1e6:6.1f} M  gate actor {size['actor'] / 1e6:5.2f} M  {share:4.1f}%")


if __name__ == "__main__":
    main()
