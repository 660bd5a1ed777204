"""Rules that change the scores of the next token: bans, forced tokens, penalties, and the filters of sampling.

A rule is a callable ``rule(prefixes, scores) -> scores``, which may overwrite the scores it gets. Each function that
makes a rule names the logits processor of transformers whose values the rule computes.

Shapes: t ids of the longest row so far, the start token included. ``scores`` is (R, V) float32: log-probabilities with
beams, logits without. A banned token scores -inf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError

_BANNED = float("-inf")
# Takes the place of an id where there is none.
NO_ID = -1


@dataclass
class Prefixes:
    """The ids that each row holds so far, and bounds on their lengths, known without asking the device."""

    tokens: Tensor  # (R, t); a row's ids after its length mean nothing
    lengths: Tensor  # (R,)
    shortest: int
    longest: int

    def last(self, count: int) -> Tensor:
        """(R, count) the last ids of each row; where a row has fewer, they mean nothing."""
        if self.shortest == self.longest:
            return self.tokens[:, self.longest - count : self.longest]
        places = self.lengths[:, None] + torch.arange(-count, 0, device=self.lengths.device)
        return self.tokens.gather(1, places.clamp_(min=0))


Rule = Callable[[Prefixes, Tensor], Tensor]


def draw(scores: Tensor, count: int) -> Tensor:
    """Draw ``count`` different columns (N, count) of each row of scores (N, V), with probabilities softmax(scores).

    A row whose columns are all banned (-inf) draws from all of them, because something has to be returned.
    """
    nothing_left = scores.amax(dim=1, keepdim=True) == -torch.inf
    probabilities = scores.masked_fill(nothing_left, 0.0).softmax(dim=1)
    # One such score makes its whole row NaN. Asking makes the host wait for the device, but so does multinomial.
    if bool(probabilities[:, 0].isnan().any()):
        raise InputError("do_sample is True, and scores of the next id are NaN or +inf; allowed: finite ones")
    return torch.multinomial(probabilities, count)


def min_length(length: int, eos_ids: Tensor) -> Rule:
    """No EOS, one of eos_ids (n,), while a sequence is shorter than ``length`` (MinLengthLogitsProcessor)."""

    def rule(prefixes: Prefixes, scores: Tensor) -> Tensor:
        if prefixes.shortest >= length:
            return scores
        too_short = (prefixes.lengths < length)[:, None]
        return scores.index_copy_(1, eos_ids, scores[:, eos_ids].masked_fill(too_short, _BANNED))

    return rule


def forced_token(length: int, ids: Tensor) -> Rule:
    """Only ``ids`` (n,) may follow a sequence of ``length`` ids; each of them scores 0.

    With length 1 this is ForcedBOSTokenLogitsProcessor, with max_length - 1 ForcedEOSTokenLogitsProcessor.
    """

    def rule(prefixes: Prefixes, scores: Tensor) -> Tensor:
        if not prefixes.shortest <= length <= prefixes.longest:
            return scores
        forced = torch.full_like(scores[:1], _BANNED).index_fill_(1, ids, 0)
        return torch.where((prefixes.lengths == length)[:, None], forced, scores)

    return rule


def repetition_penalty(penalty: float) -> Rule:
    """Makes each id of the sequence less likely, once however often it occurs (RepetitionPenaltyLogitsProcessor)."""

    def rule(prefixes: Prefixes, scores: Tensor) -> Tensor:
        tokens = prefixes.tokens
        if prefixes.shortest < prefixes.longest:
            held = torch.arange(tokens.shape[1], device=tokens.device) < prefixes.lengths[:, None]
            tokens = torch.where(held, tokens, tokens[:, :1])  # repeating a row's first id changes nothing
        seen = scores.gather(1, tokens)
        return scores.scatter_(1, tokens, torch.where(seen < 0, seen * penalty, seen / penalty))

    return rule


def _ban_continuations(scores: Tensor, last: Tensor, windows: Tensor, valid: Tensor) -> Tensor:
    """Ban in each row the last id of every window whose other ids are the row's last ones.

    Args:
        scores: (R, V), written in place.
        last: (R, n - 1), the last ids of each row.
        windows: (G, W, n) n-grams, where G divides R: each of G equal, consecutive groups of rows has its own.
        valid: bool, broadcasts to (R, W): the windows that count.
    """
    groups, rows = windows.shape[0], scores.shape[0]
    last = last.unflatten(0, (groups, rows // groups))  # (G, R/G, n - 1)
    matches = (windows[:, None, :, :-1] == last[:, :, None]).all(dim=-1).flatten(0, 1) & valid  # (R, W)
    banned = windows[:, None, :, -1].expand(-1, rows // groups, -1).flatten(0, 1)  # (R, W)
    # A token may end one window that matches and another that does not. With amin, the ban wins in any order.
    bans = scores.new_full(banned.shape, torch.inf).masked_fill_(matches, _BANNED)
    return scores.scatter_reduce_(1, banned, bans, "amin")


def no_repeat_ngram(size: int) -> Rule:
    """No n-gram of ``size`` twice in a row's sequence (NoRepeatNGramLogitsProcessor)."""

    def rule(prefixes: Prefixes, scores: Tensor) -> Tensor:
        if prefixes.longest < size:
            return scores
        ends = torch.arange(size, prefixes.longest + 1, device=scores.device)
        windows, valid = prefixes.tokens.unfold(1, size, 1), ends <= prefixes.lengths[:, None]
        return _ban_continuations(scores, prefixes.last(size - 1), windows, valid)

    return rule


