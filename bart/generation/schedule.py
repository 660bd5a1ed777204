"""The loop that joins a model, the rules and a search, over a batch that articles leave and join as it runs.

Shapes: B articles in the batch, K hypotheses per article, R = B·K decoder rows, S source length, D model width,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bart.generation.beam_search import Hypotheses
from bart.generation.cache import padded
from bart.generation.config import GenerationConfig
from bart.generation.rules import rules_for
from bart.generation.search import search_for

if TYPE_CHECKING:
    from bart.modeling.modeling_bart import BartForConditionalGeneration

# Articles leave when they are so large a part of the batch: leaving copies the state of those that stay.
LEAVING_PART = 0.25


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


def steps_between_checks(device: torch.device) -> int:
    """Steps between two questions to a device which articles are done.

    Each makes the host wait for an accelerator; each step too many costs one decoder step, and changes nothing. On the
    CPU asking is free.
    """
    return 1 if device.type == "cpu" else 8


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
    beams = config.num_beams if config.num_beams > 1 else config.num_return_sequences
    check_every = 1 if kept is not None else steps_between_checks(model.device)
    numbers: list[int] = []
    lengths: list[int] = []
    ids: Tensor | None = None
    more = True
    steps = 0
    while True:
        while more and len(numbers) < batch_size:
            new = sources(batch_size - len(numbers))
            if new is None:
                more = False
                break
            # The last id of a sequence is never read.
            new_cache = model.new_cache(new.states, new.mask, beams=beams, max_length=max_length - 1)
            if not numbers:
                cache, ids = new_cache, new.ids
                search = search_for(config, max_length, len(new.numbers), model.device)
            else:
                cache.join(new_cache)
                search.join(len(new.numbers))
                if ids is not None:
                    width, fill = max(ids.shape[1], new.ids.shape[1]), config.fill_token_id or 0
                    ids = torch.cat([padded(part, 1, width, fill) for part in (ids, new.ids)])
            numbers += new.numbers
            lengths += [1] * len(new.numbers)
            rules = rules_for(config, max_length, ids, model.device)
        if not numbers:
            return

        logits = model.decode(search.last_ids, cache).flatten(0, 1).float()
        parents = search.step(logits, rules, min(lengths), max(lengths), kept)
        lengths = [length + 1 for length in lengths]
        steps += 1
        if parents is not None:
            cache.reorder(parents)

        at_the_end = max(lengths) == max_length
        if steps % check_every and not at_the_end:
            continue
        active = [busy and length < max_length for busy, length in zip(search.active.tolist(), lengths, strict=True)]
        waits = active.count(False) < LEAVING_PART * len(active) if may_leave else any(active)
        if waits and not at_the_end:
            continue
        done = [i for i, busy in enumerate(active) if not busy]
        stay = [i for i, busy in enumerate(active) if busy]
        yield [numbers[i] for i in done], search.results().of(_index(done, model.device))
        numbers, lengths = ([values[i] for i in stay] for values in (numbers, lengths))
        if stay:
            index = _index(stay, model.device)
            cache.keep(index)
            search.keep(index)
            ids = None if ids is None else ids[index]
            rules = rules_for(config, max_length, ids, model.device)


def _index(places: list[int], device: torch.device) -> Tensor:
    return torch.tensor(places, dtype=torch.long, device=device)
