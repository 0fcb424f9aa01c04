"""`fairseq-tg ablate method`: ways to decode better than greedily, each over several seeds: quality, speed, stability.

The paper's method stands beside what it is compared with: beam search, NPAD (Cho, 2016), actors that learn by policy
gradient as those of Gu et al. (2017) do, and `cont.`, the whole base trained on the same corpus.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Tuple

from fairseq_tg.evaluation.batches import by_length, translate_all
from fairseq_tg.evaluation.measure import Spread, Turns, ratio, take_turns
from fairseq_tg.evaluation.plots import dots
from fairseq_tg.evaluation.scores import Scores, score_systems
from fairseq_tg.evaluation.subset import Subset
from fairseq_tg.evaluation.systems import System, build
from fairseq_tg.evaluation.tables import Progress, Section, as_text, in_words, versions, write
from fairseq_tg.models.record import Base
from fairseq_tg.recipe.corpora import build_corpus, corpus_hash, hash_originals
from fairseq_tg.recipe.options import Ablation, Training
from fairseq_tg.recipe.training import Job, count_updates

BEAM = 4  # also the chains of NPAD: as many hypotheses
TURNS, BATCH = 3, 32
#: Of `cont.`: that of fine-tuning
CONT_LR = 5e-4
#: A policy gradient is noisy: its steps are smaller than with cross-entropy
POLICY_LR = 1e-3
#: As the paper trains actors: in the place of a recipe's own training
PAPERS: Dict[str, Any] = {
    "actor_rank": 0,
    "actor_sites": "attention",
    "lr": 3e-3,
    "criterion": "actor_cross_entropy",
    "base_dropout": False,
}
METHODS = ("greedy", f"beam {BEAM}", f"NPAD {BEAM}", "paper's tg", "tg", "policy gradient", "cont.")


def of_all(usual: Training) -> Training:
    """`cont.`: the whole base trained on the pseudo corpus, as long as actors are."""
    return Training(actor="", lr=CONT_LR, seed=usual.seed, max_tokens=usual.max_tokens, epochs=usual.epochs)


@dataclass(frozen=True)
class Method:
    """A row of the table: the same but for a seed."""

    name: str
    systems: Dict[str, System]  # by their names


def compare_methods(
    recipe: Ablation, base: Base, task: Any, subset: Subset, only: Tuple[str, ...]
) -> Tuple[Scores, str]:
    """Do what is not done of the trainings, translate and time; gives the scores and a table, which are written too."""
    methods = [_method(name, recipe, base, task) for name in METHODS if name in only]
    texts, turns = _translate(methods, subset, task.target_dictionary.eos())
    assert subset.references is not None
    scores = score_systems(texts, subset.references, ["greedy"], subset.tokenizer)
    table = _table(recipe, methods, scores, turns)
    means = [(m.name, statistics.mean(bleus(m, scores))) for m in methods if m.name != "greedy"]
    content: Dict[str, Any] = {"values": scores.values, "p_values": scores.p_values, "signatures": scores.signatures}
    content["tokens_per_second"] = {name: turn.tokens_per_second() for name, turn in turns.items()}
    figure = dots(means, scores.values["greedy"]["BLEU"], "BLEU, mean of seeds", "method")
    files = {"txt": table, "json": content, "png": figure}
    write(Path(recipe.out), {f"ablation-method.{suffix}": data for suffix, data in files.items()})
    return scores, table


def _method(name: str, recipe: Ablation, base: Base, task: Any) -> Method:
    plain = System(name, "fast", recipe.base, recipe.data, threads=recipe.workers, languages=recipe.languages)
    if name == "greedy":
        return Method(name, {name: plain})
    if name.startswith("beam"):
        return Method(name, {name: replace(plain, beam=BEAM)})
    systems = {}
    for seed in recipe.seeds:
        label = f"{name}, seed {seed}"
        system = replace(plain, name=label, seed=seed)
        if name.startswith("NPAD"):
            systems[label] = replace(system, kind="npad", beam=BEAM, noise=recipe.noise)
        else:
            systems[label] = replace(system, path=str(_train(name, seed, recipe, base, task)))
    return Method(name, systems)


def _train(name: str, seed: int, recipe: Ablation, base: Base, task: Any) -> Path:
    usual = replace(recipe.training, seed=seed).of_family(base.family)
    out = Path(recipe.out)
    pseudo = out / "pseudo-bin"
    digest = corpus_hash(build_corpus(recipe, task, pseudo))
    updates = count_updates(pseudo, usual)
    data, training, more = pseudo, usual, []
    if name == "cont.":
        training = of_all(usual)
    elif name == "policy gradient":
        data = Path(recipe.data)
        digest = hash_originals(data, task)
        training = replace(usual, lr=POLICY_LR, criterion="actor_cross_entropy")  # whose place the other takes
        more = ["--criterion", "actor_policy_gradient"]
        more += ["--reward", recipe.objective]
    elif name == "paper's tg":
        training = replace(usual, **PAPERS)
    print(f"== {name}, seed {seed}")
    label = name.replace(" ", "-").replace("'", "").rstrip(".")
    directory = out / "cells" / f"method-{label}-{seed}"
    job = Job(training, recipe.base, base, task, data, digest, directory, updates, recipe.text, more=more)
    checkpoint = job.run(recipe.workers)
    refined = replace(recipe, training=usual).refined()
    if name != "tg" or refined is None:
        return checkpoint
    directory = directory.with_name(f"{directory.name}-refined")
    return replace(job, training=refined, directory=directory, updates=None, start=checkpoint).run(recipe.workers)


def _translate(methods: List[Method], subset: Subset, eos: int) -> Tuple[Dict[str, List[str]], Dict[str, Turns]]:
    """The words that every system gives, and the times of the first of every method, taken in turns."""
    say = Progress()
    timed = {method.name: build(next(iter(method.systems.values()))) for method in methods}
    batches = by_length([len(source) for source in subset.sources], BATCH)
    turns = take_turns(timed, subset.sources, batches, TURNS, eos, say)
    texts: Dict[str, List[str]] = {}
    for method in methods:
        for number, (label, system) in enumerate(method.systems.items()):
            # (noise is drawn anew in every turn: those of NPAD are translated again, from the seed)
            reused = number == 0 and system.kind != "npad"
            tokens = turns[method.name].outputs if reused else translate_all(build(system), subset.sources, say, label)
            texts[label] = [subset.words(sentence) for sentence in tokens]
    say.end()
    return texts, turns


def bleus(method: Method, scores: Scores) -> List[float]:
    return [scores.values[label]["BLEU"] for label in method.systems]


def _table(recipe: Ablation, methods: List[Method], scores: Scores, turns: Dict[str, Turns]) -> str:
    metrics = list(scores.signatures)
    greedy = scores.values["greedy"]["BLEU"]
    rows = []
    for method in methods:
        found = bleus(method, scores)
        means = [statistics.mean(scores.values[label][metric] for label in method.systems) for metric in metrics]
        several = len(found) > 1
        speed, times = Spread.of(turns[method.name].tokens_per_second()), ratio(turns[method.name], turns["greedy"])
        rows.append(
            [
                method.name,
                *(f"{mean:.2f}" for mean in means),
                f"{min(found):.2f} to {max(found):.2f}" if several else "",
                f"{statistics.stdev(found):.2f}" if several else "",
                f"{sum(bleu < greedy for bleu in found)} of {len(found)}" if several else "",
                f"{speed.median:,.0f}",
                "" if times is None else f"{times.median:.2f}",
            ]
        )
    header = ["method", *metrics, "BLEU of seeds", "s.d.", "below greedy", "tokens/s", "times greedy"]
    seeds = ", ".join(map(str, recipe.seeds))
    notes = [
        f"translations of {recipe.subset}; means of the seeds {seeds}; median speed of {TURNS} turns on "
        f"{recipe.workers} threads",
        f"NPAD: {BEAM} chains, noise of {recipe.noise:g}/t before step t; its chains are searched in torch",
        *(f"{name}: {signature}" for name, signature in scores.signatures.items()),
    ]
    return as_text([Section(header=header, rows=rows, notes=[*notes, in_words(versions())])])
