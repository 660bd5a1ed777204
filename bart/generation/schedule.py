"""The loop over decoding steps joins a model, the rules and a search, and lets articles leave and join the batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bart.configuration.configuration_generation import GenerationConfig
from bart.generation.cache import DecoderCache, padded
from bart.generation.graphs import RecordedSteps, recorded_steps
from bart.generation.hooks import NO_HOOKS, Hooks
from bart.generation.model import Model
from bart.generation.rules import NO_ID, Prefixes, Rule, rules_for
from bart.generation.search import BeamSearch, Hypotheses, Search, TokenSearch

# Where steps are recorded, a batch's places are halved down to so many: fewer would hardly be faster.
FEWEST_PLACES = 4


@dataclass
class Sources:
    """Articles about to join, all of one padded length."""

    numbers: list[int]  # by which the caller knows them
    mask: Tensor | None  # (B, S) bool, or None where all positions may be read
    states: Tensor  # (B, S, D) from the encoder
    ids: Tensor | None  # (B, S), NO_ID where rules should see no id; None where the caller has only states

    def of(self, places: slice) -> Sources:
        """Some of these articles, which have masks and ids, cut to the longest of them."""
        assert self.mask is not None and self.ids is not None
        length = int(self.mask[places].any(dim=0).sum())
        mask, states, ids = (part[places, :length] for part in (self.mask, self.states, self.ids))
        return Sources(self.numbers[places], mask, states, ids)


class DecodingBatch:
    """The articles that are being decoded, which may have joined at different times."""

    def __init__(
        self,
        model: Model,
        config: GenerationConfig,
        max_length: int,
        hooks: Hooks,
        first: Sources,
        recorded: RecordedSteps | None = None,
        most: int = 0,
    ) -> None:
        """most: the number of articles that there may be, where steps are recorded."""
        self.model = model
        self.config = config
        self.max_length = max_length
        self.hooks = hooks
        self.recorded = recorded
        self.most = most
        self.options: Hashable = (repr(config), max_length)
        self.numbers: list[int | None] = list(first.numbers)  # None: the place is vacant, and nobody reads its results
        self.lengths = [1] * len(first.numbers)  # of each place's hypotheses
        self.cache, self.search = self._begun(first)
        self.rules: list[Rule] = []
        self._set_ids(first.ids)
        self.constants = self.rules, self.search.eos_ids
        self.resize(len(first.numbers))

    @property
    def busy(self) -> list[int]:
        """The places that hold articles."""
        return [place for place, number in enumerate(self.numbers) if number is not None]

    @property
    def vacant(self) -> list[int]:
        return [place for place, number in enumerate(self.numbers) if number is None]

    def join(self, new: Sources) -> None:
        """Put articles into vacant places, and into new ones."""
        self.resize(max(len(self.numbers), len(self.busy) + len(new.numbers)))
        places = self.vacant[: len(new.numbers)]
        cache, search = self._begun(new)
        index = self._index(places)
        self.cache.replace(index, cache)
        for old, added in zip(self.search.state, search.state, strict=True):
            old[index] = added
        for place, number in zip(places, new.numbers, strict=True):
            self.numbers[place], self.lengths[place] = number, 1
        if self.ids is not None and new.ids is not None:
            width = max(self.ids.shape[1], new.ids.shape[1])
            ids = padded(self.ids, 1, width, NO_ID)
            self._set_ids(ids.index_copy(0, index, padded(new.ids, 1, width, NO_ID)))

    def resize(self, articles: int) -> None:
        """Have places for so many articles, which are few numbers of places where steps are recorded.

        Vacant places begin anew, so that they never come to an end. New ones hold a copy until articles join.
        """
        size, count = articles, len(self.numbers)
        if self.recorded is not None:
            size = self.most
            while size // 2 >= max(articles, FEWEST_PLACES):
                size //= 2
        if size != count:
            kept = [*self.busy, *self.vacant, *[0] * (size - count)][:size]
            self.numbers = [self.numbers[place] if number < count else None for number, place in enumerate(kept)]
            self.lengths = [self.lengths[place] for place in kept]
            index = self._index(kept)
            self.cache.keep(index)
            self.search.state = [tensor[index] for tensor in self.search.state]
            self._set_ids(None if self.ids is None else self.ids[index])
        if vacant := self.vacant:
            index = self._index(vacant)
            self.cache.restart(index)
            self.search.lengths[index] = 1
            for place in vacant:
                self.lengths[place] = 1

    def _index(self, places: list[int]) -> Tensor:
        return torch.tensor(places, dtype=torch.long, device=self.model.device)

    def _begun(self, new: Sources) -> tuple[DecoderCache, Search]:
        """A cache and a search before their first step."""
        config = self.config
        beams = config.num_beams if config.num_beams > 1 else config.num_return_sequences
        # The last id of a sequence is never read.
        cache = self.model.new_cache(new.states, new.mask, beams=beams, max_length=self.max_length - 1)
        given = config, self.max_length, len(new.states), new.states.device, self.hooks.stops
        return cache, BeamSearch(*given, self.model.backend.top_sums) if config.num_beams > 1 else TokenSearch(*given)

    def step(self) -> None:
        """Choose the next id of every hypothesis. Without hooks, the host waits for nothing."""
        self.cache.advance()
        steps_left = min(len(self.cache.free), self.max_length - 1 - max(self.lengths)) + 1
        if self.recorded is None or not self.recorded.step(self, steps_left):
            self._decode(min(self.lengths), max(self.lengths))
        self.lengths = [length + 1 for length in self.lengths]
        if self.hooks.chosen is not None:
            self.hooks.chosen(self.search.last_ids.flatten().cpu())

    @property
    def state(self) -> list[Tensor]:
        return [*self.cache.state, *self.search.state]

    @state.setter
    def state(self, tensors: Sequence[Tensor]) -> None:
        count = len(self.cache.state)
        self.cache.state, self.search.state = tensors[:count], tensors[count:]

    def take_step(self) -> None:
        """See `graphs.Recordable`. The lengths are in the state, so the bounds on them must hold for all steps."""
        self._decode(1, self.max_length - 1)

    def results(self, places: list[int]) -> tuple[list[int], Hypotheses]:
        """The numbers and the sequences of the articles in these places, which must not be vacant."""
        numbers = [number for place in places if (number := self.numbers[place]) is not None]
        return numbers, self.search.results().of(self._index(places))

    def _decode(self, shortest: int, longest: int) -> None:
        """A step after `cache.advance`; all lengths lie within these bounds. Tight ones save computation."""
        logits = self.model.decode(self.search.last_ids, self.cache).flatten(0, 1)
        scores = self.model.backend.log_softmax(logits) if self.config.num_beams > 1 else logits.float()
        tokens = self.search.tokens
        lengths = self.search.lengths.repeat_interleave(tokens.shape[1], dim=0)
        prefixes = Prefixes(tokens[:, :, :longest].flatten(0, 1), lengths, shortest, longest)
        for rule in self.rules:
            scores = rule(prefixes, scores)
        if self.hooks.kept is not None:
            self.hooks.kept.append(scores)
        parents = self.search.step(scores)
        if parents is not None:
            self.cache.reorder(parents)

    def _set_ids(self, ids: Tensor | None) -> None:
        self.ids = ids
        # Only rules that read the sources change with the articles.
        if not self.rules or self.config.encoder_no_repeat_ngram_size:
            callers = self.hooks.constraints, self.hooks.processors
            self.rules = rules_for(self.config, self.max_length, ids, self.model.device, *callers)


def steps_between_checks(device: torch.device) -> int:
    """The number of steps after which the device is asked which articles are done; the host waits for accelerators."""
    return 1 if device.type == "cpu" else 8


def leaving_part(device: torch.device, live: bool, are_replaced: bool) -> float:
    """The part of the batch that must be done before articles leave it."""
    if live:  # somebody waits for them
        return 1 / 8
    if are_replaced:
        return 1 / 16
    # The state of those that stay is copied, and on a GPU the batch has half as many places (see `graphs`).
    return 1 / 2 if device.type == "cuda" else 1 / 4


@torch.inference_mode()
def decode(
    model: Model,
    config: GenerationConfig,
    max_length: int,
    batch_size: int,
    sources: Callable[[int], Sources | None],
    *,
    may_leave: bool = True,
    live: bool = False,
    hooks: Hooks = NO_HOOKS,
) -> Iterator[tuple[list[int], Hypotheses]]:
    """Decode articles, at most `batch_size` at once, and yield those that are done with their results.

    Args:
        sources: gives at most so many more articles; None when there are none. Unless live, the first call fills the
            batch, and None means that no more will come.
        may_leave: true if articles may leave before all are done.
        live: true if more may come at any time: `sources` is called whenever there is room, and the batch may grow.
    """
    new = sources(batch_size)
    if new is None:
        return
    with recorded_steps(model, config, bool(hooks)) as recorded:
        batch = DecodingBatch(model, config, max_length, hooks, new, recorded, batch_size)
        check_every = 1 if hooks else steps_between_checks(model.device)
        steps = 0
        while True:
            batch.step()
            steps += 1
            at_the_end = max(batch.lengths) == max_length
            if steps % check_every and not at_the_end:
                continue
            active, busy = batch.search.active[:, 0].tolist(), batch.busy  # the host waits for the device
            done = [place for place in busy if not active[place]]
            part = leaving_part(model.device, live, are_replaced=new is not None) if may_leave else 1
            if len(done) < part * len(busy) and not at_the_end:  # too few for them to leave
                if not live:
                    continue
                done = []
            if done:
                yield batch.results(done)
                batch.numbers = [None if place in done else number for place, number in enumerate(batch.numbers)]
            while room := batch_size - len(batch.busy):
                new = sources(room)
                if new is None:
                    break
                batch.join(new)
            if not batch.busy:
                break
            batch.resize(len(batch.busy))
