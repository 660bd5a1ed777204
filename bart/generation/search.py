"""The two ways to choose the next ids of the articles in a batch: `BeamSearch`, and `TokenSearch` without beams.

Each is a state machine: it takes scores, returns choices, and knows nothing of models or text. The loop of `schedule`
asks it for the ids to read next, and gives it the scores of those that may follow.

Shapes: B articles, K beams, R = B·K rows, V vocabulary, T greatest length, t the number of ids that an article's
hypotheses hold so far (the start token included), C candidates per article, of which the first K are "the top".

Invariant of beam search: after every step, beam k of article b is the open hypothesis ``tokens[b, k, :t]`` without EOS,
and ``scores[b, k]`` is the sum of its log-probabilities. The K best finished hypotheses of each article are kept apart,
best first, scored with the length penalty. Articles do not influence each other, may have begun at different times, and
may leave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bart.backend import TORCH
from bart.configuration.configuration_generation import GenerationConfig
from bart.generation.cache import chosen
from bart.generation.hooks import Stops
from bart.generation.rules import draw

# The score of a hypothesis that must not win. As in transformers it is finite, so that it ranks above -inf.
_HOPELESS = -1.0e9

TopSums = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]  # see `Backend.top_sums`


def column(tensor: Tensor, places: Tensor) -> Tensor:
    """The numbers (B, N) in each article's place, (B,), of the last dimension of a tensor (B, N, T)."""
    return tensor.gather(2, places[:, None, None].expand(-1, tensor.shape[1], 1))[:, :, 0]


def put_column(tensor: Tensor, places: Tensor, numbers: Tensor) -> None:
    """Put numbers (B, N) into the places that `column` reads."""
    tensor.scatter_(2, places[:, None, None].expand(-1, tensor.shape[1], 1), numbers[:, :, None])


def is_among(ids: Tensor, chosen: Tensor) -> Tensor:
    """True for each id (…) that is one of the chosen (n,). `torch.isin` may wait for the device if n is large."""
    return (ids[..., None] == chosen).any(dim=-1)


@dataclass
class Hypotheses:
    """N hypotheses of each article.

    Attributes:
        tokens: (B, N, T) ids, padded after the last one.
        parents: (B, N, T - 1); entry i is the beam that held the hypothesis when id i + 1 was chosen, -1 after the end.
        scores: (B, N).
        finished: (B, N) bool; false for hypotheses that go on and for empty places.
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor
    finished: Tensor

    def ids_of(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens and parents of hypotheses index[b, m] (B, M) of each article b."""
        return chosen(self.tokens, index), chosen(self.parents, index)

    def of(self, articles: Tensor) -> Hypotheses:
        """The hypotheses of some articles (M,)."""
        return Hypotheses(*(tensor[articles] for tensor in vars(self).values()))

    @staticmethod
    def join(parts: Sequence[Hypotheses], dim: int = 1) -> Hypotheses:
        """The hypotheses of all parts, per article; with dim 0, parts hold different articles."""
        fields = zip(*(vars(part).values() for part in parts), strict=True)
        return Hypotheses(*(torch.cat(tensors, dim=dim) for tensors in fields))


