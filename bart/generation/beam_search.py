"""Beam search as a state machine: it takes scores and gives choices, and knows nothing of models or text.

Shapes: B articles, K beams, R = B·K rows, V vocabulary, T the greatest length, t ids so far (the start token included),
C candidates per article, of which the first K are "the top".

Invariant: after every step beam k of article b is the open hypothesis ``tokens[b, k, :t]`` with the sum of
log-probabilities ``scores[b, k]``, it holds no EOS, and the decoder row ``rows[b, k]`` has to have read it. Finished
hypotheses are kept apart: the K best of each article, best first, scored with the length penalty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

# The score of what must not win. Finite, as in transformers: where nothing else is left it still ranks above -inf.
_HOPELESS = -1.0e9


def draw(scores: Tensor, count: int) -> Tensor:
    """Draw ``count`` different columns (N, count) of each row of scores (N, V), with probabilities softmax(scores).

    A row whose columns are all banned (-inf) draws from all of them; like arg-max and top-k there, it has to return
    something.
    """
    nothing_left = scores.amax(dim=1, keepdim=True) == -torch.inf
    return torch.multinomial(scores.masked_fill(nothing_left, 0.0).softmax(dim=1), count)


@dataclass
class Hypotheses:
    """N hypotheses of each article.

    Attributes:
        tokens: (B, N, T) ids, padded after the last one.
        parents: (B, N, T - 1); the row that held the hypothesis when id i + 1 was chosen, -1 after the last id.
        scores: (B, N).
        finished: (B, N) bool; false for hypotheses that go on and for places not taken yet.
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor
    finished: Tensor

    def take(self, index: Tensor) -> Hypotheses:
        """Hypotheses index[b, m] (B, M) of each article b."""
        return Hypotheses(
            self.tokens.gather(1, index[:, :, None].expand(-1, -1, self.tokens.shape[2])),
            self.parents.gather(1, index[:, :, None].expand(-1, -1, self.parents.shape[2])),
            self.scores.gather(1, index),
            self.finished.gather(1, index),
        )

    @staticmethod
    def join(parts: Sequence[Hypotheses]) -> Hypotheses:
        """The hypotheses of all parts, article by article."""
        return Hypotheses(
            torch.cat([part.tokens for part in parts], dim=1),
            torch.cat([part.parents for part in parts], dim=1),
            torch.cat([part.scores for part in parts], dim=1),
            torch.cat([part.finished for part in parts], dim=1),
        )


