"""From source ids to generated ids: the loop that joins a model, the score rules and a way to choose.

Shapes: B articles, K beams (or samples) per article, R = B·K decoder rows (row r belongs to article r // K), S source
length, T generated length, D model width, V vocabulary.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bart.errors import InputError
from bart.generation.beam_search import Hypotheses
from bart.generation.config import GenerationConfig
from bart.generation.rules import NO_ID, rules_for
from bart.generation.schedule import Sources, decode

if TYPE_CHECKING:
    from bart.modeling.modeling_bart import BartForConditionalGeneration


@dataclass
class GenerationOutput:
    """What ``generate(return_dict_in_generate=True)`` returns; N sequences per article.

    Attributes:
        sequences: (B·N, T) ids, article by article, best first; padded on the right to the longest.
        sequences_scores: (B·N,) length-penalised scores; only with beams and output_scores.
        scores: one (R, V) tensor per step, the scores after all rules; only with output_scores.
        beam_indices: (B·N, T - 1), for each generated id the row of ``scores`` it was chosen in, -1 after the end; only
            with beams.
    """

    sequences: Tensor
    sequences_scores: Tensor | None = None
    scores: tuple[Tensor, ...] | None = None
    beam_indices: Tensor | None = None


@torch.no_grad()
def generate(
    model: BartForConditionalGeneration,
    input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    *,
    encoder_outputs: Tensor | None = None,
    **options: Any,
) -> Tensor | GenerationOutput:
    """Generate ids with greedy search, sampling, beam search or diverse beam search.

    In fp32 the ids are those of transformers 5's ``generate`` (for beam groups: of transformers 4's). The model runs in
    eval mode and gets its mode back.

    Args:
        model: only its encode, new_cache, decode, config, generation_config and device are used.
        input_ids: (B, S) int64; may be left out with encoder_outputs.
        attention_mask: (B, S), 1 for ids and 0 for padding. None: the padding ids of input_ids are masked, unless the
            padding id is also an EOS id.
        encoder_outputs: (B, S, D), what ``model.encode`` returned for the same articles; saves encoding them again.
        options: fields of GenerationConfig; they override ``model.generation_config``.

    Returns:
        (B·num_return_sequences, T) int64 ids, from the start token on, padded on the right, T the longest of them; with
        return_dict_in_generate a GenerationOutput.

    Raises:
        InputError: an unknown or bad option, inputs of a wrong shape, an empty batch, ids outside the vocabulary, an
            article without a single unmasked id, or more ids than the model has positions.
    """
    config = model.generation_config.merged(**options)
    config.check_vocabulary(model.config.vocab_size)
    device = model.device
    input_ids, attention_mask, encoder_outputs = (
        None if tensor is None else tensor.to(device) for tensor in (input_ids, attention_mask, encoder_outputs)
    )
    mask = _checked_mask(model, config, input_ids, attention_mask, encoder_outputs)
    max_length = config.longest(model.config.max_position_embeddings)
    if config.shortest > max_length:
        warnings.warn(f"min_length ({config.shortest}) is above max_length ({max_length})", stacklevel=3)
    rules_for(config, max_length, input_ids, device)  # refuses what it cannot apply before anything is computed
    kept: list[Tensor] | None = [] if config.output_scores and config.return_dict_in_generate else None
    with _eval_mode(model):
        if encoder_outputs is None:
            encoder_outputs = model.encode(input_ids, mask)
        articles = [Sources(list(range(len(encoder_outputs))), mask, encoder_outputs, input_ids)]
        parts = list(
            decode(
                model,
                config,
                max_length,
                len(encoder_outputs),
                lambda _: articles.pop() if articles else None,
                # Random draws and the rows of kept scores are those of the whole batch to the end.
                may_leave=kept is None and not config.do_sample,
                kept=kept,
            )
        )
    numbers = torch.tensor([number for done, _ in parts for number in done], device=device)
    found = Hypotheses.join([part for _, part in parts], dim=0).of(numbers.argsort())
    output = _output(config, found, kept)
    return output if config.return_dict_in_generate else output.sequences


@dataclass
class GeneratedArticle:
    """An article that `generate_many` or `generate_live` is done with.

    Attributes:
        index: its place among the sources; for `generate_live` its number.
        sequences: (N, T) ids, best first; padded on the right to the longest.
        seconds: in the batch, and its share of the encoding with others.
    """

    index: int
    sequences: Tensor
    seconds: float


@torch.no_grad()
def generate_many(
    model: BartForConditionalGeneration, sources: Sequence[Sequence[int]], batch_size: int, **options: Any
) -> Iterator[GeneratedArticle]:
    """Generate for any number of articles, of which new ones take the places of those that are done.

    Long sources come first: articles of like length are in the batch together, and memory runs out at once if at all.
    In fp32 each article gets the ids that `generate` gives it alone.

    Args:
        sources: ids of each article, without padding.
        batch_size: articles decoded at once.
        options: fields of GenerationConfig; return_dict_in_generate and output_scores have no effect.

    Yields:
        Articles in the order in which they are done.

    Raises:
        InputError: as `generate` does, before anything is generated.
    """
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; allowed: at least 1")
    config = model.generation_config.merged(**options)
    config.check_vocabulary(model.config.vocab_size)
    max_length = config.longest(model.config.max_position_embeddings)
    for index, source in enumerate(sources):
        _check_source(model, index, source)
    waiting = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    ready = Sources([], None, torch.empty(0), None)  # encoded together, of which some wait to join
    encoding = 0.0  # seconds of each of these
    joined: dict[int, float] = {}  # when each article joined, had it been encoded just before

    def next_sources(count: int) -> Sources | None:
        nonlocal ready, encoding
        start = time.perf_counter()
        if not ready.numbers:
            if not waiting:
                return None
            numbers = [waiting.pop() for _ in range(min(batch_size, len(waiting)))]
            ready = _encoded(model, config, numbers, [sources[number] for number in numbers])
            encoding = (time.perf_counter() - start) / len(ready.numbers)
        longest = len(sources[ready.numbers[0]])
        first, ready = ready.of(slice(0, count), longest), ready.of(slice(count, None), longest)
        for number in first.numbers:
            joined[number] = time.perf_counter() - encoding
        return first

    with _eval_mode(model):
        yield from _articles(decode(model, config, max_length, batch_size, next_sources), joined)


@torch.no_grad()
def generate_live(
    model: BartForConditionalGeneration,
    arrivals: Callable[[int], Sequence[tuple[int, Sequence[int]]]],
    batch_size: int,
    **options: Any,
) -> Iterator[GeneratedArticle]:
    """Generate for sources that may arrive while others are in work, and then join these.

    In fp32 each article gets the ids that `generate` gives it alone.

    Args:
        arrivals: gives at most so many of the sources that have arrived, each as a number of its own and its ids
            without padding; none where there are none. It is asked once before the first step, and after each one
            (on accelerators after some) until there is no room or it gives none. Once all articles are done and there
            are no more, generation ends.
        batch_size: articles decoded at once.
        options: as for `generate_many`.

    Yields:
        Articles as soon as they are done; in a batch of more than eight, when an eighth of it is.

    Raises:
        InputError: as `generate` does; for a source when it arrives.
    """
    config = model.generation_config.merged(**options)
    config.check_vocabulary(model.config.vocab_size)
    max_length = config.longest(model.config.max_position_embeddings)
    joined: dict[int, float] = {}

    def next_sources(room: int) -> Sources | None:
        arrived = arrivals(room)
        for number, source in arrived:
            _check_source(model, number, source)
            joined[number] = time.perf_counter()
        if not arrived:
            return None
        return _encoded(model, config, [number for number, _ in arrived], [source for _, source in arrived])

    with _eval_mode(model):
        yield from _articles(decode(model, config, max_length, batch_size, next_sources, live=True), joined)


def _check_source(model: BartForConditionalGeneration, number: int, source: Sequence[int]) -> None:
    """Raise InputError for a source without ids, with too many, or with some that are not in the vocabulary."""
    if not 0 < len(source) <= model.config.max_position_embeddings:
        most = model.config.max_position_embeddings
        raise InputError(f"source {number} has {len(source)} ids; allowed: 1 to {most}, the model's positions")
    if not (min(source) >= 0 and max(source) < model.config.vocab_size):
        last = model.config.vocab_size - 1
        raise InputError(f"source {number} holds {min(source)} to {max(source)}; allowed: ids from 0 to {last}")


def _encoded(
    model: BartForConditionalGeneration, config: GenerationConfig, numbers: list[int], sources: Sequence[Sequence[int]]
) -> Sources:
    """Sources, encoded together."""
    lengths = torch.tensor([len(source) for source in sources])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    ids = torch.full(mask.shape, config.fill_token_id or 0)
    ids[mask] = torch.cat([torch.as_tensor(source, dtype=torch.long) for source in sources])
    ids, mask = ids.to(model.device), mask.to(model.device)
    return Sources(numbers, mask, model.encode(ids, mask), ids.masked_fill(~mask, NO_ID))


def _articles(parts: Iterator[tuple[list[int], Hypotheses]], joined: dict[int, float]) -> Iterator[GeneratedArticle]:
    """The articles of each part of the results; joined says when each of those in work joined."""
    for numbers, found in parts:
        steps = (found.parents >= 0).sum(dim=2).amax(dim=1).tolist()
        now = time.perf_counter()
        for number, tokens, length in zip(numbers, found.tokens.cpu(), steps, strict=True):
            # An ordinary tensor, which may be changed and trained on, and does not keep those of other articles.
            sequences = tokens[:, : length + 1].clone()
            yield GeneratedArticle(number, sequences, now - joined.pop(number))


def _output(config: GenerationConfig, found: Hypotheses, kept: list[Tensor] | None) -> GenerationOutput:
    """The result of all articles (B, N, …), cut to the longest sequence."""
    steps = int((found.parents >= 0).sum(dim=2).max())
    beam_indices = None
    if config.num_beams > 1:
        first_rows = config.num_beams * torch.arange(len(found.parents), device=found.parents.device)[:, None, None]
        beam_indices = torch.where(found.parents < 0, -1, found.parents + first_rows).flatten(0, 1)[:, :steps]
    return GenerationOutput(
        sequences=found.tokens.flatten(0, 1)[:, : steps + 1],
        sequences_scores=found.scores.flatten() if kept and config.num_beams > 1 else None,
        scores=tuple(kept) if kept else None,
        beam_indices=beam_indices,
    )


@contextmanager
def _eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Eval mode inside, the mode of each module as it was after it."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _checked_mask(
    model: BartForConditionalGeneration,
    config: GenerationConfig,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    encoder_outputs: Tensor | None,
) -> Tensor | None:
    """The attention mask (B, S) to use, None where it would be all ones; raises InputError as `generate` says."""
    source = input_ids if input_ids is not None else encoder_outputs
    if source is None:
        raise InputError("generate() needs input_ids or encoder_outputs, and got neither")
    if input_ids is not None and (input_ids.dim() != 2 or input_ids.dtype not in (torch.int64, torch.int32)):
        got = f"{tuple(input_ids.shape)} of {input_ids.dtype}"
        raise InputError(f"input_ids are {got}; allowed: two dimensions (articles, source length) of int64")
    width = model.config.d_model
    if encoder_outputs is not None and (encoder_outputs.dim() != 3 or encoder_outputs.shape[2] != width):
        shape = tuple(encoder_outputs.shape)
        raise InputError(f"encoder_outputs are {shape}; allowed: three dimensions (articles, source length, {width})")
    shape = source.shape[:2]
    if 0 in shape:
        raise InputError(f"the source is {tuple(shape)}; allowed: at least one article and one id")
    positions = model.config.max_position_embeddings
    if shape[1] > positions:
        raise InputError(f"the source has {shape[1]} ids; allowed: at most {positions}, the model's positions")
    if encoder_outputs is not None and encoder_outputs.shape[:2] != shape:
        raise InputError(
            f"encoder_outputs are of {tuple(encoder_outputs.shape[:2])}; allowed: {tuple(shape)}, as input_ids"
        )
    if attention_mask is not None and attention_mask.shape != shape:
        raise InputError(f"attention_mask is {tuple(attention_mask.shape)}; allowed: {tuple(shape)}, as the source")
    if input_ids is not None:
        least, most = (int(bound) for bound in input_ids.aminmax())
        if least < 0 or most >= model.config.vocab_size:
            raise InputError(f"input_ids hold {least} to {most}; allowed: 0 to {model.config.vocab_size - 1}")
    pad = config.fill_token_id
    if attention_mask is None and input_ids is not None and pad is not None and pad not in config.eos_token_ids:
        attention_mask = input_ids != pad
    if attention_mask is None or bool(attention_mask.all()):
        return None
    if not bool(attention_mask.any(dim=1).all()):
        raise InputError("an article is all padding; allowed: at least one id that the attention mask keeps")
    return attention_mask
