"""How much of beam search's gain a system recovers, how far it is from another, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from sacrebleu.metrics import BLEU

from fairseq_tg.tokenizers import USUAL

SAMPLES = 1000  # of a bootstrap
SEED = 12345  # sacreBLEU's own
DOUBTFUL = 0.025  # samples without a gain of the beam, from which on an interval without them says little

#: Systems by name, each what one gives or the mean of several, as of seeds
Groups = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Share:
    """(system - greedy) / (beam - greedy) in BLEU, over one set or the gains of several together.

    The interval is of 95%: sentences of each set are drawn anew, with all their translations, so that both gains vary
    together. Without a gain of the beam there is no share; where samples have none, the interval leaves them out, and
    `doubtful` is how many there are of them.
    """

    gain: float  # of the beam, summed over the sets
    value: Optional[float] = None
    low: Optional[float] = None
    high: Optional[float] = None
    doubtful: float = 0.0

    def __str__(self) -> str:
        if self.value is None:
            return "none: the beam gains nothing"
        doubt = f"; {self.doubtful:.0%} of the samples have no gain" if self.doubtful > DOUBTFUL else ""
        interval = "" if self.low is None else f" ({self.low:.2f} to {self.high:.2f}{doubt})"
        return f"{self.value:.2f}{interval}"


@dataclass(frozen=True)
class Difference:
    """Of a system to another in BLEU, the mean over several sets; the interval as that of a share."""

    value: float
    low: Optional[float] = None
    high: Optional[float] = None

    def __str__(self) -> str:
        interval = "" if self.low is None else f" ({self.low:+.2f} to {self.high:+.2f})"
        return f"{self.value:+.2f}{interval}"


def bleu_statistics(outputs: Sequence[str], references: Sequence[str], tokenizer: str = USUAL) -> np.ndarray:
    """What BLEU is made of, for each sentence: both lengths, matches and n-grams of each order. N x 10."""
    # A single sentence is to have an effective order; its counts are the same
    metric = BLEU(effective_order=True, tokenize=tokenizer)
    found = [metric.sentence_score(output, [reference]) for output, reference in zip(outputs, references)]
    return np.array([[one.sys_len, one.ref_len, *one.counts, *one.totals] for one in found], dtype=np.int64)


def corpus_bleu(sums: np.ndarray) -> float:
    """sacreBLEU's corpus BLEU of statistics that were added up."""
    sys_len, ref_len, *rest = sums.tolist()
    return BLEU.compute_bleu(rest[:4], rest[4:], sys_len, ref_len, smooth_method="exp").score


def recovered_shares(
    statistics: Mapping[str, np.ndarray], sets: Sequence[Sequence[int]], groups: Groups, beam: str = "beam 4"
) -> Dict[str, Share]:
    """The share of each group of systems, pooled over sets of sentences.

    Args:
        statistics: of `greedy`, of `beam` and of the systems, for all sentences.
        sets: the sentences of each set.
    """
    found, samples = _bootstrap(statistics, [["greedy"], [beam], *groups.values()], sets)
    return {name: _share(found, samples, 2 + index) for index, name in enumerate(groups)}


def differences(
    statistics: Mapping[str, np.ndarray], sets: Sequence[Sequence[int]], groups: Groups, others: Sequence[str]
) -> Dict[str, Difference]:
    """How far each group is from the mean of others. The arguments are those of `recovered_shares`."""
    found, samples = (each / len(sets) for each in _bootstrap(statistics, [others, *groups.values()], sets))
    further, drawn = found[1:] - found[0], samples[:, 1:] - samples[:, :1]
    intervals = np.percentile(drawn, [2.5, 97.5], axis=0).T if len(drawn) else [()] * len(groups)
    return {
        name: Difference(float(value), *map(float, interval))
        for name, value, interval in zip(groups, further, intervals)
    }


def _bootstrap(
    statistics: Mapping[str, np.ndarray], groups: Sequence[Sequence[str]], sets: Sequence[Sequence[int]]
) -> Tuple[np.ndarray, np.ndarray]:
    """Mean BLEU of every group, summed over the sets: of all sentences, and of every sample. groups, S x groups."""
    generator = np.random.default_rng(SEED)
    names = list(dict.fromkeys(name for group in groups for name in group))
    found, samples = np.zeros((1, len(names))), np.zeros((SAMPLES, len(names)))
    for one in sets:
        found += _scores(statistics, names, np.ones((1, len(one)), dtype=np.int64), one)
        samples += _scores(statistics, names, generator.multinomial(len(one), [1 / len(one)] * len(one), SAMPLES), one)
    if max(map(len, sets)) < 2:
        samples = samples[:0]  # one sentence is all that can be drawn
    shares = np.array([[name in group for group in groups] for name in names]) / [len(group) for group in groups]
    return found[0] @ shares, samples @ shares


def _scores(
    statistics: Mapping[str, np.ndarray], names: List[str], draws: np.ndarray, sentences: Sequence[int]
) -> np.ndarray:
    """BLEU of every system for every draw (how often each sentence was drawn). draws: S x N -> S x systems."""
    sums = [draws @ statistics[name][np.asarray(sentences)] for name in names]
    return np.array([[corpus_bleu(row) for row in of_system] for of_system in sums]).T


def _share(found: np.ndarray, samples: np.ndarray, system: int) -> Share:
    gain = float(found[1] - found[0])
    if gain <= 0:
        return Share(gain)
    value = float((found[system] - found[0]) / gain)
    if not len(samples):
        return Share(gain, value)
    gains = samples[:, 1] - samples[:, 0]
    kept = gains > 0
    low, high = np.percentile((samples[kept, system] - samples[kept, 0]) / gains[kept], [2.5, 97.5])
    return Share(gain, value, float(low), float(high), float(1 - kept.mean()))
