"""The most memory that every command takes on a base of 400 million parameters with random weights.

    python benchmarks/memory.py DIRECTORY [--layers 12] [--vocabulary 60000] [--half] [--sites maps] [--only NAME ...]

Every command runs in a process of its own, one after another; the table has its peak (VmHWM: private pages and those of
mapped files alike) and how many times the weights' own size that is. `nothing` is fairseq and torch, imported.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Dict, List

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from large_base import make_data, save

import fairseq_tg

USER_DIR = str(Path(fairseq_tg.__file__).parent)
BIN = Path(sys.executable).parent
SHAPE = """--arch transformer --encoder-embed-dim 1024 --decoder-embed-dim 1024 --encoder-ffn-embed-dim 4096
    --decoder-ffn-embed-dim 4096 --encoder-attention-heads 16 --decoder-attention-heads 16 --share-all-embeddings
    --encoder-normalize-before --decoder-normalize-before"""


def make_base(directory: Path, data: str, layers: int, half: bool) -> Path:
    """A Transformer of M2M-100's smallest shape; its weights are random."""
    path = directory / "base.pt"
    if not path.exists():
        sizes = ["--encoder-layers", str(layers), "--decoder-layers", str(layers)]
        flags = [data, "--user-dir", USER_DIR, "--task", "tg_translation", *SHAPE.split(), *sizes]
        config = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), flags))
        torch.manual_seed(1)
        model = tasks.setup_task(config.task).build_model(config.model)
        save(model.half() if half else model, config, path)
    return path


def peak(command: List[str], stdin: str = "") -> Dict[str, float]:
    """Run a command; its peak memory in bytes and its seconds."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    most = [0]

    def watch() -> None:
        while process.poll() is None:
            try:
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            except OSError:
                return
            most[0] = max([most[0], *(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))])
            time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, errors = process.communicate(stdin)
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{errors[-2000:]}")
    return {"bytes": most[0], "seconds": time.perf_counter() - started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=60_000)
    parser.add_argument("--half", action="store_true", help="a checkpoint in half precision")
    parser.add_argument("--only", nargs="*", help="these commands")
    parser.add_argument("--sites", default="maps", help="where actors act: as --actor-sites, of rank 64")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    args.directory.mkdir(parents=True, exist_ok=True)
    at = args.directory
    data = str(at / "bin") if (at / "bin").exists() else make_data(at, args.vocabulary)
    base = make_base(at, data, args.layers, args.half)
    weights = base.stat().st_size
    tg_flags = ["--user-dir", USER_DIR, "--task", "tg_translation"]
    search = [*tg_flags, "--max-len-b", "5", "--cpu", "--num-workers", "0", "--batch-size", "2", "--quiet"]
    generate = [f"{BIN}/fairseq-generate", data, *search, "--path"]
    tg = f"{BIN}/fairseq-tg"
    train = [
        *(f"{BIN}/fairseq-train", data, *tg_flags, "--arch", "tg_transformer", "--base-checkpoint", base),
        *(
            "--actor-rank",
            "64",
            "--actor-sites",
            args.sites,
            "--actor-site-rank",
            "64",
            "--criterion",
            "actor_cross_entropy",
            "--optimizer",
            "adam",
            "--lr",
            "1e-3",
        ),
        *("--train-subset", "test", "--valid-subset", "test", "--max-tokens", "64", "--max-update", "2", "--cpu"),
        *("--num-workers", "0", "--save-dir", at / "actor", "--no-epoch-checkpoints", "--disable-validation"),
        *("--no-save-optimizer-state", "--restore-file", "none.pt"),
    ]
    actor = at / "actor" / "checkpoint_last.pt"
    compared = ["--data", data, "--base", base, "--actor", actor, "--max-len-b", "5", "--turns", "1"]
    commands: Dict[str, List[object]] = {
        "nothing": [sys.executable, "-c", "import fairseq_tg.plugin"],
        "train": train,
        "generate --beam 1": [*generate, base, "--beam", "1"],
        "generate --beam 1, fairseq's search": [*generate, base, "--beam", "1", "--no-fast-search"],
        "generate --beam 4": [*generate, base, "--beam", "4"],
        "generate of a tg checkpoint": [*generate, actor, "--beam", "1"],
        "actor export": [tg, "actor", "export", actor, at / "actor.safetensors"],
        "generate --actor-weights": [*generate, base, "--beam", "1", "--actor-weights", at / "actor.safetensors"],
        "generate --kbest-dir": [*generate, base, "--beam", "5", "--kbest-dir", at / f"pseudo-{os.getpid()}"],
        "generate --kbest-dir of a tg checkpoint": [
            *(*generate, actor, "--beam", "5", "--kbest-dir", at / f"pseudo-tg-{os.getpid()}")
        ],
        "validate": [
            *(f"{BIN}/fairseq-validate", data, *tg_flags, "--path", actor, "--valid-subset", "test", "--cpu"),
            *("--max-tokens", "64", "--num-workers", "0"),
        ],
        "actor average": [tg, "actor", "average", actor, actor, at / f"mean-{os.getpid()}.pt"],
        "actor import": [tg, "actor", "import", base, at / "actor.safetensors", at / "imported.pt"],
        "interactive": [f"{BIN}/fairseq-interactive", data, *search[:-3], "--path", base, "--beam", "1"],
        "compile": [tg, "compile", actor, at / "model.tg", "--data", data],
        "compile --int8": [tg, "compile", actor, at / "model8.tg", "--data", data, "--int8"],
        "translate": [tg, "translate", at / "model.tg", "--max-len-b", "5"],
        "explain": [tg, "explain", at / "model.tg", "w1 w2 w3"],
        "compile of a base": [tg, "compile", base, at / "base.tg", "--data", data],
        "translate --actor": [
            *(tg, "translate", at / "base.tg", "--actor", f"a={at / 'actor.safetensors'}", "--max-len-b", "5"),
        ],
        "report": [
            *(tg, "report", *compared, "--speed-sentences", "2", "--oracle-beam", "5", "--out", at / "report"),
        ],
        "bench": [
            *(tg, "bench", *compared, "--sentences", "2", "--batched-sentences", "8", "--batch-size", "4"),
            *("--out", at / "bench"),
        ],
    }
    print(f"weights: {weights / 2**20:,.0f} MiB ({base})")
    for name, command in commands.items():
        if args.only and name not in args.only:
            continue
        found = peak([str(word) for word in command], "w1 w2 w3\n")
        times = found["bytes"] / weights
        print(f"{name:40s} {found['bytes'] / 2**20:8,.0f} MiB {times:6.2f} x {found['seconds']:7.1f} s", flush=True)


if __name__ == "__main__":
    main()