class BeamSearch:
    """Beam search over a batch of articles, with the choices of transformers 5's ``generate(num_beams=K)``.

    Args:
        rows: (B, K) decoder row of each beam; its device is that of all state.
        max_length: T, at least 2.
        start_token_id: first id of every hypothesis.
        pad_token_id: fills hypotheses after their end.
        eos_ids: (n,) ids that end a hypothesis; may be empty.
        length_penalty, early_stopping: as in GenerationConfig.
        sample: draw candidates without replacement instead of taking the best.
    """

    def __init__(
        self,
        rows: Tensor,
        max_length: int,
        *,
        start_token_id: int,
        pad_token_id: int,
        eos_ids: Tensor,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        sample: bool = False,
    ) -> None:
        self.rows = rows
        self.max_length = max_length
        self.pad_token_id = pad_token_id
        self.eos_ids = eos_ids
        self.length_penalty = length_penalty
        self.early_stopping = early_stopping
        self.sample = sample
        self.length = 1

        tokens = rows.new_full((*rows.shape, max_length), pad_token_id)
        tokens[:, :, 0] = start_token_id
        parents = rows.new_full((*rows.shape, max_length - 1), -1)
        hopeless = torch.full(rows.shape, _HOPELESS, dtype=torch.float32, device=rows.device)
        unfinished = torch.zeros_like(rows, dtype=torch.bool)
        self.finished = Hypotheses(tokens, parents, hopeless, unfinished)
        # All beams start alike: only the first may be extended, or they would stay alike.
        self.open = Hypotheses(tokens, parents, hopeless.index_fill(1, rows.new_zeros(1), 0.0), unfinished)
        # (B, 1): whether the finished hypotheses of an article may still change.
        self.active = torch.ones_like(unfinished[:, :1])

    @property
    def prefixes(self) -> Tensor:
        """(R, t) ids of the open hypotheses."""
        return self.open.tokens[:, :, : self.length].flatten(0, 1)

    def step(self, scores: Tensor) -> Tensor:
        """Choose the next id of every beam.

        Args:
            scores: (R, V) log-probabilities of the next id, after all rules.

        Returns:
            (B, K) the row whose decoder state each beam goes on from.
        """
        candidates = self._extend(scores.view(*self.rows.shape, -1))
        self.finished = self._collect(candidates, self._eligible(candidates))
        self.open = self._next_open(candidates)
        self.active &= self._attainable(candidates) > self.finished.scores.amin(dim=1, keepdim=True)
        if self.early_stopping is True:
            self.active &= ~self.finished.finished.all(dim=1, keepdim=True)
        self.length += 1
        return self.open.parents[:, :, self.length - 2]

    def _extend(self, scores: Tensor) -> Hypotheses:
        """The C most likely extensions of the open hypotheses by one id; ``finished`` says which of them end there.

        Each beam gets one place more than there are EOS ids, so that K extensions remain open whatever ends.
        """
        vocab_size = scores.shape[2]
        count = max(2, len(self.eos_ids) + 1) * self.rows.shape[1]
        sums = (scores + self.open.scores[:, :, None]).flatten(1)  # (B, K·V)
        if self.sample:
            flat = draw(sums, count)
            sums = sums.gather(1, flat)
        else:
            sums, flat = sums.topk(count)
        beams, ids = flat // vocab_size, flat % vocab_size

        extended = self.open.take(beams)
        extended.tokens[:, :, self.length] = ids
        extended.parents[:, :, self.length - 1] = self.rows.gather(1, beams)
        last = self.length + 1 == self.max_length
        finished = torch.ones_like(ids, dtype=torch.bool) if last else torch.isin(ids, self.eos_ids)
        return replace(extended, scores=sums, finished=finished)

    def _eligible(self, candidates: Hypotheses) -> Tensor:
        """(B, C) bool: the candidates that finish here. Those below the top only stand by to stay open."""
        eligible = candidates.finished & self.active
        eligible[:, self.rows.shape[1] :] = False
        return eligible

    def _next_open(self, candidates: Hypotheses) -> Hypotheses:
        """The K best candidates that do not end."""
        open_scores = candidates.scores + candidates.finished * _HOPELESS
        best = open_scores.topk(self.rows.shape[1]).indices
        return replace(candidates, scores=open_scores).take(best)

    def _collect(self, candidates: Hypotheses, eligible: Tensor) -> Hypotheses:
        """The K best of the finished hypotheses and the eligible candidates."""
        scores = candidates.scores / self.length**self.length_penalty + ~eligible * _HOPELESS
        both = Hypotheses.join([self.finished, replace(candidates, scores=scores, finished=eligible)])
        return both.take(both.scores.topk(self.rows.shape[1]).indices)

    def _attainable(self, candidates: Hypotheses) -> Tensor:
        """(B, 1) the score that the article's open hypotheses are taken to be able to reach."""
        return self.open.scores[:, :1] / self._assumed_length() ** self.length_penalty

    def _assumed_length(self) -> int:
        longer_is_better = self.early_stopping == "never" and self.length_penalty > 0
        return self.max_length - 1 if longer_is_better else self.length


class DiverseBeamGroup(BeamSearch):
    """One group of diverse beam search, with the choices of transformers 4 (its ``BeamSearchScorer``).

    It differs from BeamSearch in four places: an article is done when even its best *candidate*, ended or not, cannot
    improve it; open hypotheses are the best candidates in order of rank, however bad; with early stopping, hypotheses
    cut at max_length do not count if those that ended suffice; and a done article emits padding.
    """

    def _eligible(self, candidates: Hypotheses) -> Tensor:
        eligible = super()._eligible(candidates)
        if self.early_stopping is True and self.length + 1 == self.max_length:
            ended = eligible & self._ended(candidates)
            enough = (self.finished.finished.sum(1) + ended.sum(1) >= self.rows.shape[1])[:, None]
            eligible = torch.where(enough, ended, eligible)
        return eligible

    def _next_open(self, candidates: Hypotheses) -> Hypotheses:
        # In the last step too, when all candidates finish: later groups pay for these ids, and EOS is not among them.
        by_rank = self._ended(candidates).long().argsort(dim=1, stable=True)
        chosen = candidates.take(by_rank[:, : self.rows.shape[1]])
        chosen.tokens[:, :, self.length].masked_fill_(~self.active, self.pad_token_id)
        return chosen

    def _ended(self, candidates: Hypotheses) -> Tensor:
        """(B, C) bool: the candidates that took an EOS id, rather than being cut at max_length."""
        return torch.isin(candidates.tokens[:, :, self.length], self.eos_ids)

    def _attainable(self, candidates: Hypotheses) -> Tensor:
        return candidates.scores[:, :1] / self._assumed_length() ** self.length_penalty


def best_hypotheses(searches: Sequence[BeamSearch], count: int) -> Hypotheses:
    """The ``count`` best finished hypotheses of each article, best first, from the beam groups that searched it."""
    # Among equals the later group's comes first, as transformers has it.
    found = Hypotheses.join([search.finished for search in reversed(searches)])
    return found.take(found.scores.sort(dim=1, descending=True, stable=True).indices[:, :count])
