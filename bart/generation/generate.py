"""From source ids to generated ids: the loop that joins a model, the score rules and a way to choose.

Shapes: B articles, K beams (or samples) per article, R = B·K decoder rows (row r belongs to article r // K), S source
length, T generated length, D model width, V vocabulary.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bart.errors import InputError
from bart.generation.beam_search import BeamSearch, DiverseBeamGroup, best_hypotheses, draw
from bart.generation.config import GenerationConfig
from bart.generation.rules import Rule, diversity_penalties, rules_for

if TYPE_CHECKING:
    from bart.generation.cache import DecoderCache
    from bart.modeling.modeling_bart import BartForConditionalGeneration

# Steps between two questions to an accelerator whether all is done. Each makes the host wait for the device; each step
# too many costs one decoder step, and changes nothing. On the CPU asking is free, so there every step asks.
STEPS_BETWEEN_CHECKS = 8


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
    rules = rules_for(config, max_length, input_ids, device)
    search = _search_beams if config.num_beams > 1 else _search_single
    beams = config.num_beams if config.num_beams > 1 else config.num_return_sequences
    with _eval_mode(model):
        if encoder_outputs is None:
            encoder_outputs = model.encode(input_ids, mask)
        # The last id of a sequence is never read.
        cache = model.new_cache(encoder_outputs, mask, beams=beams, max_length=max_length - 1)
        output = search(_Decoding(model, cache, rules, config, len(encoder_outputs) * beams, max_length))
    return output if config.return_dict_in_generate else output.sequences


@dataclass
class _Decoding:
    """One call of ``generate``, ready to take its first step."""

    model: BartForConditionalGeneration
    cache: DecoderCache
    rules: list[Rule]
    config: GenerationConfig
    rows: int  # R
    max_length: int  # T

    @property
    def keeps_scores(self) -> bool:
        return self.config.output_scores and self.config.return_dict_in_generate

    @property
    def eos_ids(self) -> Tensor:
        return torch.tensor(self.config.eos_token_ids, dtype=torch.long, device=self.model.device)

    @property
    def fill_id(self) -> int:
        # Without EOS ids there may be no padding id either, and nothing to pad.
        return 0 if self.config.fill_token_id is None else self.config.fill_token_id

    def logits(self, last_ids: Tensor) -> Tensor:
        """Read the ids (R,) that were chosen last; float32 logits (R, V) of the next ones."""
        return self.model.decode(last_ids.view(-1, self.cache.beams), self.cache).flatten(0, 1).float()

    def ruled(self, tokens: Tensor, scores: Tensor) -> Tensor:
        """Scores (N, V) of the ids that follow tokens (N, t), after all rules."""
        for rule in self.rules:
            scores = rule(tokens, scores)
        return scores


class _StopCheck:
    """Counts the steps that matter and finds out, rarely, that no more are needed."""

    def __init__(self, device: torch.device) -> None:
        self.every = 1 if device.type == "cpu" else STEPS_BETWEEN_CHECKS
        self.taken = 0
        self.needed = torch.ones((), dtype=torch.long, device=device)

    def __call__(self, unfinished: Tensor) -> bool:
        """Whether to stop after this step; ``unfinished`` is a bool tensor of any shape, all false when all is done."""
        busy = unfinished.any()
        self.needed += busy
        self.taken += 1
        return self.taken % self.every == 0 and not bool(busy)

    @property
    def steps(self) -> int:
        """Steps up to and including the one after which nothing was unfinished."""
        return min(self.taken, int(self.needed))


def _search_single(decoding: _Decoding) -> GenerationOutput:
    """Greedy search, or sampling."""
    config = decoding.config
    eos_ids, stop = decoding.eos_ids, _StopCheck(decoding.model.device)
    tokens = eos_ids.new_full((decoding.rows, decoding.max_length), decoding.fill_id)
    tokens[:, 0] = config.start_token_id
    unfinished = torch.ones_like(tokens[:, 0], dtype=torch.bool)
    kept: list[Tensor] = []
    for length in range(1, decoding.max_length):
        scores = decoding.ruled(tokens[:, :length], decoding.logits(tokens[:, length - 1]))
        if decoding.keeps_scores:
            kept.append(scores.clone())
        chosen = draw(scores, 1)[:, 0] if config.do_sample else scores.argmax(dim=1)
        tokens[:, length] = torch.where(unfinished, chosen, tokens[:, length])
        unfinished &= ~torch.isin(chosen, eos_ids)
        if stop(unfinished):
            break
    return GenerationOutput(
        sequences=tokens[:, : stop.steps + 1], scores=tuple(kept[: stop.steps]) if decoding.keeps_scores else None
    )


def _search_beams(decoding: _Decoding) -> GenerationOutput:
    """Beam search, taking or sampling candidates; with several groups, diverse beam search.

    An article's rows are those of its first group, then of its second, and so on. In each step the groups choose one
    after the other, for each pays for the ids that those before it chose.
    """
    config, max_length = decoding.config, decoding.max_length
    groups, device = config.num_beam_groups, decoding.model.device
    stop = _StopCheck(device)
    rows = torch.arange(decoding.rows, device=device).view(-1, groups, config.num_beams // groups)
    searches = [
        (BeamSearch if groups == 1 else DiverseBeamGroup)(
            rows[:, group],
            max_length,
            start_token_id=config.start_token_id,
            pad_token_id=decoding.fill_id,
            eos_ids=decoding.eos_ids,
            length_penalty=config.length_penalty,
            early_stopping=config.early_stopping,
            sample=config.do_sample,
        )
        for group in range(groups)
    ]
    kept: list[Tensor] = []
    for length in range(1, max_length):
        last_ids = torch.stack([search.open.tokens[:, :, length - 1] for search in searches], dim=1)
        log_probs = decoding.logits(last_ids).log_softmax(dim=1).view(*rows.shape, -1)
        scores, parents, chosen = [], [], rows.new_empty(len(rows), 0)
        for group, search in enumerate(searches):
            own = log_probs[:, group]
            if group > 0:
                own = own - diversity_penalties(chosen, config.diversity_penalty, own.shape[-1])[:, None]
            scores.append(decoding.ruled(search.prefixes, own.flatten(0, 1)))
            parents.append(search.step(scores[-1]))
            chosen = torch.cat((chosen, search.open.tokens[:, :, length]), dim=1)
        if decoding.keeps_scores:
            kept.append(torch.stack([s.view(len(rows), -1, s.shape[1]) for s in scores], dim=1).flatten(0, 2))
        if stop(torch.stack([search.active for search in searches])):
            break
        decoding.cache.reorder(torch.stack(parents, dim=1).flatten(1) % config.num_beams)

    found = best_hypotheses(searches, config.num_return_sequences)
    steps = int((found.parents >= 0).sum(dim=2).max())
    return GenerationOutput(
        sequences=found.tokens.flatten(0, 1)[:, : steps + 1],
        sequences_scores=found.scores.flatten() if decoding.keeps_scores else None,
        scores=tuple(kept[: stop.steps]) if decoding.keeps_scores else None,
        beam_indices=found.parents.flatten(0, 1)[:, :steps],
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
    if encoder_outputs is not None and encoder_outputs.dim() != 3:
        shape = tuple(encoder_outputs.shape)
        raise InputError(f"encoder_outputs are {shape}; allowed: three dimensions (articles, source length, width)")
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
