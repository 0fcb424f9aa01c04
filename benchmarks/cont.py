"""`cont.`: the whole base trained on the corpora of a finished `fairseq-tg run`, round by round, as its actors were.

    fairseq-tg run --data bin --base base.pt --out WORK
    python benchmarks/cont.py WORK --data bin --base base.pt
    fairseq-tg report --data bin --base base.pt --actor WORK/actor/checkpoint_best.pt \\
        --cont WORK/cont/checkpoint_best.pt --subset test --out WORK/beside-cont

The corpora are those of the trainings that the run's last one goes on from, with the same seed, epochs and sizes of
batches. Of the rounds, the best by greedy BLEU on the validation set is kept, as a run does it.
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional

from fairseq_tg.corpus.directory import CorpusDirectory, hash_file
from fairseq_tg.models.record import read_base
from fairseq_tg.recipe.corpora import corpus_hash
from fairseq_tg.recipe.methods import CONT_LR, of_all
from fairseq_tg.recipe.options import Training
from fairseq_tg.recipe.rounds import Trained, validation_score
from fairseq_tg.recipe.stages import recorded_settings
from fairseq_tg.recipe.training import BEST, Job
from fairseq_tg.tasks.loading import load_model


def trainings_of(work: Path) -> List[Dict[str, Any]]:
    """The settings of a run's trainings of actors, from the first to the last, each of which goes on from the last."""
    found = {hash_file(path): recorded_settings(path.parent) for path in sorted(work.glob(f"**/actor/{BEST}"))}
    trained = {digest: settings for digest, settings in found.items() if "training" in settings}
    begun_from = {settings.get("start") for settings in trained.values()}
    last = [digest for digest, settings in trained.items() if "start" in settings and digest not in begun_from]
    if not last:  # without rounds: the best of those that began from nothing
        last = [hash_file(work / "actor" / BEST)]
    chain = [trained[last[0]]]
    while "start" in chain[0]:
        chain.insert(0, trained[chain[0]["start"]])
    return chain


def corpora_of(work: Path) -> Dict[str, Path]:
    """The corpora of a run by what its trainings know them by."""
    manifests = {path.parent: CorpusDirectory(str(path.parent)).manifest for path in work.glob("**/manifest.json")}
    return {corpus_hash(manifest): directory for directory, manifest in manifests.items() if manifest is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="what `fairseq-tg run` made")
    parser.add_argument("--data", required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--lr", type=float, default=CONT_LR)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    record, _ = read_base(args.base)
    _, task = load_model(args.base, args.data)
    corpora = corpora_of(args.work)
    start: Optional[Path] = None
    done: List[Trained] = []
    for number, settings in enumerate(trainings_of(args.work), start=1):
        training = replace(of_all(Training(**settings["training"])), lr=args.lr)
        data = corpora[settings["corpus"]]
        out = args.work / "cont" / f"round-{number}"
        job = Job(training, args.base, record, task, data, settings["corpus"], out, start=start)
        start = job.run(args.threads)
        done.append(Trained(validation_score(start), start))
        print(f"cont., round {number} on {data}: greedy BLEU on the validation set {done[-1].score:.2f}", flush=True)
    shutil.copyfile(max(done, key=lambda one: one.score).checkpoint, args.work / "cont" / BEST)


if __name__ == "__main__":
    main()
