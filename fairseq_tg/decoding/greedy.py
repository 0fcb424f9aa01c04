"""Greedy search at full speed, for whoever asks fairseq for a beam of one.

`GreedyGenerator` is a SequenceGenerator and gives what that gives: tokens, scores and positional scores. On a CPU
the native engine decodes; on a GPU, in half precision or during a training, the session of the model's family.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_tg.compiled.engine import Engine
from fairseq_tg.compiled.extract import extract, unsupported
from fairseq_tg.compiled.library import EngineError
from fairseq_tg.decoding import fconv_session, lstm_session, transformer_session  # noqa: F401 (registers sessions)
from fairseq_tg.decoding.sessions import find_session
from fairseq_tg.errors import UserError

#: Finished sentences are dropped from a batch when at most this share of it is left to do: dropping copies caches.
KEEP_SHARE = 0.75


class Found(NamedTuple):
    """A translation: its tokens, ending with eos, and their log-probabilities."""

    tokens: List[int]
    scores: List[float]


def is_greedy(models: List[Any], args: Any, **more: Any) -> bool:
    """Whether `build_generator` was asked for plain greedy search with one model that can be decoded faster."""
    extra = dict(more.pop("extra_gen_cls_kwargs", None) or {})
    extra.pop("lm_weight", None)
    if any(value is not None for value in extra.values()):  # a language model, another eos, tokens to suppress
        return False
    if any(value is not None for value in more.values()):
        return False
    plain = {
        "beam": 1,
        "temperature": 1.0,
        "no_repeat_ngram_size": 0,
        "diverse_beam_groups": -1,
        "lm_path": None,
        "replace_unk": None,  # wants attention weights
        "prefix_allowed_tokens_fn": None,
    }
    if any(getattr(args, name, value) != value for name, value in plain.items()) or getattr(args, "beam", 5) != 1:
        return False
    if getattr(args, "diversity_rate", -1) > -1:
        return False
    others = ("sampling", "constraints", "match_source_len", "print_alignment", "score_reference", "retain_dropout")
    if any(getattr(args, name, False) for name in others):
        return False
    return len(models) == 1 and find_session(models[0]) is not None


class GreedyGenerator(SequenceGenerator):
    """fairseq's generator for a beam of one, of a model that has a session."""

    def __init__(self, models: List[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(models, *args, **kwargs)
        self.translator = models[0]
        self.session = find_session(models[0])
        self._engine: Optional[Engine] = None
        self._engine_tried = False

    @torch.no_grad()
    def _generate(
        self,
        sample: Dict[str, Any],
        prefix_tokens: Optional[Tensor] = None,
        constraints: Optional[Tensor] = None,
        bos_token: Optional[int] = None,
    ) -> List[List[Dict[str, Tensor]]]:
        if constraints is not None:
            return super()._generate(sample, prefix_tokens, constraints, bos_token)
        source = sample["net_input"]["src_tokens"]
        # As in fairseq, the limit depends on the longest sentence of the batch
        limit = min(int(self.max_len_a * source.size(1) + self.max_len_b), self.max_len - 1)
        if self.min_len > limit:
            raise UserError(f"--min-len {self.min_len} is over the limit of {limit}: see --max-len-a and --max-len-b")
        first = self.eos if bos_token is None else bos_token
        found = None
        if first == self.eos:
            found = self._run_engine(source, limit, prefix_tokens)
        if found is None:
            found = self._run_session(sample["net_input"], limit, prefix_tokens, first)
        return [[self._hypothesis(item, source.device)] for item in found]

    def _hypothesis(self, found: Found, device: torch.device) -> Dict[str, Tensor]:
        scores = torch.tensor(found.scores, device=device)
        score = scores.sum()
        if self.normalize_scores:
            score = score / len(found.scores) ** self.len_penalty
        return {
            "tokens": torch.tensor(found.tokens, device=device),
            "score": score,
            "attention": torch.empty(0),
            "alignment": torch.empty(0),
            "positional_scores": scores,
        }

    # By the native engine

    def _run_engine(self, source: Tensor, limit: int, prefix: Optional[Tensor]) -> Optional[List[Found]]:
        engine = self._find_engine()
        if engine is None or source.size(1) > engine.layout.source_positions:
            return None
        sources = [[token for token in row if token != self.pad] for row in source.tolist()]
        if not all(sources):
            return None
        tokens, scores = engine.translate(
            sources,
            [limit] * len(sources),
            threads=torch.get_num_threads(),
            min_length=self.min_len,
            unk_penalty=self.unk_penalty,
            scores=True,
            prefixes=None if prefix is None else prefix.numpy().astype(np.int32),
        )
        assert scores is not None
        return [Found(*item) for item in zip(tokens, scores)]

    def _find_engine(self) -> Optional[Engine]:
        # The engine has a copy of the weights: not for a model that is still being trained
        if not self._engine_tried and getattr(self.translator, "_is_generation_fast", False):
            self._engine_tried = True
            parameters = list(self.translator.parameters())
            plain = all(p.device.type == "cpu" and p.dtype == torch.float32 for p in parameters)
            if plain and unsupported(self.translator) is None:
                try:
                    self._engine = Engine(*extract(self.translator))
                except EngineError:  # not built here: sessions do it, too
                    self._engine = None
        return self._engine

    # By a session

    def _run_session(
        self, net_input: Dict[str, Tensor], limit: int, prefix: Optional[Tensor], first: int
    ) -> List[Found]:
        assert self.session is not None
        session = self.session(self.translator, net_input, limit + 1)
        batch = net_input["src_tokens"].size(0)
        found = [Found([], []) for _ in range(batch)]
        rows = list(range(batch))  # of the session, as sentences of the batch
        active = set(rows)
        last = net_input["src_tokens"].new_full((batch,), first)
        for step in range(limit + 1):
            last, scores = self._choose(session.step(last), step, limit, None if prefix is None else prefix[rows])
            for sentence, token, score in zip(rows, last.tolist(), scores.tolist()):
                if sentence in active:
                    found[sentence].tokens.append(token)
                    found[sentence].scores.append(score)
                    if token == self.eos:
                        active.remove(sentence)
            if not active:
                break
            if len(active) <= KEEP_SHARE * len(rows):
                kept = torch.tensor([i for i, sentence in enumerate(rows) if sentence in active], device=last.device)
                rows = [sentence for sentence in rows if sentence in active]
                last = last[kept]
                session.keep(kept)
        return found

    def _choose(self, logits: Tensor, step: int, limit: int, prefix: Optional[Tensor]) -> tuple[Tensor, Tensor]:
        """logits: B x V -> the next tokens and their log-probabilities, by fairseq's rules."""
        logits = logits.float()
        normalizer = logits.logsumexp(dim=1)
        logits[:, self.pad] = -torch.inf
        if self.unk_penalty:
            logits[:, self.unk] -= self.unk_penalty
        if step >= limit:
            tokens = torch.full_like(normalizer, self.eos, dtype=torch.long)
        else:
            in_prefix = prefix is not None and step < prefix.size(1)
            if not in_prefix and step < self.min_len:
                logits[:, self.eos] = -torch.inf
            tokens = logits.argmax(dim=1)
            if in_prefix:
                assert prefix is not None
                tokens = torch.where(prefix[:, step] != self.pad, prefix[:, step], tokens)
        return tokens, logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - normalizer
