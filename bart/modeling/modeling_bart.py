"""BART: a bidirectional encoder and an autoregressive decoder (Lewis et al., 2020, arXiv:1910.13461).

Parameter names and shapes are those of Hugging Face's `BartForConditionalGeneration`, and so are the results.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bart.configuration.configuration_bart import BartConfig
from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError
from bart.generation import generate, generate_many
from bart.generation.cache import DecoderCache
from bart.inputs import check_ids, check_shape, check_tensors, states_of
from bart.modeling import names
from bart.modeling.layers import BartDecoder, BartEncoder, SourceEncoder
from bart.modeling.loss import IGNORE_INDEX, chunked_cross_entropy, loss_of_tokens
from bart.modeling.packed import Packer
from bart.modeling.pretrained import PretrainedModel
from bart.outputs import LogitsOutput, StatesOutput
from bart.rows import Rows
from bart.tokenization.tokenization_bart import BartTokenizer

logger = logging.getLogger(__name__)
# Source tokens encoded at once on a CPU: their activations stay in its cache.
TOKENS_AT_ONCE = 1024
Ids = TypeVar("Ids", Tensor, Rows)


def training_operations(config: BartConfig, source_length: int, target_length: int, freeze_embeds: bool = False) -> int:
    """Operations of the matrix products of a training step, for one example of so many tokens.

    Attention counts as if every place read every other.
    """
    c, s, t = config, source_length, target_length
    width = c.d_model
    encoder = s * (4 * width**2 + 2 * width * c.encoder_ffn_dim + 2 * width * s)
    decoder = t * (6 * width**2 + 2 * width * c.decoder_ffn_dim + 2 * width * (s + t)) + s * 2 * width**2
    forward = (
        (c.encoder_layers + c.source_encoder_layers) * encoder + c.decoder_layers * decoder + t * width * c.vocab_size
    )
    return 3 * 2 * forward - freeze_embeds * 2 * t * width * c.vocab_size


def shift_tokens_right(labels: Ids, pad_token_id: int, decoder_start_token_id: int) -> Ids:
    """Decoder input for teacher forcing: labels (B, T), or rows, moved one place right behind the start token."""
    if isinstance(labels, Rows):
        shifted = labels.ids.roll(1, dims=1).masked_fill(labels.positions == 0, decoder_start_token_id)
    else:
        shifted = F.pad(labels, (1, 0), value=decoder_start_token_id)[:, :-1]
    shifted = shifted.masked_fill(shifted == IGNORE_INDEX, pad_token_id)
    return replace(labels, ids=shifted) if isinstance(labels, Rows) else shifted


class BartNetwork(nn.Module):
    """Encoder and decoder over one shared embedding table."""

    def __init__(self, config: BartConfig) -> None:
        super().__init__()
        self.config = config
        self.shared = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_token_id)
        self.encoder = BartEncoder(config, self.shared)
        self.decoder = BartDecoder(config, self.shared)

    def shifted(self, labels: Any) -> Any:
        """See `shift_tokens_right`."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def forward(
        self,
        input_ids: Tensor | Rows | None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | Rows | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """input_ids (B, S) and decoder_input_ids (B, T) -> decoder states (B, T, D), encoder states (B, S, D).

        Both may be rows, without masks, whose states are (1, M, D). By default the decoder reads input_ids, `shifted`.

        Raises:
            InputError: inputs are missing, of other shapes, outside the vocabulary, or longer than there are positions.
        """
        if isinstance(input_ids, Rows) and not isinstance(decoder_input_ids, Tensor):
            targets = self.shifted(input_ids) if decoder_input_ids is None else decoder_input_ids
            states = self.encoder(input_ids)
            return self.decoder(targets, None, states, input_ids), states
        states = states_of(encoder_outputs)
        if decoder_input_ids is None:
            ids = check_ids("input_ids", input_ids, self.config.vocab_size, attention_mask=attention_mask)
            is_alone, dtype = decoder_attention_mask is None and states is None, self.shared.weight.dtype
            if is_alone and (rows := self.encoder.backend.rows_of(ids, attention_mask, dtype)) is not None:
                hidden, states = (rows.unpack(states, ids.shape[1]) for states in self(rows))
                return hidden, states
            decoder_input_ids = self.shifted(ids)
        if states is None:
            ids = check_ids("input_ids", input_ids, self.config.source_vocab_size, True, attention_mask=attention_mask)
            states = self.encoder(ids, attention_mask)
        check_shape("attention_mask", attention_mask, states.shape[:2], "encoder_outputs")
        mask = {"decoder_attention_mask": decoder_attention_mask}
        targets = check_ids("decoder_input_ids", decoder_input_ids, self.config.vocab_size, True, **mask)
        if len(targets) != len(states):
            raise InputError(f"targets have {len(targets)} rows; allowed: {len(states)}, as the sources")
        return self.decoder(targets, decoder_attention_mask, states, attention_mask), states


