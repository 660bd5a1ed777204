"""The two ways to choose the next ids of the articles in a batch, `TokenSearch` and `BeamGroups`.

A search holds K hypotheses of each article. The loop of `schedule` asks it for the ids to read next, and gives it the
scores of the ids that may follow. Articles leave and join as rows of its state.

Shapes: B articles, K hypotheses per article, R = B·K decoder rows (row r belongs to article r // K), T the greatest
length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bart.configuration.configuration_generation import GenerationConfig
from bart.generation.beam_search import (
    BeamSearch,
    DiverseBeamGroup,
    Hypotheses,
    best_hypotheses,
    column,
    is_among,
    put_column,
)
from bart.generation.rules import Prefixes, Rule, diversity_penalties, draw


class TokenSearch:
    """Greedy search, or sampling: K independent sequences of each article."""

    def __init__(self, config: GenerationConfig, max_length: int, limits: Tensor) -> None:
        self.config = config
        self.max_length = max_length
        self.limits = limits  # (B, 2): the least and the greatest length of each article's sequences
        self.eos_ids = limits.new_tensor(config.eos_token_ids)
        count = config.num_return_sequences
        self.tokens = limits.new_full((len(limits), count, max_length), config.fill_token_id or 0)
        self.tokens[:, :, 0] = config.start_token_id
        self.lengths = torch.ones_like(limits[:, 0])
        self.unfinished = torch.ones_like(self.tokens[:, :, 0], dtype=torch.bool)
        self.ends = torch.ones_like(self.tokens[:, :, 0])  # (B, K): ids up to and including the last chosen one

    @property
    def last_ids(self) -> Tensor:
        """(B, K) the ids that the decoder reads next."""
        return column(self.tokens, self.lengths - 1)

    @property
    def active(self) -> Tensor:
        """(B,) bool: the articles whose result may still change."""
        return self.unfinished.any(dim=1)

    def step(
        self, scores: Tensor, rules: Sequence[Rule], shortest: int, longest: int, kept: list[Tensor] | None
    ) -> None:
        """Choose the next id of every hypothesis.

        Args:
            scores: (R, V) fp32, log-probabilities with beams, logits without; they may be overwritten.
            shortest, longest: bounds on the lengths of the articles' hypotheses. Tight bounds save computation.
            kept: a list to which the scores (R, V) after all rules are appended, or None.
        """
        count = self.tokens.shape[1]
        tokens = self.tokens[:, :, :longest].flatten(0, 1)
        lengths, limits = (each.repeat_interleave(count, dim=0) for each in (self.lengths, self.limits))
        prefixes = Prefixes(tokens, lengths, shortest, longest, limits)
        for rule in rules:
            scores = rule(prefixes, scores)
        if kept is not None:
            kept.append(scores)
        chosen = draw(scores, 1)[:, 0] if self.config.do_sample else scores.argmax(dim=1)
        chosen = chosen.view(-1, count)
        old = column(self.tokens, self.lengths)
        put_column(self.tokens, self.lengths, torch.where(self.unfinished, chosen, old))
        self.lengths = self.lengths + 1
        self.ends += self.unfinished
        self.unfinished &= ~is_among(chosen, self.eos_ids) & (self.lengths < self.limits[:, 1])[:, None]

    def results(self) -> Hypotheses:
        """The sequences to return for each article, (B, N, …)."""
        steps = torch.arange(1, self.max_length, device=self.tokens.device)
        numbers = torch.arange(self.tokens.shape[1], device=self.tokens.device)[:, None]
        parents = torch.where(steps < self.ends[:, :, None], numbers, -1)
        return Hypotheses(self.tokens, parents, torch.zeros_like(self.ends, dtype=torch.float32), ~self.unfinished)

    @property
    def state(self) -> list[Tensor]:
        """The tensors (B, …) that belong to the articles, and that only steps change; setting it replaces them."""
        return [self.tokens, self.lengths, self.unfinished, self.ends, self.limits]

    @state.setter
    def state(self, tensors: Sequence[Tensor]) -> None:
        self.tokens, self.lengths, self.unfinished, self.ends, self.limits = tensors


class BeamGroups:
    """Beam search, taking or sampling candidates; with several groups, diverse beam search.

    Properties and methods are those of `TokenSearch`.

    An article's beams are those of its first group, then of its second, and so on. In each step the groups choose one
    after the other, because a group is penalised for ids that earlier groups chose.
    """

    def __init__(self, config: GenerationConfig, max_length: int, limits: Tensor) -> None:
        self.config = config
        self.width = config.num_beams // config.num_beam_groups
        group = BeamSearch if config.num_beam_groups == 1 else DiverseBeamGroup
        firsts = range(0, config.num_beams, self.width)
        self.groups = [group(config, max_length, limits, first) for first in firsts]

    @property
    def last_ids(self) -> Tensor:
        return torch.cat([group.last_ids for group in self.groups], dim=1)

    @property
    def active(self) -> Tensor:
        return torch.cat([group.active for group in self.groups], dim=1).any(dim=1)

    def step(
        self, scores: Tensor, rules: Sequence[Rule], shortest: int, longest: int, kept: list[Tensor] | None
    ) -> Tensor:
        """Choose like `TokenSearch.step`; return (B, K), the hypothesis of its article that each one continues."""
        log_probs = scores.unflatten(0, (-1, len(self.groups), self.width))
        first = self.groups[0]
        lengths, limits = (each.repeat_interleave(self.width, dim=0) for each in (first.lengths, first.limits))
        after_rules, parents = [], []
        chosen = lengths.new_empty(len(log_probs), 0)
        for index, group in enumerate(self.groups):
            scores = log_probs[:, index]
            if index > 0:
                penalty = self.config.diversity_penalty
                scores = scores - diversity_penalties(chosen, penalty, scores.shape[-1])[:, None]
            scores = scores.flatten(0, 1)
            prefixes = Prefixes(group.open.tokens[:, :, :longest].flatten(0, 1), lengths, shortest, longest, limits)
            for rule in rules:
                scores = rule(prefixes, scores)
            if kept is not None:
                after_rules.append(scores.unflatten(0, (-1, self.width)))
            parents.append(group.step(scores))
            chosen = torch.cat((chosen, group.last_ids), dim=1)
        if kept is not None:
            kept.append(torch.cat(after_rules, dim=1).flatten(0, 1))
        return torch.cat(parents, dim=1)

    def results(self) -> Hypotheses:
        return best_hypotheses(self.groups, self.config.num_return_sequences)

    @property
    def state(self) -> list[Tensor]:
        return [tensor for group in self.groups for tensor in group.state]

    @state.setter
    def state(self, tensors: Sequence[Tensor]) -> None:
        count = len(tensors) // len(self.groups)
        for index, group in enumerate(self.groups):
            group.state = tensors[index * count : (index + 1) * count]


Search = TokenSearch | BeamGroups
