"""`cont.`: the whole base trained on the corpora of a finished `fairseq-tg run`, round by round, as its actors were.

    fairseq-tg run --data bin --base base.pt --out WORK
    python benchmarks/cont.py WORK --data bin --base base.pt --seed 1
    fairseq-tg report --data bin --base base.pt --actor WORK/actor/checkpoint_best.pt \\
        --cont WORK/cont/checkpoint_best.pt --subset test --out WORK/beside-cont

The first round is on what the best of the run's first trainings was trained on. Of the rounds, the best by greedy BLEU
on the validation set is kept, as a run does it.
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from typing import List, Optional

from fairseq_tg.corpus.directory import CorpusDirectory
from fairseq_tg.models.record import read_base
from fairseq_tg.recipe.corpora import corpus_hash
from fairseq_tg.recipe.methods import CONT_LR, of_all
from fairseq_tg.recipe.options import TRIED, Recipe, Training
from fairseq_tg.recipe.rounds import Trained, lists_directory, validation_score
from fairseq_tg.recipe.training import BEST, Job
from fairseq_tg.tasks.loading import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="what `fairseq-tg run` made")
    parser.add_argument("--data", required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=CONT_LR)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    recipe = Recipe(data=args.data, base=args.base, out=str(args.work), training=Training(seed=args.seed))
    record, _ = read_base(args.base)
    _, task = load_model(args.base, args.data)
    first = max(TRIED, key=lambda name: validation_score(args.work / name / "actor" / BEST))
    corpora = [(first, lists_directory(args.work, 1) if first == TRIED[0] else args.work / f"pseudo-{first}")]
    for number in range(2, 10):
        if lists_directory(args.work, number).is_dir():
            corpora.append((TRIED[0], lists_directory(args.work, number)))
    start: Optional[Path] = None
    done: List[Trained] = []
    for number, (selection, data) in enumerate(corpora, start=1):
        training = replace(of_all(recipe.training_on(selection).of_family(record.family)), lr=args.lr)
        manifest = CorpusDirectory(str(data)).manifest
        assert manifest is not None, f"{data} is not finished"
        out = args.work / "cont" / f"round-{number}"
        job = Job(training, args.base, record, task, data, corpus_hash(manifest), out, start=start)
        start = job.run(args.threads)
        done.append(Trained(validation_score(start), start))
        print(f"cont., round {number} on {data}: greedy BLEU on the validation set {done[-1].score:.2f}", flush=True)
    shutil.copyfile(max(done, key=lambda one: one.score).checkpoint, args.work / "cont" / BEST)


if __name__ == "__main__":
    main()