class PretrainedBart(PretrainedModel):
    """BART's network under a head: its weights and files, whatever the head."""

    config_class = BartConfig
    tokenizer_class = BartTokenizer
    shared = names.SHARED
    config: BartConfig

    def __init__(self, config: BartConfig) -> None:
        super().__init__(config)
        self.model = BartNetwork(config)
        self.add_head()
        self.init_weights(self)
        self.tie_weights()

    @classmethod
    def read_names(cls, state: dict[str, Tensor], path: Path) -> tuple[dict[str, Tensor], list[str]]:
        return names.canonical_names(state, path, cls.head)

    def published_as(self) -> tuple[str, str]:
        """A Pre-LN model is an mBART, because transformers knows the same arrangement under that name."""
        if self.config.source_encoder_layers:
            logger.warning("transformers cannot load this model right: it has none with --source_encoder_layers")
        elif self.config.pre_ln:
            logger.warning("for transformers a pre_ln model is an mBART: its Auto classes load it, Bart's do not")
        return ("mbart", f"M{type(self).__name__}") if self.config.pre_ln else super().published_as()

    def tie_weights(self) -> None:
        if not isinstance(self.model.encoder.embed_tokens, SourceEncoder):
            self.model.encoder.embed_tokens = self.model.shared
        self.model.decoder.embed_tokens = self.model.shared

    @property
    def stacks(self) -> list[nn.Module]:
        read = self.model.encoder.embed_tokens
        return [*([read] if isinstance(read, SourceEncoder) else ()), *super().stacks]

    def prepare_decoder_input_ids_from_labels(self, labels: Any) -> Any:
        """Decoder inputs for teacher forcing, as transformers' collator calls it; see `BartNetwork.shifted`."""
        return self.model.shifted(labels)


class BartModel(PretrainedBart):
    """BART without a head: the states of decoder and encoder."""

    head = ()
    reads_padding = True

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
    ) -> StatesOutput:
        """Encode, and decode under teacher forcing; arguments are those of `BartForConditionalGeneration`."""
        inputs = input_ids, attention_mask, decoder_input_ids, decoder_attention_mask, encoder_outputs
        return StatesOutput(*self.model(*inputs))


