"""Noisy parallel approximate decoding (Cho, 2016), a baseline: several greedy searches, all but one of them with noise.

Before step t, noise of N(0, (s/t)^2) goes on the decoder's state: on the hidden state of every layer of an LSTM. A
Transformer and a ConvS2S have no recurrent state; there the input of the first layer gets it, which all later steps
see too. The translations of all chains are scored by the model without noise, and the best is given.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

import torch
from torch import Tensor

from fairseq_tg.decoding.fast_search import FastGenerator, Greedy


class NPADGenerator(FastGenerator):
    """fairseq's generator for a model that has a session.

    Args:
        chains: searches for each sentence; the first is greedy search itself.
        noise: the standard deviation of the noise before the first step.
        seed: of the noise.
    """

    def __init__(
        self, models: List[Any], *args: Any, chains: int = 4, noise: float = 0.3, seed: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(models, *args, **kwargs)
        self.chains = chains
        self.noise = noise
        self.chance = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def _generate(
        self,
        sample: Dict[str, Any],
        prefix_tokens: Optional[Tensor] = None,
        constraints: Optional[Tensor] = None,
        bos_token: Optional[int] = None,
    ) -> List[List[Dict[str, Tensor]]]:
        inputs = {
            name: sample["net_input"][name].repeat_interleave(self.chains, dim=0)  # chains of a sentence together
            for name in ("src_tokens", "src_lengths")
        }
        limit = min(int(self.max_len_a * inputs["src_tokens"].size(1) + self.max_len_b), self.max_len - 1)
        first = self.eos if bos_token is None else bos_token
        prefix = None if prefix_tokens is None else prefix_tokens.repeat_interleave(self.chains, dim=0)
        tokens = self._run_chains(inputs, limit, first, prefix)
        found = self._score(inputs, tokens, first)
        best = []
        for first in range(0, len(found), self.chains):
            chains = [self._finished(item, inputs["src_tokens"].device) for item in found[first : first + self.chains]]
            best.append([max(chains, key=lambda chain: chain["score"])])  # of equal ones the first: that without noise
        return best

    def _run_chains(
        self, inputs: Dict[str, Tensor], limit: int, first: int, prefix: Optional[Tensor]
    ) -> List[List[int]]:
        """What every chain gives, its end of sentence included."""
        assert self.session is not None
        session = self.session(self.translator, inputs, limit + 1)
        rows = inputs["src_tokens"].size(0)
        last = inputs["src_tokens"].new_full((rows,), first)
        chosen: List[Tensor] = []
        ended = torch.zeros(rows, dtype=torch.bool)
        for step in range(limit + 1):
            session.noise = self.noise_before(step, rows)
            last, _ = self._choose(session.step(last), step, limit, prefix)
            chosen.append(last)
            ended |= last.eq(self.eos)
            if ended.all():
                break
        return [_until(row, self.eos) for row in torch.stack(chosen, dim=1).tolist()]

    def noise_before(self, step: int, rows: int) -> Callable[[Tensor], Tensor]:
        """What puts noise on a state, rows x C, before a step that is counted from 0."""
        # rows x 1: none for the first chain of a sentence
        deviation = torch.arange(rows).remainder(self.chains).gt(0).unsqueeze(1) * (self.noise / (step + 1))
        return lambda state: state + deviation * torch.randn(state.shape, generator=self.chance, dtype=state.dtype)

    def _score(self, inputs: Dict[str, Tensor], chains: List[List[int]], first: int) -> List[Greedy]:
        """The log-probabilities of all tokens of all chains, which begin after `first`, by the model without noise."""
        longest = max(map(len, chains))
        targets = torch.full((len(chains), longest), self.pad)
        for row, tokens in enumerate(chains):
            targets[row, : len(tokens)] = torch.tensor(tokens)
        previous = targets.roll(1, dims=1)
        previous[:, 0] = first
        output = self.translator(**inputs, prev_output_tokens=previous)
        log_probs = self.translator.get_normalized_probs(output, log_probs=True)
        picked = log_probs.gather(2, targets.unsqueeze(2)).squeeze(2).tolist()
        return [Greedy(tokens, scores[: len(tokens)]) for tokens, scores in zip(chains, picked)]


def _until(tokens: List[int], eos: int) -> List[int]:
    """The tokens up to the end of sentence, with it."""
    return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens
