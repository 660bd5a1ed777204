"""The loop that joins a model, the rules and a search, over a batch that articles leave and join as it runs.

Shapes: B articles in the batch, K hypotheses per article, R = B·K decoder rows, S source length, D model width,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bart.generation.beam_search import Hypotheses
from bart.generation.cache import padded
from bart.generation.config import GenerationConfig
from bart.generation.graphs import RecordedSteps, recorder_for
from bart.generation.rules import Rule, rules_for
from bart.generation.search import search_for

if TYPE_CHECKING:
    from bart.modeling.modeling_bart import BartForConditionalGeneration


@dataclass
class Sources:
    """Articles about to join, all of one padded length.

    Attributes:
        numbers: B numbers by which the caller knows them.
        mask: (B, S) bool, or None where all positions may be read.
        states: (B, S, D) from the encoder.
        ids: (B, S), or None where the caller has only states.
    """

    numbers: list[int]
    mask: Tensor | None
    states: Tensor
    ids: Tensor | None


class Batch:
    """Articles in the midst of decoding, which may have joined at different times.

    Args:
        max_length: greatest length of a sequence.
        kept: gets the scores (R, V) after all rules of every step, unless it is None.

    Attributes:
        numbers: by which the caller knows the articles.
        lengths: ids that each article's hypotheses hold.
    """

    def __init__(
        self,
        model: BartForConditionalGeneration,
        config: GenerationConfig,
        max_length: int,
        kept: list[Tensor] | None,
    ) -> None:
        self.model = model
        self.config = config
        self.max_length = max_length
        self.kept = kept
        self.numbers: list[int] = []
        self.lengths: list[int] = []
        self.search = search_for(config, max_length, 0, model.device)
        self.rules: list[Rule] | None = None
        self.ids: Tensor | None = None
        recorder = recorder_for(model.device, config, kept is not None)
        self.recorded = None if recorder is None else RecordedSteps(recorder)

    def join(self, new: Sources) -> None:
        """Take in articles, behind those that are here."""
        config, device = self.config, self.model.device
        beams = config.num_beams if config.num_beams > 1 else config.num_return_sequences
        # The last id of a sequence is never read.
        cache = self.model.new_cache(new.states, new.mask, beams=beams, max_length=self.max_length - 1)
        if not self.numbers:
            self.cache, ids = cache, new.ids
        else:
            self.cache.join(cache)
            ids = new.ids
            if ids is not None:
                width = max(self.ids.shape[1], ids.shape[1])
                ids = torch.cat([padded(part, 1, width, config.fill_token_id or 0) for part in (self.ids, ids)])
        search = search_for(config, self.max_length, len(new.numbers), device)
        self.search.state = [torch.cat(parts) for parts in zip(self.search.state, search.state, strict=True)]
        self.numbers += new.numbers
        self.lengths += [1] * len(new.numbers)
        self._set_ids(ids)

    def keep(self, places: list[int]) -> None:
        """Go on with the articles in these places only."""
        self.numbers = [self.numbers[place] for place in places]
        self.lengths = [self.lengths[place] for place in places]
        index = torch.tensor(places, dtype=torch.long, device=self.model.device)
        self.search.state = [tensor[index] for tensor in self.search.state]
        if places:  # else there will be a new cache, or none
            self.cache.keep(index)
            self._set_ids(None if self.ids is None else self.ids[index])

    def step(self) -> None:
        """Choose the next id of every hypothesis. The host waits for nothing."""
        self.cache.advance()
        steps_left = min(len(self.cache.free), self.max_length - 1 - max(self.lengths)) + 1
        if self.recorded is None or not self.recorded.step(self, steps_left):
            self._decode(min(self.lengths), max(self.lengths))
        self.lengths = [length + 1 for length in self.lengths]

    @property
    def state(self) -> list[Tensor]:
        """See `graphs.Recordable`."""
        return [*self.cache.state, *self.search.state]

    @state.setter
    def state(self, tensors: Sequence[Tensor]) -> None:
        count = len(self.cache.state)
        self.cache.state, self.search.state = tensors[:count], tensors[count:]

    def take_step(self) -> None:
        """See `graphs.Recordable`; the lengths are in the state, and here it may be any of the possible ones."""
        self._decode(1, self.max_length - 1)

    def active(self) -> list[bool]:
        """Whether each article's result may still change. The host waits for the device."""
        active = self.search.active.tolist()
        return [busy and length < self.max_length for busy, length in zip(active, self.lengths, strict=True)]

    def results(self, places: list[int]) -> tuple[list[int], Hypotheses]:
        """The numbers and the sequences (M, N, …) of the articles in these places (M)."""
        index = torch.tensor(places, dtype=torch.long, device=self.model.device)
        return [self.numbers[place] for place in places], self.search.results().of(index)

    def _decode(self, shortest: int, longest: int) -> None:
        """A step after `cache.advance`, with lengths within these bounds."""
        logits = self.model.decode(self.search.last_ids, self.cache).flatten(0, 1).float()
        parents = self.search.step(logits, self.rules, shortest, longest, self.kept)
        if parents is not None:
            self.cache.reorder(parents)

    def _set_ids(self, ids: Tensor | None) -> None:
        """Only rules that read the sources change with the articles."""
        self.ids = ids
        if self.rules is None or self.config.encoder_no_repeat_ngram_size:
            self.rules = rules_for(self.config, self.max_length, ids, self.model.device)


def steps_between_checks(device: torch.device) -> int:
    """Steps between two questions to a device which articles are done.

    Each makes the host wait for an accelerator; each step too many costs one decoder step, and changes nothing. On the
    CPU asking is free.
    """
    return 1 if device.type == "cpu" else 8


def leaving_part(device: torch.device, are_replaced: bool) -> float:
    """Articles leave when they are so large a part of the batch: leaving copies the state of those that stay.

    Where no others take their places, shapes change, and steps have to be recorded anew on a GPU (see `graphs`).
    """
    return 0.5 if device.type == "cuda" and not are_replaced else 0.25


@torch.inference_mode()
def decode(
    model: BartForConditionalGeneration,
    config: GenerationConfig,
    max_length: int,
    batch_size: int,
    sources: Callable[[int], Sources | None],
    *,
    may_leave: bool = True,
    kept: list[Tensor] | None = None,
) -> Iterator[tuple[list[int], Hypotheses]]:
    """Decode articles, at most `batch_size` at once, and yield those that are done with their results.

    What an article gets does not depend on which others are in the batch, apart from the rounding of products of other
    sizes.

    Args:
        max_length: greatest length of a sequence.
        sources: called for up to so many articles more; None when there are none left.
        may_leave: whether articles may leave before all are done.
        kept: gets the scores (R, V) after all rules of every step, unless it is None.
    """
    batch = Batch(model, config, max_length, kept)
    check_every = 1 if kept is not None else steps_between_checks(model.device)
    more = True
    steps = 0
    while True:
        while more and len(batch.numbers) < batch_size:
            new = sources(batch_size - len(batch.numbers))
            if new is None:
                more = False
            else:
                batch.join(new)
        if not batch.numbers:
            return

        batch.step()
        steps += 1
        at_the_end = max(batch.lengths) == max_length
        if steps % check_every and not at_the_end:
            continue
        active = batch.active()
        part = leaving_part(model.device, more)
        waits = active.count(False) < part * len(active) if may_leave else any(active)
        if waits and not at_the_end:
            continue
        yield batch.results([place for place, busy in enumerate(active) if not busy])
        batch.keep([place for place, busy in enumerate(active) if busy])