class BartForConditionalGeneration(PretrainedBart):
    """BART with its language-model head, tied to the embeddings: training, scoring and generation."""

    head = ("final_logits_bias", "lm_head")
    final_logits_bias: Tensor
    generation_config: GenerationConfig

    def add_head(self) -> None:
        config = self.config
        self.generation_config = GenerationConfig.from_model_config(config.to_dict())
        if config.source_encoder_layers:
            self.model.encoder.embed_tokens = SourceEncoder(config)
            self.optional = (names.SOURCE_ENCODER,)
        self.register_buffer("final_logits_bias", torch.zeros(1, config.vocab_size))
        # The head's own weight is as large as the embeddings: on the meta device it takes no memory.
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False, device="meta")

    def tie_weights(self) -> None:
        super().tie_weights()
        self.lm_head.weight = self.model.shared.weight

    def forward(
        self,
        input_ids: Tensor | Rows | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        *,
        labels: Tensor | Rows | None = None,
        summed_loss: bool = False,
        smoothing: float = 0.0,  # transformers' Trainer takes an argument with "label" in its name for labels
    ) -> LogitsOutput:
        """One teacher-forced pass.

        Args:
            input_ids: (B, S) source ids; not needed with encoder_outputs.
            attention_mask: (B, S), 1 for tokens and 0 for padding; None means no padding.
            decoder_input_ids: (B, T); by default labels, else input_ids, moved one place right behind the start token.
            decoder_attention_mask: (B, T); None means causal only.
            encoder_outputs: (B, S, D), what `encode` returned for the same source, or an output or tuple with it.
            labels: (B, T) target ids, -100 where no loss is wanted; the loss is their mean cross entropy. They and
                input_ids may be rows (`bart.rows`), whose logits are (1, M, V) and states (1, M, D).
            summed_loss: give the sum of the cross entropy over the labels in place of their mean, and no logits, which
                then never exist for all tokens (see `bart.modeling.loss`).
            smoothing: of a summed loss: probability spread over the vocabulary.

        Raises:
            InputError: the encoder or the decoder gets nothing to read; labels are not as many as decoder_input_ids;
                or see `BartNetwork.forward`.
        """
        targets: Any = labels
        if isinstance(input_ids, Rows) and isinstance(labels, Rows):
            decoder_input_ids, targets = self.model.shifted(labels), labels.ids
        elif labels is not None:
            check_tensors(labels=labels, decoder_input_ids=decoder_input_ids)
            if decoder_input_ids is None:
                check_ids("labels", targets.masked_fill(targets == IGNORE_INDEX, 0), self.config.vocab_size)
                decoder_input_ids = self.model.shifted(targets)
            check_shape("labels", labels, decoder_input_ids.shape[:2], "decoder_input_ids")
        hidden, encoder_states = self.model(
            input_ids, attention_mask, decoder_input_ids, decoder_attention_mask, encoder_outputs
        )
        if summed_loss:
            self._check_whole()
            if labels is None:
                raise InputError("summed_loss needs labels, and got none")
            states, weight, bias = hidden.flatten(0, 1), self.lm_head.weight, self.final_logits_bias[0]
            loss, correct = chunked_cross_entropy(states, weight, bias, targets.flatten(), smoothing, self.backend)
            return LogitsOutput(loss, None, encoder_states, correct)
        logits = self._logits(hidden)
        return LogitsOutput(loss_of_tokens(logits, targets), logits, encoder_states)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self.lm_head(hidden)
        return logits if self.is_packed else logits + self.final_logits_bias  # which a packed head adds

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encoder states (B, S, D) of input_ids (B, S) under a mask (B, S), 1 for tokens and 0 for padding."""
        check_ids("input_ids", input_ids, self.config.source_vocab_size, True, attention_mask=attention_mask)
        articles = max(1, TOKENS_AT_ONCE // max(1, input_ids.shape[1]))
        if self.device.type != "cpu" or torch.is_grad_enabled() or len(input_ids) <= articles:
            return self.model.encoder(input_ids, attention_mask)
        ids = input_ids.split(articles)
        masks = [None] * len(ids) if attention_mask is None else attention_mask.split(articles)
        return torch.cat([self.model.encoder(*part) for part in zip(ids, masks, strict=True)])

    def new_cache(
        self,
        encoder_states: Tensor,
        attention_mask: Tensor | None = None,
        beams: int = 1,
        max_length: int | None = None,
    ) -> DecoderCache:
        """A cache to decode `beams` rows per article from encoder states (B, S, D), at most max_length tokens each."""
        layers: Any = self.model.decoder.layers
        cross = (layer.encoder_attn.keys_values(encoder_states) for layer in layers)
        _, self_keys, _ = layers[0].self_attn.queries_keys_values(encoder_states[:, :1])
        positions = self.config.max_position_embeddings
        if max_length is not None and max_length > positions:
            raise InputError(f"max_length is {max_length}; allowed: at most {positions}, the model's positions")
        readable = torch.ones_like(encoder_states[:, :, 0]) if attention_mask is None else attention_mask
        return DecoderCache(cross, self_keys, readable.bool(), beams, max_length or positions)

    def decode(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        """Logits (B, K, V) after the next ids (B, K) of each beam, for which `cache.advance` must have made room."""
        return self._logits(self.model.decoder.step(ids, cache))

    generate = generate
    generate_many = generate_many

    def resize_token_embeddings(self, vocab_size: int, *, keep: bool = True) -> nn.Embedding:
        table, kept = super().resize_token_embeddings(vocab_size, keep=keep), vocab_size if keep else 0
        old = self.final_logits_bias[:, :kept]
        self.final_logits_bias = F.pad(old, (0, vocab_size - old.shape[1]))
        self.lm_head.out_features = vocab_size
        return table

    def pack(self, model: BartForConditionalGeneration, packer: Packer) -> None:
        super().pack(model, packer)
        self.generation_config = copy.deepcopy(model.generation_config)
        self.final_logits_bias = model.final_logits_bias.to(packer.dtype)
        head = packer.linear([model.lm_head], bias=model.final_logits_bias[0])
        self.lm_head = head  # type: ignore[assignment]