class BeamSearch:
    """Beam search over articles, with the choices of transformers 5's ``generate(num_beams=K)``.

    Args:
        max_length: T, at least 2.
        articles: B.
        device: of all state.
        stops: of a caller's criteria; what they stop counts as ended by EOS.
        top_sums: that of the model's `Backend`.
    """

    def __init__(
        self,
        config: GenerationConfig,
        max_length: int,
        articles: int,
        device: torch.device,
        stops: Stops | None = None,
        top_sums: TopSums = TORCH.top_sums,
    ) -> None:
        self.config = config
        self.stops = stops
        self.top_sums = top_sums
        self.max_length = max_length
        self.width = config.num_beams
        self.eos_ids = torch.tensor(config.eos_token_ids, dtype=torch.long, device=device)
        shape = (articles, self.width)
        tokens = self.eos_ids.new_full((*shape, max_length), config.fill_token_id or 0)  # no EOS, no padding
        tokens[:, :, 0] = config.start_token_id
        parents = self.eos_ids.new_full((*shape, max_length - 1), -1)
        hopeless = torch.full(shape, _HOPELESS, dtype=torch.float32, device=device)
        unfinished = torch.zeros(shape, dtype=torch.bool, device=device)
        self.finished = Hypotheses(tokens, parents, hopeless, unfinished)
        # All beams start alike. Only the first may be extended, or they would stay alike.
        self.open = Hypotheses(tokens, parents, hopeless.index_fill(1, self.eos_ids.new_zeros(1), 0.0), unfinished)
        self.lengths = self.eos_ids.new_ones(articles)  # (B,): t
        # (B, 1): true if an article's finished hypotheses may still change.
        self.active = torch.ones_like(unfinished[:, :1])

    @property
    def tokens(self) -> Tensor:
        """(B, K, T) the ids of the open hypotheses."""
        return self.open.tokens

    @property
    def last_ids(self) -> Tensor:
        """(B, K) the last id of each open hypothesis."""
        return column(self.open.tokens, self.lengths - 1)

    @property
    def state(self) -> list[Tensor]:
        """The tensors (B, …) that belong to the articles; setting it replaces them."""
        return [*vars(self.open).values(), *vars(self.finished).values(), self.lengths, self.active]

    @state.setter
    def state(self, tensors: Sequence[Tensor]) -> None:
        self.open, self.finished = Hypotheses(*tensors[:4]), Hypotheses(*tensors[4:8])
        self.lengths, self.active = tensors[8:]

    def step(self, scores: Tensor) -> Tensor:
        """Choose the next id of every beam.

        Args:
            scores: (R, V) log-probabilities of the next id, after all rules.

        Returns:
            (B, K) for each beam, the beam of the article that it continues.
        """
        candidates, penalty = self._extend(scores.view(-1, self.width, scores.shape[1])), self._penalty(self.lengths)
        self.finished = self._collect(candidates, penalty)
        self.open = self._next_open(candidates)
        self.active &= self._attainable(penalty) > self.finished.scores.amin(dim=1, keepdim=True)
        if self.config.early_stopping is True:
            self.active &= ~self.finished.finished.all(dim=1, keepdim=True)
        self.active &= ~candidates.finished.all(dim=1, keepdim=True)
        parents = column(self.open.parents, self.lengths - 1)
        self.lengths += 1
        return parents

    def results(self) -> Hypotheses:
        """The sequences to return for each article, (B, N, …), best first."""
        count = self.config.num_return_sequences
        return Hypotheses(*(tensor[:, :count] for tensor in vars(self.finished).values()))

    def _extend(self, scores: Tensor) -> Hypotheses:
        """The C most likely extensions of the open hypotheses by one id; ``finished`` says which of them end there.

        Each beam has one candidate more than there are EOS ids, so that K extensions stay open whatever ends.
        """
        vocab_size = scores.shape[2]
        count = min(max(2, len(self.eos_ids) + 1), vocab_size) * self.width
        if self.config.do_sample:
            every = (scores + self.open.scores[:, :, None]).flatten(1)
            flat = draw(every, count)
            sums = every.gather(1, flat)
        else:
            sums, flat = self.top_sums(scores, self.open.scores, count)
        beams, ids = flat // vocab_size, flat % vocab_size

        tokens, parents = self.open.ids_of(beams)
        put_column(tokens, self.lengths, ids)
        put_column(parents, self.lengths - 1, beams)
        ended = is_among(ids, self.eos_ids) | (self.lengths[:, None] + 1 == self.max_length)
        if self.stops is not None:
            ended |= self.stops(tokens, self.lengths + 1)
        return Hypotheses(tokens, parents, sums, ended)

    def _next_open(self, candidates: Hypotheses) -> Hypotheses:
        """The K best candidates that do not end."""
        scores, best = (candidates.scores + candidates.finished * _HOPELESS).topk(self.width)
        return Hypotheses(*candidates.ids_of(best), scores, self.open.finished)

    def _collect(self, candidates: Hypotheses, penalty: Tensor) -> Hypotheses:
        """The K best of the finished hypotheses and the candidates that finish here."""
        eligible = candidates.finished & self.active
        eligible[:, self.width :] = False  # those below the top can only become open hypotheses
        scores = candidates.scores / penalty + ~eligible * _HOPELESS
        both = Hypotheses.join([self.finished, replace(candidates, scores=scores, finished=eligible)])
        scores, best = both.scores.topk(self.width)
        return Hypotheses(*both.ids_of(best), scores, both.finished.gather(1, best))

    def _attainable(self, penalty: Tensor) -> Tensor:
        """(B, 1) the score that, by assumption, the article's open hypotheses can reach at best."""
        longer_is_better = self.config.early_stopping == "never" and self.config.length_penalty > 0
        if longer_is_better:
            penalty = self._penalty(torch.full_like(self.lengths, self.max_length - 1))
        return self.open.scores[:, :1] / penalty

    def _penalty(self, lengths: Tensor) -> Tensor:
        """(B,) numbers of ids after the start token -> (B, 1), the divisor of a hypothesis's score."""
        return (lengths[:, None].double() ** self.config.length_penalty).float()


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
