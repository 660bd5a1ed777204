"""From source ids to generated ids: `generate` for one batch, and for articles that join and leave a batch."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bart.configuration.configuration_generation import GenerationConfig
from bart.elsewhere import take_others
from bart.errors import InputError, in_short
from bart.generation.hooks import Allowed, Criterion, Processor, hooks_for
from bart.generation.model import Model
from bart.generation.rules import NO_ID, rules_for
from bart.generation.schedule import Sources, decode
from bart.generation.search import Hypotheses
from bart.inputs import check_ids, check_shape, check_tensors, states_of
from bart.outputs import GenerationOutput

# Gives at most so many sources, or none: a number of the caller's and the ids of each, without padding.
Arrivals = Callable[[int], Sequence[tuple[int, Sequence[int]]]]
# Called with the numbers of articles, their encoder states (B, S, D) and their mask (B, S) bool.
Encoded = Callable[[list[int], Tensor, Tensor], object]


@torch.no_grad()
def generate(
    model: Model,
    input_ids: Tensor | None = None,
    generation_config: Any = None,
    *,
    attention_mask: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
    encoder_outputs: Any = None,
    prefix_allowed_tokens_fn: Allowed | None = None,
    logits_processor: Sequence[Processor] | None = None,
    stopping_criteria: Sequence[Criterion] | None = None,
    streamer: Any = None,
    **options: Any,
) -> Tensor | GenerationOutput:
    """Generate ids with greedy search, sampling or beam search.

    In fp32 the ids are those of transformers 5's ``generate``. The model runs in eval mode and gets its mode back;
    threads that share a model call ``model.eval()`` before.

    Args:
        input_ids: (B, S) int64; may be left out with encoder_outputs.
        generation_config: a GenerationConfig, one of transformers, or a dict; options that it was given stand in place
            of those of ``model.generation_config``.
        inputs_embeds: (B, S, D) embeddings of tokens, in place of input_ids.
        attention_mask: (B, S), 1 for ids and 0 for padding. None: padding ids are masked, unless they are also EOS.
        encoder_outputs: (B, S, D), what ``model.encode`` returned for the same articles, or an output or tuple with it.
        prefix_allowed_tokens_fn: called in each step for each row with the article's number and the row's ids (t,), a
            tensor; returns the ids that may follow.
        logits_processor: a list of callables, such as transformers' LogitsProcessorList: (R, t) ids and (R, V) scores
            (log-probabilities with beams) -> scores. They come after the rules of the options, before temperature,
            top_k and top_p.
        stopping_criteria: a list of callables, such as transformers' StoppingCriteriaList: (R, t) ids, with beams those
            of all candidates, and the scores so far, or None without output_scores -> (R,) bool, true to end a row.
        streamer: without beams, as transformers' TextStreamer: its method `put` gets the start ids (R, 1), then the ids
            (R,) of each step; at last its method `end` is called.
        options: fields of GenerationConfig, in place of those of generation_config.

    Returns:
        (B·N, T) int64 ids, from the start token on, padded on the right to the longest of them; with
        return_dict_in_generate a GenerationOutput.

    Raises:
        InputError: an unknown or bad option, or inputs of a wrong type, shape or length, or outside the vocabulary.
    """
    take_others("generate()", options)
    options.pop("labels", None)  # with which tokenizers and trainers of transformers call it
    config, max_length = _config(model, {**options, "generation_config": generation_config})
    if inputs_embeds is not None:
        if input_ids is not None or encoder_outputs is not None:
            raise InputError("inputs_embeds, input_ids and encoder_outputs exclude each other; give one of them")
        with _eval_mode(model):
            encoder_outputs = model.encode(inputs_embeds, attention_mask)
    device, encoder_outputs = model.device, states_of(encoder_outputs)
    check_tensors(input_ids=input_ids, attention_mask=attention_mask)
    input_ids, attention_mask, encoder_outputs = (
        None if tensor is None else tensor.to(device) for tensor in (input_ids, attention_mask, encoder_outputs)
    )
    mask = _checked_mask(model, config, input_ids, attention_mask, encoder_outputs)
    hooks = hooks_for(config, prefix_allowed_tokens_fn, logits_processor, stopping_criteria, streamer)
    rules_for(config, max_length, input_ids, device)  # raises what it refuses before anything is computed
    with _eval_mode(model):
        states = encoder_outputs
        if states is None:
            states = model.encode(input_ids, mask)  # type: ignore[arg-type]  # _checked_mask refuses neither
        # Random draws, kept scores and a caller's code need the rows of the whole batch to the end.
        may_leave = not config.do_sample and not hooks
        if streamer is not None:
            streamer.put(torch.full((len(states) * config.num_return_sequences, 1), config.start_token_id))
        sources = iter([Sources(list(range(len(states))), mask, states, input_ids)])
        run = model, config, max_length, len(states), lambda _: next(sources, None)
        parts = list(decode(*run, may_leave=may_leave, hooks=hooks))
    if streamer is not None:
        streamer.end()
    numbers = torch.tensor([number for done, _ in parts for number in done], device=device)
    hypotheses = Hypotheses.join([part for _, part in parts], dim=0).of(numbers.argsort())
    output = _output(config, hypotheses, hooks.kept)
    return output if config.return_dict_in_generate else output.sequences


@dataclass
class GeneratedArticle:
    """An article that `generate_many` or `generate_live` has finished.

    Attributes:
        index: its place among the sources; for `generate_live` its number.
        sequences: (N, T) ids on the CPU, best first; padded on the right to the longest.
        seconds: from its joining the batch to its end, and its share of the encoding.
        encoding_seconds: its share of the encoding: the time of its group over the number of articles in it.
    """

    index: int
    sequences: Tensor
    seconds: float
    encoding_seconds: float = 0.0


@torch.no_grad()
def generate_many(
    model: Model,
    sources: Sequence[Sequence[int]],
    batch_size: int = 8,
    *,
    encoded: Encoded | None = None,
    **options: Any,
) -> Iterator[GeneratedArticle]:
    """Generate for any number of articles; new ones take the places of those that are done.

    Long sources come first, so that memory runs out at once if at all. In fp32 each article gets the ids that
    `generate` gives it alone. Articles are yielded in the order in which they are done.

    Args:
        sources: the ids of each article, without padding.
        batch_size: articles decoded at once.
        encoded: called for each group of articles after they were encoded; its time counts in no article's seconds.
        options: fields of GenerationConfig; return_dict_in_generate and output_scores have no effect.

    Raises:
        InputError: as `generate` does, before anything is generated.
    """
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; allowed: at least 1")
    for index, source in enumerate(sources):
        _check_source(model, index, source)
    waiting = sorted(range(len(sources)), key=lambda index: len(sources[index]))

    def longest(_: int) -> list[tuple[int, Sequence[int]]]:
        numbers = [waiting.pop() for _ in range(min(batch_size, len(waiting)))]  # encoding them together is quicker
        return [(number, sources[number]) for number in numbers]

    yield from _articles(model, options, batch_size, longest, encoded)


@torch.no_grad()
def generate_live(model: Model, arrivals: Arrivals, batch_size: int, **options: Any) -> Iterator[GeneratedArticle]:
    """Generate as `generate_many` does, for sources that arrive while others are decoded, and then join these.

    Articles are yielded as soon as they are done; in a batch of more than eight, when an eighth of it is.

    Args:
        arrivals: asked before the first step, and after each step (on accelerators after some steps) until there is no
            room or it gives none. Generation ends when all articles are done and there are no more.

    Raises:
        InputError: as `generate` does; for a source when it arrives.
    """
    yield from _articles(model, options, batch_size, arrivals, live=True)


def _articles(
    model: Model,
    options: dict[str, Any],
    batch_size: int,
    arrivals: Arrivals,
    encoded: Encoded | None = None,
    live: bool = False,
) -> Iterator[GeneratedArticle]:
    """The loop of `generate_many` and `generate_live`; more may arrive at once than there is room for."""
    config, max_length = _config(model, options)
    ready = Sources([], torch.empty(0), torch.empty(0), None)  # encoded together; those that have not joined yet
    callers = 0.0  # seconds of the caller's work, which are left out
    began: dict[int, float] = {}  # when each article joined
    shares: dict[int, float] = {}  # the seconds of each in the encoding of its group

    def waited() -> float:
        """The time at which the device is done."""
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        return time.perf_counter()

    def next_sources(room: int) -> Sources | None:
        nonlocal ready, callers
        if not ready.numbers:
            arrived = arrivals(room)
            if not arrived:
                return None
            for number, source in arrived if live else ():
                _check_source(model, number, source)
            numbers = [number for number, _ in arrived]
            rows = [torch.as_tensor(source, dtype=torch.long) for _, source in arrived]
            ids = pad_sequence(rows, batch_first=True, padding_value=NO_ID).to(model.device)
            mask = ids != NO_ID
            start = waited()
            states = model.encode(ids.where(mask, config.fill_token_id or 0), mask)
            end = waited()
            shares.update(dict.fromkeys(numbers, (end - start) / len(numbers)))
            ready = Sources(numbers, mask, states, ids)
            if encoded is not None:
                encoded(numbers, states, mask)
                callers += waited() - end
        first, ready = ready.of(slice(0, room)), ready.of(slice(room, None))
        began.update(dict.fromkeys(first.numbers, time.perf_counter() - callers))
        return first

    with _eval_mode(model):
        for numbers, hypotheses in decode(model, config, max_length, batch_size, next_sources, live=live):
            steps = (hypotheses.parents >= 0).sum(dim=2).amax(dim=1).tolist()
            now = time.perf_counter() - callers
            for number, tokens, length in zip(numbers, hypotheses.tokens.cpu(), steps, strict=True):
                # An ordinary tensor, which may be changed and trained on, and does not keep other articles' ids.
                sequences = tokens[:, : length + 1].clone()
                share = shares.pop(number)
                yield GeneratedArticle(number, sequences, now - began.pop(number) + share, share)


def _config(model: Model, options: dict[str, Any]) -> tuple[GenerationConfig, int]:
    """The options for this call, checked against the model, and the greatest length of a sequence."""
    given = GenerationConfig.given_in(options.pop("generation_config", None))
    config = GenerationConfig(**{**GenerationConfig.given_in(model.generation_config), **given, **options})
    config.check_vocabulary(model.config.vocab_size)
    max_length = config.longest(model.config.max_position_embeddings)
    if config.shortest > max_length:
        warnings.warn(f"min_length ({config.shortest}) is above max_length ({max_length})", stacklevel=4)
    return config, max_length


def _check_source(model: Model, number: int, source: Sequence[int]) -> None:
    """Raise InputError for a source that is no ids, has none or too many, or has ids outside the vocabulary."""
    name, most = f"source {number}", model.config.max_position_embeddings
    try:
        ids = torch.as_tensor(source)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} is {in_short(source)}; allowed: ids, such as tokenizer(text)['input_ids']") from None
    if not 0 < ids.numel() <= most:
        raise InputError(f"{name} has {ids.numel()} ids; allowed: 1 to {most}, the model's positions")
    check_ids(name, ids[None], model.config.source_vocab_size)


def _output(config: GenerationConfig, hypotheses: Hypotheses, kept: list[Tensor] | None) -> GenerationOutput:
    """The result of all articles (B, N, …), cut to the longest sequence."""
    parents = hypotheses.parents
    steps = int((parents >= 0).sum(dim=2).max())
    beam_indices = None
    if config.num_beams > 1:
        first_rows = config.num_beams * torch.arange(len(parents), device=parents.device)[:, None, None]
        beam_indices = torch.where(parents < 0, -1, parents + first_rows).flatten(0, 1)[:, :steps]
    return GenerationOutput(
        sequences=hypotheses.tokens.flatten(0, 1)[:, : steps + 1],
        sequences_scores=hypotheses.scores.flatten() if kept and config.num_beams > 1 else None,
        scores=tuple(kept) if kept else None,
        beam_indices=beam_indices,
    )


@contextmanager
def _eval_mode(model: Model) -> Iterator[None]:
    """Put all modules into eval mode; give each its mode back at the end."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _checked_mask(
    model: Model,
    config: GenerationConfig,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    encoder_outputs: Tensor | None,
) -> Tensor | None:
    """The attention mask (B, S) to use, None where it would be all ones; raises InputError as `generate` says."""
    source = input_ids if input_ids is not None else encoder_outputs
    if source is None:
        raise InputError("generate() needs input_ids or encoder_outputs, and got neither")
    if input_ids is not None:
        check_ids("input_ids", input_ids.cpu(), model.config.source_vocab_size)
    shape, positions = tuple(source.shape[:2]), model.config.max_position_embeddings
    states_shape = (*shape, model.config.d_model)
    if encoder_outputs is not None and encoder_outputs.shape != states_shape:
        got = tuple(encoder_outputs.shape)
        raise InputError(f"encoder_outputs are {got}; allowed: {states_shape}, (articles, source length, d_model)")
    if 0 in shape:
        raise InputError(f"the source is {shape}; allowed: at least one article and one id")
    if shape[1] > positions:
        raise InputError(f"the source has {shape[1]} ids; allowed: at most {positions}, the model's positions")
    check_shape("attention_mask", attention_mask, source.shape[:2], "the source")
    pad = config.fill_token_id
    if attention_mask is None and input_ids is not None and pad is not None and pad not in config.eos_token_ids:
        attention_mask = input_ids != pad
    if attention_mask is None or bool(attention_mask.all()):
        return None
    if not bool(attention_mask.any(dim=1).all()):
        raise InputError("an article is all padding; allowed: at least one id that the attention mask keeps")
    return attention_mask
