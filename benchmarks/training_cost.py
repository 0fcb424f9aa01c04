"""Actor training, at the attentions and at all sites, against full fine-tuning of one Transformer on the same batches.

All are trained in one process, in turns, and compared as a ratio; the extra memory of each is the peak of a process of
its own over what it held with the model loaded. Usage:

    python benchmarks/training_cost.py                          # a random base of fairseq's iwslt size
    python benchmarks/training_cost.py --base base.pt --data data-bin
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models.transformer import TransformerModel
from fairseq.trainer import Trainer

import fairseq_tg

SYSTEMS = ("actor", "all_sites", "full")


def build_trainer(system: str, base: str, data: str, max_tokens: int) -> Trainer:
    """A fairseq trainer for the actors of `base`, or for all of it."""
    flags = [data, "--user-dir", str(Path(fairseq_tg.__file__).parent), "--task", "tg_translation"]
    flags += [
        "--optimizer",
        "adam",
        "--lr",
        "1e-3",
        "--max-tokens",
        str(max_tokens),
        "--label-smoothing",
        "0.1",
        "--cpu",
    ]
    if system != "full":
        flags += ["--arch", "tg_transformer", "--base-checkpoint", base, "--criterion", "actor_cross_entropy"]
        flags += ["--actor-sites", "all" if system == "all_sites" else "attention"]
    else:
        flags += ["--arch", "transformer", "--criterion", "label_smoothed_cross_entropy"]
    args = options.parse_args_and_arch(options.get_training_parser(), flags)
    cfg = convert_namespace_to_omegaconf(args)
    task = tasks.setup_task(cfg.task)
    if system != "full":
        model = task.build_model(cfg.model)
    else:
        state = torch.load(base, map_location="cpu", weights_only=True)
        model = TransformerModel.build_model(state["cfg"]["model"], task)
        model.load_state_dict(state["model"])
    return Trainer(cfg, task, model, task.build_criterion(cfg.criterion))


def batches(trainer: Trainer, count: int) -> List[Dict[str, Any]]:
    trainer.task.load_dataset("train")
    iterator = trainer.task.get_batch_iterator(
        trainer.task.dataset("train"), max_tokens=trainer.cfg.dataset.max_tokens, seed=1, max_positions=(1024, 1024)
    ).next_epoch_itr(shuffle=True)
    return [next(iterator) for _ in range(count)]


def memory(field: str) -> int:
    """A field of this process's status, in bytes: VmRSS is memory held now, VmHWM its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} here")


def extra_memory(system: str, args: argparse.Namespace) -> int:
    """Peak memory of some updates over what the process held before them; in a process of its own."""
    trainer = build_trainer(system, args.base, args.data, args.max_tokens)
    samples = batches(trainer, args.updates)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    before = memory("VmRSS")
    for sample in samples:
        trainer.train_step([sample])
    return memory("VmHWM") - before


def random_base(directory: Path) -> Dict[str, str]:
    """A random Transformer (transformer_iwslt_de_en) and random data, through fairseq's own commands."""
    generator = torch.Generator().manual_seed(1)
    words = [f"w{i}" for i in range(8000)]
    for split, lines in (("train", 2000), ("valid", 50)):
        for side in ("de", "en"):
            with open(directory / f"{split}.{side}", "w") as file:
                for _ in range(lines):
                    length = int(torch.randint(10, 40, (1,), generator=generator))
                    picks = torch.randint(len(words), (length,), generator=generator).tolist()
                    print(" ".join(words[i] for i in picks), file=file)
    data, save = str(directory / "bin"), str(directory / "base")
    flags = ["-s", "de", "-t", "en", "--joined-dictionary", "--trainpref", str(directory / "train")]
    flags += ["--validpref", str(directory / "valid"), "--destdir", data]
    run("fairseq-preprocess", *flags)
    flags = [data, "--arch", "transformer_iwslt_de_en", "--share-all-embeddings", "--optimizer", "adam", "--lr", "1e-4"]
    run("fairseq-train", *flags, "--max-tokens", "1000", "--max-update", "1", "--save-dir", save, "--cpu")
    return {"base": f"{save}/checkpoint_last.pt", "data": data}


def run(command: str, *flags: str) -> None:
    subprocess.run([str(Path(sys.executable).parent / command), *flags], check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="a Transformer checkpoint (default: a random one)")
    parser.add_argument("--data", help="its data directory")
    parser.add_argument("--max-tokens", type=int, default=4000)
    parser.add_argument("--updates", type=int, default=8, help="updates in each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--memory-of", choices=SYSTEMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory_of:
        print("bytes", extra_memory(args.memory_of, args))
        return
    with tempfile.TemporaryDirectory() as directory:
        if not args.base:
            vars(args).update(random_base(Path(directory)))
        trainers = {system: build_trainer(system, args.base, args.data, args.max_tokens) for system in SYSTEMS}
        samples = batches(trainers["full"], args.updates)
        for trainer in trainers.values():
            trainer.train_step([samples[0]])  # warm up
        ups: Dict[str, List[float]] = {system: [] for system in SYSTEMS}
        for _ in range(args.turns):
            for system, trainer in trainers.items():
                start = time.perf_counter()
                for sample in samples:
                    trainer.train_step([sample])
                ups[system].append(len(samples) / (time.perf_counter() - start))
        peaks = {system: [] for system in SYSTEMS}
        for _ in range(3):
            for system in SYSTEMS:
                own = ["--base", args.base, "--data", args.data, "--max-tokens", str(args.max_tokens)]
                own += ["--updates", str(args.updates), "--threads", str(args.threads), "--memory-of", system]
                output = subprocess.run([sys.executable, __file__, *own], check=True, capture_output=True, text=True)
                peaks[system].append(int(output.stdout.split("bytes")[-1]))
    rate = {system: statistics.median(values) for system, values in ups.items()}
    peak = {system: statistics.median(values) for system, values in peaks.items()}
    ratios = sorted(a / f for a, f in zip(ups["actor"], ups["full"]))
    of_sites = sorted(s / a for s, a in zip(ups["all_sites"], ups["actor"]))
    print(
        json.dumps(
            {
                "updates_per_second": {system: round(value, 3) for system, value in rate.items()},
                "speed_ratio_actor_to_full": round(statistics.median(ratios), 2),
                "speed_ratio_range": [round(ratios[0], 2), round(ratios[-1], 2)],
                "speed_ratio_all_sites_to_actor": round(statistics.median(of_sites), 2),
                "all_sites_ratio_range": [round(of_sites[0], 2), round(of_sites[-1], 2)],
                "peak_extra_mib": {system: round(value / 2**20, 1) for system, value in peak.items()},
                "memory_ratio_actor_to_full": round(peak["actor"] / peak["full"], 2),
                "max_tokens": args.max_tokens,
                "threads": args.threads,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
