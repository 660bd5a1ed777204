"""A caller's own code in the steps of `generate`, with the arguments of transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError, in_short
from bart.generation.rules import Prefixes, Rule

Processor = Callable[[Tensor, Tensor], Tensor]  # (R, t) ids so far, (R, V) scores -> scores
Criterion = Callable[[Tensor, "tuple[Tensor, ...] | None"], "Tensor | bool"]  # (R, t) ids, kept scores -> (R,) bool
Stops = Callable[[Tensor, Tensor], Tensor]  # (B, N, T) ids, (B,) their lengths -> (B, N) bool
Allowed = Callable[[int, Tensor], Sequence[int]]  # the number of an article, (t,) ids -> ids that may follow


@dataclass(frozen=True)
class Hooks:
    """A caller's code that runs in each step, and the scores that it asks for."""

    constraints: Sequence[Rule] = ()  # whose bans a forced token breaks
    processors: Sequence[Rule] = ()  # after all others but the filters of sampling
    chosen: Callable[[Tensor], object] | None = None  # called with the ids (R,) that a step chose, on the CPU
    stops: Stops | None = None  # tells the sequences that end with their last id
    kept: list[Tensor] | None = None  # to which each step appends the scores (R, V) after all rules

    def __bool__(self) -> bool:
        return bool(self.constraints or self.processors or self.chosen or self.stops) or self.kept is not None


NO_HOOKS = Hooks()


def hooks_for(config: GenerationConfig, allowed: Any, processors: Any, criteria: Any, streamer: Any) -> Hooks:
    """The hooks for arguments of `generate`: prefix_allowed_tokens_fn, logits_processor and so on."""
    processors, criteria = processors or [], criteria or []
    for name, given in (("logits_processor", processors), ("stopping_criteria", criteria)):
        if not isinstance(given, (list, tuple)) or not all(map(callable, given)):
            raise InputError(f"{name} is {given!r}; allowed: a list of callables of ids and scores")
    if allowed is not None and not callable(allowed):
        raise InputError(f"prefix_allowed_tokens_fn is {allowed!r}; allowed: a callable (article, ids) -> ids")
    if streamer is not None and not (hasattr(streamer, "put") and hasattr(streamer, "end")):
        raise InputError(f"streamer is {streamer!r}; allowed: an object with the methods put and end")
    if streamer is not None and config.num_beams > 1:
        raise InputError(f"streamer needs num_beams 1, and it is {config.num_beams}: beams change until the end")
    constraints = [] if allowed is None else [_only(allowed, config.num_beams)]
    kept: list[Tensor] | None = [] if config.output_scores and config.return_dict_in_generate else None
    stops = partial(_stopped, criteria, kept) if criteria else None
    return Hooks(constraints, list(map(_rule_of, processors)), getattr(streamer, "put", None), stops, kept)


def _stopped(criteria: Sequence[Criterion], kept: Sequence[Tensor] | None, tokens: Tensor, lengths: Tensor) -> Tensor:
    """See `Stops`; lengths are equal, since nobody joins a batch with hooks."""
    ids = tokens[:, :, : int(lengths.max())].flatten(0, 1)
    stopped = torch.zeros_like(ids[:, 0], dtype=torch.bool)
    for criterion in criteria:
        told = criterion(ids, None if kept is None else tuple(kept))
        if not isinstance(told, bool) and (not isinstance(told, Tensor) or told.shape != stopped.shape):
            raise InputError(f"a stopping_criteria gave {in_short(told)}; allowed: a bool tensor ({len(ids)},)")
        stopped |= told
    return stopped.view(tokens.shape[:2])


def _only(allowed: Allowed, beams: int) -> Rule:
    """Bans all ids but those that a function allows (PrefixConstrainedLogitsProcessor)."""

    def rule(prefixes: Prefixes, scores: Tensor) -> Tensor:
        mask = torch.full_like(scores, -torch.inf)
        for row, ids in enumerate(prefixes.tokens[:, : prefixes.longest]):
            following = allowed(row // beams, ids)
            try:
                if len(following) == 0:
                    raise ValueError
                mask[row, following] = 0
            except (IndexError, TypeError, ValueError):
                raise InputError(
                    f"prefix_allowed_tokens_fn gave {following!r} for article {row // beams}; allowed: a list of at "
                    f"least one id below {scores.shape[1]}"
                ) from None
        masked = scores + mask
        # Where other rules ban all that is allowed to all beams of an article, what is allowed wins.
        nothing_left = masked.amax(dim=1).isneginf().view(-1, beams).all(dim=1).repeat_interleave(beams)
        return torch.where(nothing_left[:, None], mask, masked)

    return rule


def _rule_of(processor: Processor) -> Rule:
    def rule(prefixes: Prefixes, scores: Tensor) -> Tensor:
        processed = processor(prefixes.tokens[:, : prefixes.longest], scores)
        if not isinstance(processed, Tensor) or processed.shape != scores.shape:
            got = tuple(processed.shape) if isinstance(processed, Tensor) else type(processed).__name__
            raise InputError(f"a logits_processor gave {got}; allowed: scores {tuple(scores.shape)}, as it got")
        return processed.to(scores)

    return rule
