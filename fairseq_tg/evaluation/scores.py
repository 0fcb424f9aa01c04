"""Scores of systems on one test set: BLEU, chrF, TER and METEOR, with signatures and significance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from fairseq_tg.edit_rate import WordTER
from fairseq_tg.errors import UserError
from fairseq_tg.objectives import get_objective
from fairseq_tg.tokenizers import OF_CHARACTERS, USUAL

SAMPLES = 1000  # of a bootstrap


@dataclass(frozen=True)
class Scores:
    """Of all systems: each metric's score, and the p-value of its difference from each baseline."""

    values: Dict[str, Dict[str, float]]  # system -> metric -> score
    p_values: Dict[str, Dict[str, Dict[str, Optional[float]]]]  # baseline -> system -> metric -> p
    signatures: Dict[str, str]
    lengths: Dict[str, float]  # of a system's words to the references', by BLEU's tokens: below 1, BLEU has a penalty


class OnceTER(WordTER):
    """TER whose statistics of the same translations are taken once: they are most of a report's scoring time."""

    def __init__(self, tokenizer: str, references: List[str]) -> None:
        super().__init__(tokenizer, references)
        self._known: Dict[Tuple[str, ...], Any] = {}

    def _extract_corpus_statistics(self, hypotheses: Sequence[str], references: Any) -> Any:
        key = tuple(hypotheses)
        if key not in self._known:
            self._known[key] = super()._extract_corpus_statistics(hypotheses, references)
        return self._known[key]


def score_systems(
    outputs: Mapping[str, Sequence[str]], references: List[str], baselines: Sequence[str], tokenizer: str = USUAL
) -> Scores:
    """Score outputs (by system) against references; paired bootstrap resampling against each baseline.

    tokenizer: what words are counted by; of characters there is no TER.
    """
    metrics: Dict[str, Any] = {
        "BLEU": BLEU(references=[references], tokenize=tokenizer),
        "chrF": CHRF(references=[references]),
    }
    if tokenizer not in OF_CHARACTERS:
        metrics["TER"] = OnceTER(tokenizer, references)
    values: Dict[str, Dict[str, float]] = {}
    lengths = {}
    for name, output in outputs.items():
        scores = {metric_name: metric.corpus_score(list(output), None) for metric_name, metric in metrics.items()}
        values[name] = {metric_name: score.score for metric_name, score in scores.items()}
        if scores["BLEU"].ref_len:
            lengths[name] = scores["BLEU"].sys_len / scores["BLEU"].ref_len
    signatures = {name: str(metric.get_signature()) for name, metric in metrics.items()}
    try:
        meteor = get_objective("meteor", tokenizer)
    except UserError:
        meteor = None  # nltk is an extra: the rest can still be said
    if meteor is not None:
        for name, output in outputs.items():
            total = sum(meteor.score(hypothesis, reference) for hypothesis, reference in zip(output, references))
            values[name]["METEOR"] = 100 * total / len(references)
        signatures["METEOR"] = f"{meteor.signature}, mean of sentences"
    p_values = {baseline: _paired(outputs, metrics, baseline) for baseline in baselines}
    return Scores(values, p_values, signatures, lengths)


def _paired(
    outputs: Mapping[str, Sequence[str]], metrics: Mapping[str, Any], baseline: str
) -> Dict[str, Dict[str, Optional[float]]]:
    """p-values by all metrics against a baseline; none for a set too small to sample from."""
    others = [name for name in outputs if name != baseline]
    if len(outputs[baseline]) < 2 or not others:
        return {}
    named: List[Any] = [(name, list(outputs[name])) for name in [baseline, *others]]
    test = PairedTest(named, metrics, references=None, test_type="bs", n_samples=SAMPLES)
    results: Any = test()[1]
    found = dict(zip(metrics, list(results.values())[1:]))  # after the systems' names; some have names of their own
    p_values: Dict[str, Dict[str, Optional[float]]] = {}
    for index, name in enumerate(others, start=1):
        # sacrebleu counts samples with a larger difference than there is: of none at all, it may find none larger
        p_values[name] = {
            metric: 1.0 if rows[index].score == rows[0].score else rows[index].p_value for metric, rows in found.items()
        }
    return p_values
