"""The oracle: beam search, the objective of every hypothesis, and the selection, in place of fairseq's generator."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

import torch
from torch import Tensor

from fairseq_tg.corpus.blocks import Hypothesis, Sentence
from fairseq_tg.corpus.build import Build
from fairseq_tg.corpus.engines import Search
from fairseq_tg.corpus.selection import Scored, Selection, expected_scores
from fairseq_tg.objectives import Objective, score_hypothesis, score_list, score_pairs


class OracleGenerator:
    """Gives fairseq-generate the chosen hypotheses, and every k-best list to the build.

    What the build knows already is not decoded again.

    Args:
        search: finds the k-best lists.
        greedy: finds the base's greedy output, for the selections that need it.
        objective: the one that a sentence's hypotheses are scored by.
        to_text: makes words of dictionary ids; of those of a reference, if its second argument says so.
        task: says what of a target are its words.
        keeps_greedy: the greedy output is kept with the list, whatever the selection needs.
        keeps_sources: what was translated is kept with its list, as it is not what the data has.
    """

    def __init__(
        self,
        build: Build,
        search: Search,
        greedy: Search,
        objective: Callable[[int], Objective],
        selection: Selection,
        to_text: Callable[..., str],
        task: Any,
        keeps_sources: bool = False,
        keeps_greedy: bool = False,
    ) -> None:
        self.build = build
        self.search = search
        self.greedy = greedy
        self.objective = objective
        self.selection = selection
        self.to_text = to_text
        self.task = task
        self.padding_idx = task.target_dictionary.pad()
        self.eos = task.target_dictionary.eos()
        self.symbols_to_strip_from_output = {self.eos, *task.marks}  # where fairseq-generate prints references
        self.keeps_sources = keeps_sources
        self.needs_greedy = selection.needs_greedy or keeps_greedy

    @torch.no_grad()
    def generate(self, models: List[Any], sample: Dict[str, Any], **kwargs: Any) -> List[List[Dict[str, Any]]]:
        ids = sample["id"].tolist()
        known = [self.build.known(i) for i in ids]
        own = all(own and sentence is not None for sentence, own in known)
        greedy: List[Optional[Hypothesis]] = [None] * len(ids)
        if self.needs_greedy and not own:
            greedy = [hypotheses[0] for hypotheses in self.greedy(models, sample, **kwargs)]
        stored = [sentence for sentence, _ in known]
        if self.build.refreshes and not own:
            stored = [s if s is not None and is_same(s.greedy, now) else None for s, now in zip(stored, greedy)]
        lists = self._find_lists(models, sample, stored, **kwargs)
        outputs = []
        for row, (sentence_id, hypotheses) in enumerate(zip(ids, lists)):
            earlier = stored[row]
            if own and earlier is not None:
                sentence = earlier
            else:
                target = sample["target"]
                reference = None if target is None else self.to_text(self._ids(target[row]), True)
                sentence = self.judge(sentence_id, hypotheses, reference, greedy[row])
                sentence.kept = True if self.build.refreshes and earlier is not None else None
                if self.keeps_sources:
                    sentence.source = self._ids(sample["net_input"]["src_tokens"][row])
            outputs.append([self._as_fairseq(h) for h in _chosen_first(sentence)])
            self.build.add(sentence)
        return outputs

    def _find_lists(
        self, models: List[Any], sample: Dict[str, Any], stored: List[Optional[Sentence]], **asked: Any
    ) -> List[List[Hypothesis]]:
        """The lists that are stored, and of the other sentences those that are found now."""
        missing = [row for row, sentence in enumerate(stored) if sentence is None]
        found: List[List[Hypothesis]] = []
        if missing:
            self.build.ask([int(sample["id"][row]) for row in missing])
            if len(missing) < len(stored):
                sample = take_rows(sample, missing)
                asked = {name: value[missing] if isinstance(value, Tensor) else value for name, value in asked.items()}
            found = self.search(models, sample, **asked)
        searched = iter(found)
        return [next(searched) if sentence is None else sentence.hypotheses for sentence in stored]

    def judge(
        self, sentence_id: int, hypotheses: List[Hypothesis], reference: Optional[str], greedy: Optional[Hypothesis]
    ) -> Sentence:
        """Score a k-best list and choose from it."""
        texts, objective = [h.text for h in hypotheses], self.objective(sentence_id)
        if self.selection.needs_reference:
            assert reference is not None
            scores = score_list(objective, texts, reference, sentence_id)
            if greedy is not None:
                greedy.objective = score_hypothesis(objective, greedy.text, reference, sentence_id)
        else:
            pairs = score_pairs(objective, texts, sentence_id)
            scores = expected_scores([h.log_prob for h in hypotheses], pairs)
        for hypothesis, score in zip(hypotheses, scores):
            hypothesis.objective = score
        chosen = self.selection.choose(Scored(scores, greedy.objective if greedy else None))
        skipped = None if chosen or self.selection.adds_gold else "nothing chosen: no hypothesis is better than greedy"
        return Sentence(sentence_id, hypotheses, chosen, greedy, skipped)

    def _as_fairseq(self, hypothesis: Hypothesis) -> Dict[str, Any]:
        """A hypothesis as fairseq's generators give it; the scores of its tokens are not kept."""
        return {
            "tokens": torch.tensor([*hypothesis.tokens, self.eos], dtype=torch.long),
            "score": hypothesis.score,
            "alignment": torch.empty(0),
            "positional_scores": torch.empty(0),
        }

    def _ids(self, tokens: Tensor) -> List[int]:
        return self.task.strip([token for token in tokens.tolist() if token != self.padding_idx])


def is_same(one: Optional[Hypothesis], other: Optional[Hypothesis]) -> bool:
    """Whether two translations are known and the same."""
    return one is not None and other is not None and one.tokens == other.tokens


def take_rows(sample: Dict[str, Any], rows: List[int]) -> Dict[str, Any]:
    """Some sentences of a batch."""
    taken = {name: value[rows] if isinstance(value, Tensor) else value for name, value in sample.items()}
    inputs = sample["net_input"]
    taken["net_input"] = {name: value[rows] if isinstance(value, Tensor) else value for name, value in inputs.items()}
    return taken


def _chosen_first(sentence: Sentence) -> List[Hypothesis]:
    """What fairseq-generate prints: the chosen hypotheses; the first of the beam where none was chosen."""
    return [sentence.hypotheses[rank] for rank in sentence.chosen] or sentence.hypotheses[:1]
