"""Make a random Transformer of 512/2048 dimensions, 6 layers and 8 heads, tg models of it, and random data.

Nothing is trained, so its translations mean nothing; its speed is that of any model of its size. Usage:

    python benchmarks/large_base.py DIRECTORY [--ranks 0 64] [--vocabulary 10000]
    fairseq-tg bench --data DIRECTORY/bin --base DIRECTORY/base.pt --actor DIRECTORY/rank0.pt --actor ... \\
        --peer ctranslate2 --sentences 8 --batched-sentences 32 --max-len-b 30
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any, Dict

import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import preprocess
from omegaconf import OmegaConf, open_dict

import fairseq_tg

SHAPE = """--arch transformer --encoder-embed-dim 512 --decoder-embed-dim 512 --encoder-ffn-embed-dim 2048
    --decoder-ffn-embed-dim 2048 --encoder-layers 6 --decoder-layers 6 --encoder-attention-heads 8
    --decoder-attention-heads 8 --share-all-embeddings"""


def make_data(directory: Path, vocabulary: int) -> str:
    """Random sentences of 5 to 30 words, and a dictionary of the asked size."""
    generator = random.Random(1)
    words = [f"w{i}" for i in range(vocabulary - 4)]
    for language in ("xx", "yy"):
        (directory / f"dict.{language}.txt").write_text("".join(f"{word} 1\n" for word in words))
        lines = (" ".join(generator.choices(words, k=generator.randint(5, 30))) for _ in range(64))
        (directory / f"test.{language}").write_text("\n".join(lines) + "\n")
    flags = ["-s", "xx", "-t", "yy", "--testpref", directory / "test", "--destdir", directory / "bin"]
    flags += ["--srcdict", directory / "dict.xx.txt", "--tgtdict", directory / "dict.yy.txt"]
    preprocess.main(options.get_preprocessing_parser().parse_args([str(flag) for flag in flags]))
    return str(directory / "bin")


def save(model: Any, config: Any, path: Path) -> None:
    state: Dict[str, Any] = {"args": None, "cfg": OmegaConf.to_container(config), "model": model.state_dict()}
    history = {"criterion_name": "none", "optimizer_name": "none", "lr_scheduler_state": {}, "num_updates": 0}
    state.update(optimizer_history=[history], last_optimizer_state=None, extra_state={}, task_state={})
    checkpoint_utils.torch_persistent_save(state, str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--ranks", type=int, nargs="*", default=[0, 64], help="of gate actors; 0: full maps")
    parser.add_argument("--vocabulary", type=int, default=10_000)
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    data = make_data(args.directory, args.vocabulary)
    user_dir = str(Path(fairseq_tg.__file__).parent)
    torch.manual_seed(1)

    flags = [data, "--user-dir", user_dir, "--task", "tg_translation", *SHAPE.split()]
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), flags))
    task = tasks.setup_task(config.task)
    base = args.directory / "base.pt"
    save(task.build_model(config.model), config, base)
    for rank in args.ranks:
        actor_config = OmegaConf.create({"_name": "tg_transformer", "base_checkpoint": str(base), "actor_rank": rank})
        model = task.build_model(actor_config)
        for site in model.sites():
            for parameter in site.parameters():
                torch.nn.init.normal_(parameter, std=0.02)
        with open_dict(config):
            config.model = OmegaConf.create({**actor_config, "base_record": model.base.to_json()})
        save(model, config, args.directory / f"rank{rank}.pt")


if __name__ == "__main__":
    main()
