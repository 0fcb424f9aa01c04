"""Plain beam search at full speed, for whoever asks fairseq for it.

`FastGenerator` is a SequenceGenerator and gives what that gives: hypotheses in order, with tokens, scores and
scores of tokens. On a CPU the native engine searches. What it cannot do (a GPU, half precision, a model that is being
trained) is done by the session of the model's family if it is greedy search, else as fairseq does it.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_tg.compiled.engine import Engine, SearchSettings
from fairseq_tg.compiled.extract import make_engine, unsupported
from fairseq_tg.compiled.library import EngineError
from fairseq_tg.decoding import fconv_session, lstm_session, transformer_session  # noqa: F401 (registers sessions)
from fairseq_tg.decoding.sessions import find_session
from fairseq_tg.errors import UserError
from fairseq_tg.loading.one_copy import is_float_on_cpu

#: Finished sentences are dropped from a batch when at most this share of it is left to do: dropping copies caches.
KEEP_SHARE = 0.75


#: With the state of the weights that they are of
_ENGINES: WeakKeyDictionary[Any, Tuple[List[Tuple[int, int]], Engine]] = WeakKeyDictionary()


class Greedy(NamedTuple):
    """What a session found: tokens, ending with eos, and their log-probabilities."""

    tokens: List[int]
    scores: List[float]


def is_plain(models: List[Any], args: Any, **more: Any) -> bool:
    """Whether `build_generator` was asked for plain beam search with one model that can be searched faster."""
    extra = dict(more.pop("extra_gen_cls_kwargs", None) or {})
    extra.pop("lm_weight", None)
    if any(value is not None for value in extra.values()):  # a language model, another eos, tokens to suppress
        return False
    if any(value is not None for value in more.values()):
        return False
    plain = {
        "temperature": 1.0,
        "no_repeat_ngram_size": 0,
        "diverse_beam_groups": -1,
        "lm_path": None,
        "replace_unk": None,  # wants attention weights
        "prefix_allowed_tokens_fn": None,
    }
    if any(getattr(args, name, value) != value for name, value in plain.items()):
        return False
    if getattr(args, "diversity_rate", -1) > -1:
        return False
    others = ("sampling", "constraints", "match_source_len", "print_alignment", "score_reference", "retain_dropout")
    if any(getattr(args, name, False) for name in others):
        return False
    if len(models) != 1:
        return False
    by_session = getattr(args, "beam", 5) == 1 and find_session(models[0]) is not None
    return by_session or unsupported(models[0]) is None


def shared_engine(model: Any) -> Engine:
    """The engine of a model, a copy of its weights: one for all searches, as long as these are the same."""
    state = [(tensor.data_ptr(), tensor._version) for tensor in model.parameters()]
    made = _ENGINES.get(model)
    if made is None or made[0] != state:
        made = _ENGINES[model] = state, make_engine(model)
    return made[1]


class FastGenerator(SequenceGenerator):
    """fairseq's generator for plain beam search with a model that the engine knows, or greedy search with a session."""

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
        found = self._run_engine(source, limit, prefix_tokens, first)
        if found is not None:
            return found
        if self.beam_size > 1 or self.session is None:
            return super()._generate(sample, prefix_tokens, constraints, bos_token)
        greedy = self._run_session(sample["net_input"], limit, prefix_tokens, first)
        return [[self._finished(item, source.device)] for item in greedy]

    def _finished(self, found: Greedy, device: torch.device) -> Dict[str, Tensor]:
        scores = torch.tensor(found.scores, device=device)
        score = scores.sum()
        if self.normalize_scores:
            score = score / len(found.scores) ** self.len_penalty
        return _hypothesis(torch.tensor(found.tokens, device=device), score, scores)

    # By the native engine

    def _run_engine(
        self, source: Tensor, limit: int, prefix: Optional[Tensor], first: int
    ) -> Optional[List[List[Dict[str, Tensor]]]]:
        engine = self._find_engine()
        if engine is None or source.size(1) > engine.layout.source_positions:
            return None
        sources = [[token for token in row if token != self.pad] for row in source.tolist()]
        if not all(sources):
            return None
        settings = SearchSettings(
            beam=self.beam_size,
            min_length=self.min_len,
            unk_penalty=self.unk_penalty,
            length_penalty=self.len_penalty,
            normalize=self.normalize_scores,
            first=first,
            end=self.eos,
        )
        prefixes = None if prefix is None else prefix.numpy().astype(np.int32)
        found = engine.search(sources, [limit] * len(sources), settings, torch.get_num_threads(), prefixes)
        return [
            [_hypothesis(torch.tensor(h.tokens), torch.tensor(h.score), torch.tensor(h.positional)) for h in hypotheses]
            for hypotheses in found
        ]

    def _find_engine(self) -> Optional[Engine]:
        # The engine has a copy of the weights: not for a model that is still being trained
        if not self._engine_tried and getattr(self.translator, "_is_generation_fast", False):
            self._engine_tried = True
            if is_float_on_cpu(self.translator) and unsupported(self.translator) is None:
                try:
                    self._engine = shared_engine(self.translator)
                except EngineError:  # not built here: sessions do it, too
                    self._engine = None
        return self._engine

    # By a session

    def _run_session(
        self, net_input: Dict[str, Tensor], limit: int, prefix: Optional[Tensor], first: int
    ) -> List[Greedy]:
        assert self.session is not None
        session = self.session(self.translator, net_input, limit + 1)
        batch = net_input["src_tokens"].size(0)
        found = [Greedy([], []) for _ in range(batch)]
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
            tokens = self._pick(logits)
            if in_prefix:
                assert prefix is not None
                tokens = torch.where(prefix[:, step] != self.pad, prefix[:, step], tokens)
        return tokens, logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - normalizer

    def _pick(self, logits: Tensor) -> Tensor:
        """logits: B x V, -inf where a token may not be -> the next tokens."""
        return logits.argmax(dim=1)


def _hypothesis(tokens: Tensor, score: Tensor, positional: Tensor) -> Dict[str, Tensor]:
    return {
        "tokens": tokens,
        "score": score,
        "attention": torch.empty(0),
        "alignment": torch.empty(0),
        "positional_scores": positional,
    }