def encoder_no_repeat_ngram(size: int, source_ids: Tensor) -> Rule:
    """No n-gram of ``size`` from the row's source, its padding included (EncoderNoRepeatNGramLogitsProcessor).

    Args:
        source_ids: (B, S); NO_ID after the end of a shorter source.
    """
    # A source of fewer than n ids holds no n-gram.
    windows = source_ids.clamp(min=0).unfold(1, size, 1) if source_ids.shape[1] >= size else None
    whole = source_ids[:, size - 1 :] != NO_ID  # (B, W), the windows that end within their source

    def rule(prefixes: Prefixes, scores: Tensor) -> Tensor:
        if windows is None or prefixes.longest < size - 1:
            return scores
        valid = whole.repeat_interleave(len(scores) // len(whole), dim=0) & (prefixes.lengths >= size - 1)[:, None]
        return _ban_continuations(scores, prefixes.last(size - 1), windows, valid)

    return rule


def bad_words(words: Iterable[list[int]], device: torch.device) -> Rule:
    """Bans the last id of a word, a sequence of ids, wherever its others have just been generated.

    This is NoBadWordsLogitsProcessor.
    """
    by_length: dict[int, list[list[int]]] = {}
    for word in words:
        by_length.setdefault(len(word), []).append(word)
    tables = [torch.tensor(group, device=device) for group in by_length.values()]  # each (N, n)

    def rule(prefixes: Prefixes, scores: Tensor) -> Tensor:
        for table in tables:
            count = table.shape[1] - 1
            if count <= prefixes.longest:
                valid = (prefixes.lengths >= count)[:, None]
                scores = _ban_continuations(scores, prefixes.last(count), table[None], valid)
        return scores

    return rule


def temperature(divisor: float) -> Rule:
    """Divides scores (TemperatureLogitsWarper)."""
    return lambda _, scores: scores.div_(divisor)


def top_k(count: int) -> Rule:
    """Keeps the ``count`` best tokens and ties with the last of them (TopKLogitsWarper)."""

    def rule(_: Prefixes, scores: Tensor) -> Tensor:
        worst_kept = scores.topk(min(count, scores.shape[1])).values[:, -1:]
        return scores.masked_fill_(scores < worst_kept, _BANNED)

    return rule


def top_p(share: float, at_least: int) -> Rule:
    """Keeps the best tokens up to a total probability ``share``, and at least ``at_least`` (TopPLogitsWarper)."""

    def rule(_: Prefixes, scores: Tensor) -> Tensor:
        ascending, order = scores.sort()
        # Summing from the least likely token keeps the token that crosses the threshold.
        dropped = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - share
        dropped[:, -at_least:] = False
        return scores.masked_fill_(dropped.scatter(1, order, dropped), _BANNED)

    return rule


def rules_for(
    config: GenerationConfig,
    max_length: int,
    source_ids: Tensor | None,
    device: torch.device,
    constraints: Iterable[Rule] = (),
    processors: Iterable[Rule] = (),
) -> list[Rule]:
    """The rules that ``config`` asks for, in the order of transformers; where two conflict, the later one wins.

    source_ids (B, S) are needed by encoder_no_repeat_ngram_size alone; constraints and processors are those of
    `hooks.Hooks`.
    """
    eos = config.eos_token_ids
    rules: list[Rule] = []
    if config.repetition_penalty != 1:
        rules.append(repetition_penalty(config.repetition_penalty))
    if config.no_repeat_ngram_size:
        rules.append(no_repeat_ngram(config.no_repeat_ngram_size))
    if size := config.encoder_no_repeat_ngram_size:
        if source_ids is None:
            raise InputError(f"encoder_no_repeat_ngram_size is {size}; allowed: 0 without input_ids")
        rules.append(encoder_no_repeat_ngram(size, source_ids))
    if config.bad_words_ids:
        rules.append(bad_words([word for word in config.bad_words_ids if word not in [[e] for e in eos]], device))
    if eos and config.shortest > 0:
        rules.append(min_length(config.shortest, torch.tensor(eos, device=device)))
    rules += constraints
    if config.forced_bos_token_id is not None:
        rules.append(forced_token(1, torch.tensor([config.forced_bos_token_id], device=device)))
    if config.forced_eos_token_ids:
        rules.append(forced_token(max_length - 1, torch.tensor(config.forced_eos_token_ids, device=device)))
    rules += processors
    if config.do_sample:
        # With beams, enough tokens must stay for every beam to go on even if all EOS ids are drawn.
        at_least = 1 if config.num_beams == 1 else max(2, len(eos) + 1)
        if config.temperature != 1:
            rules.append(temperature(config.temperature))
        if config.top_k:
            rules.append(top_k(max(config.top_k, at_least)))
        if config.top_p < 1:
            rules.append(top_p(config.top_p, at_least))
    return rules
