"""The two ways to choose the next ids of the articles in a batch: `TokenSearch`, and `beam_search.BeamSearch`.

The loop of `schedule` asks a search for the ids to read next, and gives it the scores of those that may follow.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bart.configuration.configuration_generation import GenerationConfig
from bart.generation.beam_search import BeamSearch, Hypotheses, column, is_among, put_column
from bart.generation.hooks import Stops
from bart.generation.rules import draw


class TokenSearch:
    """Greedy search, or sampling: K independent sequences of each article."""

    def __init__(
        self, config: GenerationConfig, max_length: int, articles: int, device: torch.device, stops: Stops | None = None
    ) -> None:
        self.config = config
        self.max_length = max_length
        self.stops = stops
        self.eos_ids = torch.tensor(config.eos_token_ids, dtype=torch.long, device=device)
        count = config.num_return_sequences
        self.tokens = self.eos_ids.new_full((articles, count, max_length), config.fill_token_id or 0)
        self.tokens[:, :, 0] = config.start_token_id
        self.lengths = self.eos_ids.new_ones(articles)
        self.unfinished = torch.ones_like(self.tokens[:, :, 0], dtype=torch.bool)
        self.ends = torch.ones_like(self.tokens[:, :, 0])  # (B, K): ids up to and including the last chosen one

    @property
    def last_ids(self) -> Tensor:
        """(B, K) the ids that the decoder reads next."""
        return column(self.tokens, self.lengths - 1)

    @property
    def active(self) -> Tensor:
        """(B, 1) bool: the articles whose result may still change."""
        return self.unfinished.any(dim=1, keepdim=True)

    def step(self, scores: Tensor) -> None:
        """Choose the next id of every hypothesis by its scores (R, V), logits after all rules."""
        chosen = draw(scores, 1)[:, 0] if self.config.do_sample else scores.argmax(dim=1)
        chosen = chosen.view(-1, self.tokens.shape[1])
        old = column(self.tokens, self.lengths)
        put_column(self.tokens, self.lengths, torch.where(self.unfinished, chosen, old))
        self.lengths += 1
        self.ends += self.unfinished
        self.unfinished &= ~is_among(chosen, self.eos_ids) & (self.lengths < self.max_length)[:, None]
        if self.stops is not None:
            self.unfinished &= ~self.stops(self.tokens, self.lengths)

    def results(self) -> Hypotheses:
        """The sequences to return for each article, (B, N, …)."""
        steps = torch.arange(1, self.max_length, device=self.tokens.device)
        numbers = torch.arange(self.tokens.shape[1], device=self.tokens.device)[:, None]
        parents = torch.where(steps < self.ends[:, :, None], numbers, -1)
        return Hypotheses(self.tokens, parents, torch.zeros_like(self.ends, dtype=torch.float32), ~self.unfinished)

    @property
    def state(self) -> list[Tensor]:
        """The tensors (B, …) that belong to the articles, and that only steps change; setting it replaces them."""
        return [self.tokens, self.lengths, self.unfinished, self.ends]

    @state.setter
    def state(self, tensors: Sequence[Tensor]) -> None:
        self.tokens, self.lengths, self.unfinished, self.ends = tensors


Search = TokenSearch | BeamSearch
