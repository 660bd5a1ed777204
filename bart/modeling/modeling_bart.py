"""BART: a bidirectional encoder and an autoregressive decoder (Lewis et al., 2020, arXiv:1910.13461).

Parameter names and shapes are those of Hugging Face's `BartForConditionalGeneration`, and so are the results.

Shapes: B batch, S source length, T target length, K beams, R = B·K decoder rows, D model width, H heads,
Dh = D / H head width, V vocabulary.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.generation import GeneratedArticle, GenerationConfig, GenerationOutput, generate, generate_many
from bart.generation.cache import DecoderCache, LayerCache
from bart.modeling import cpu
from bart.modeling.checkpoint import load_pretrained, save_pretrained

if TYPE_CHECKING:
    from bart.tokenization.tokenization_bart import BartTokenizer

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
# fairseq numbered positions from pad_token_id + 1 = 2, and the published tables keep the two unused rows.
POSITION_OFFSET = 2
# Labels with this value are left out of the loss, as in torch.nn.functional.cross_entropy.
IGNORE_INDEX = -100
# Source tokens encoded at once on a CPU: their activations stay in its cache.
TOKENS_AT_ONCE = 1024


@dataclass
class Seq2SeqOutput:
    """What a forward pass returns; `output[0]` is the loss when there is one, else the logits.

    Attributes:
        logits: (B, T, V).
        loss: scalar, with labels only.
        encoder_last_hidden_state: (B, S, D).
    """

    logits: Tensor
    encoder_last_hidden_state: Tensor
    loss: Tensor | None = None

    def __getitem__(self, index: int) -> Tensor:
        present = (self.loss, self.logits, self.encoder_last_hidden_state)
        return [value for value in present if value is not None][index]


def shift_tokens_right(labels: Tensor, pad_token_id: int, decoder_start_token_id: int) -> Tensor:
    """Decoder input (B, T) for teacher forcing: labels moved one place right behind the start token."""
    shifted = labels.new_full(labels.shape, decoder_start_token_id)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == IGNORE_INDEX, pad_token_id)


def _readable(attention_mask: Tensor | None) -> Tensor | None:
    """(B, S) of ones and zeros -> (B, 1, 1, S), true where a position may be read."""
    return None if attention_mask is None else attention_mask.bool()[:, None, None, :]


def _dropout(states: Tensor, probability: float, training: bool) -> Tensor:
    if training and probability and states.device.type == "cpu":
        return cpu.dropout(states, probability)
    return F.dropout(states, probability, training)


class BartAttention(nn.Module):
    """Multi-head scaled dot-product attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, d_model: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.q_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def _split(self, states: Tensor) -> Tensor:
        """(B, L, D) -> (B, H, L, Dh)."""
        return states.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def queries(self, states: Tensor) -> Tensor:
        """Queries (B, H, T, Dh) of states (B, T, D)."""
        return self._split(self.q_proj(states))

    def keys_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, each (B, H, L, Dh), of states (B, L, D)."""
        return self._split(self.k_proj(states)), self._split(self.v_proj(states))

    def queries_keys_values(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (B, H, L, Dh), of the same states (B, L, D)."""
        return self.queries(states), *self.keys_values(states)

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend with queries (B, H, T, Dh) to keys and values (B, H, L, Dh) -> (B, T, D).

        Args:
            mask: (B or 1, 1, T or 1, L), true, or 0, where a key may be read, and false, or -inf, elsewhere.
        """
        dropout = self.dropout if self.training else 0.0
        on_cpu = query.device.type == "cpu"
        if on_cpu and dropout:
            context = cpu.attend_with_dropout(query, keys, values, mask, is_causal, dropout)
        elif on_cpu and query.dtype == torch.bfloat16 and not (is_causal or torch.is_grad_enabled()):
            context = cpu.attend(query, keys, values, mask)
        else:
            context = F.scaled_dot_product_attention(
                query, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
            )
        return self.out_proj(context.transpose(1, 2).flatten(2))


class _Layer(nn.Module):
    """What encoder and decoder layers share: residual branches and the feed-forward block."""

    def __init__(self, config: BartConfig, ffn_dim: int) -> None:
        super().__init__()
        self.pre_ln = config.pre_ln
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.activation = ACTIVATIONS[config.activation_function]
        self.fc1 = nn.Linear(config.d_model, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def _branch(self, hidden: Tensor, norm: nn.LayerNorm, branch: Callable[[Tensor], Tensor]) -> Tensor:
        """Add a branch's output to the residual stream, normalised after (post-LN) or before (Pre-LN) it."""
        update = _dropout(branch(norm(hidden) if self.pre_ln else hidden), self.dropout, self.training)
        return hidden + update if self.pre_ln else self.add_and_norm(hidden, update, norm)

    @staticmethod
    def add_and_norm(hidden: Tensor, update: Tensor, norm: nn.LayerNorm) -> Tensor:
        return norm(hidden + update)

    def _feed_forward(self, hidden: Tensor) -> Tensor:
        inner = _dropout(self.activation(self.fc1(hidden)), self.activation_dropout, self.training)
        return self.fc2(inner)


class BartEncoderLayer(_Layer):
    def __init__(self, config: BartConfig) -> None:
        super().__init__(config, config.encoder_ffn_dim)
        self.self_attn = BartAttention(config.d_model, config.encoder_attention_heads, config.attention_dropout)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """hidden (B, S, D), mask (B, 1, 1, S) or None -> (B, S, D)."""

        def self_attention(states: Tensor) -> Tensor:
            return self.self_attn(*self.self_attn.queries_keys_values(states), mask)

        hidden = self._branch(hidden, self.self_attn_layer_norm, self_attention)
        hidden = self._branch(hidden, self.final_layer_norm, self._feed_forward)
        if hidden.dtype == torch.float16:  # keep an overflow from turning into NaN downstream
            limit = torch.finfo(torch.float16).max - 1000
            hidden = hidden.clamp(-limit, limit)
        return hidden


class BartDecoderLayer(_Layer):
    def __init__(self, config: BartConfig) -> None:
        super().__init__(config, config.decoder_ffn_dim)
        heads, dropout = config.decoder_attention_heads, config.attention_dropout
        self.self_attn = BartAttention(config.d_model, heads, dropout)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.encoder_attn = BartAttention(config.d_model, heads, dropout)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model)

    def forward(
        self,
        hidden: Tensor,
        self_mask: Tensor | None,
        cross_mask: Tensor | None,
        encoder_states: Tensor | None = None,
        cache: LayerCache | None = None,
        columns: slice | Tensor | None = None,
    ) -> Tensor:
        """One layer over a whole target, or with a cache over the next token of each beam.

        Args:
            hidden: (B, T, D); with a cache (B, K, D), the beams in the place of positions.
            self_mask: broadcasts to (B, H, T, T), or with a cache to (B, H, K, its columns); None means causal.
            cross_mask: (B, 1, 1, S), or None.
            encoder_states: (B, S, D); not needed with a cache, which holds their keys and values.
            columns: where the cache keeps the keys and values of these tokens.

        Returns:
            As hidden.
        """

        def self_attention(states: Tensor) -> Tensor:
            query, keys, values = self.self_attn.queries_keys_values(states)
            if cache is not None:
                keys, values = cache.store(keys, values, columns)
            return self.self_attn(query, keys, values, self_mask, is_causal=self_mask is None)

        def cross_attention(states: Tensor) -> Tensor:
            query = self.encoder_attn.queries(states)
            if cache is not None:
                return self.encoder_attn(query, cache.cross_keys, cache.cross_values, cross_mask)
            return self.encoder_attn(query, *self.encoder_attn.keys_values(encoder_states), cross_mask)

        hidden = self._branch(hidden, self.self_attn_layer_norm, self_attention)
        hidden = self._branch(hidden, self.encoder_attn_layer_norm, cross_attention)
        return self._branch(hidden, self.final_layer_norm, self._feed_forward)


class _Stack(nn.Module):
    """What encoder and decoder share: embeddings, LayerDrop, activation checkpointing, the final norm of Pre-LN."""

    def __init__(self, config: BartConfig, embed_tokens: nn.Embedding, layers: list[_Layer], layerdrop: float) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.layerdrop = layerdrop
        self.max_positions = config.max_position_embeddings
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.activation_checkpointing = False
        self.embed_tokens = embed_tokens
        self.embed_positions = nn.Embedding(config.max_position_embeddings + POSITION_OFFSET, config.d_model)
        self.layers = nn.ModuleList(layers)
        self.layernorm_embedding = nn.LayerNorm(config.d_model)
        self.layer_norm = nn.LayerNorm(config.d_model) if config.pre_ln else nn.Identity()

    def _embed(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """ids (B, T) -> (B, T, D); at positions (B,), where T are the beams, and else at 0 … T - 1."""
        if positions is not None:
            places = self.embed_positions(positions[:, None] + POSITION_OFFSET)
        elif ids.shape[1] <= self.max_positions:
            places = self.embed_positions.weight[POSITION_OFFSET : POSITION_OFFSET + ids.shape[1]]
        else:
            raise InputError(
                f"a sequence of {ids.shape[1]} tokens is longer than the model's max_position_embeddings "
                f"({self.max_positions})"
            )
        hidden = self.layernorm_embedding(self.embed_tokens(ids) * self.embed_scale + places)
        return _dropout(hidden, self.dropout, self.training)

    def _run(self, layer: nn.Module, hidden: Tensor, *args: Any) -> Tensor:
        if self.training and self.layerdrop and torch.rand(()).item() < self.layerdrop:
            return hidden
        if self.activation_checkpointing and self.training:
            return checkpoint(layer, hidden, *args, use_reentrant=False)
        return layer(hidden, *args)


class BartEncoder(_Stack):
    def __init__(self, config: BartConfig, embed_tokens: nn.Embedding) -> None:
        layers = [BartEncoderLayer(config) for _ in range(config.encoder_layers)]
        super().__init__(config, embed_tokens, layers, config.encoder_layerdrop)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """input_ids (B, S), attention_mask (B, S) of ones and zeros or None for all ones -> states (B, S, D)."""
        mask = _readable(attention_mask)
        hidden = self._embed(input_ids)
        for layer in self.layers:
            hidden = self._run(layer, hidden, mask)
        return self.layer_norm(hidden)


class BartDecoder(_Stack):
    def __init__(self, config: BartConfig, embed_tokens: nn.Embedding) -> None:
        layers = [BartDecoderLayer(config) for _ in range(config.decoder_layers)]
        super().__init__(config, embed_tokens, layers, config.decoder_layerdrop)

    def forward(
        self,
        input_ids: Tensor,
        encoder_states: Tensor,
        encoder_attention_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Teacher forcing: input_ids (B, T) over encoder states (B, S, D) -> states (B, T, D).

        attention_mask (B, T) hides target positions besides those that causality hides; right-padded targets need
        none.
        """
        length = input_ids.shape[1]
        self_mask = _readable(attention_mask)
        if self_mask is not None:
            self_mask = self_mask & self_mask.new_ones(length, length).tril()
        cross_mask = _readable(encoder_attention_mask)
        hidden = self._embed(input_ids)
        for layer in self.layers:
            hidden = self._run(layer, hidden, self_mask, cross_mask, encoder_states)
        return self.layer_norm(hidden)

    def step(self, input_ids: Tensor, cache: DecoderCache) -> Tensor:
        """The next token of each beam (B, K), for which `cache.advance` made room -> states (B, K, D)."""
        hidden = self._embed(input_ids, cache.positions)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            hidden = layer(hidden, cache.self_mask, cache.cross_mask, cache=layer_cache, columns=cache.columns)
        return self.layer_norm(hidden)


class BartModel(nn.Module):
    """Encoder and decoder over one shared embedding table."""

    def __init__(self, config: BartConfig) -> None:
        super().__init__()
        self.shared = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_token_id)
        self.encoder = BartEncoder(config, self.shared)
        self.decoder = BartDecoder(config, self.shared)

    def forward(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        decoder_input_ids: Tensor,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """input_ids (B, S) and decoder_input_ids (B, T) -> decoder states (B, T, D), encoder states (B, S, D)."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        hidden = self.decoder(decoder_input_ids, encoder_outputs, attention_mask, decoder_attention_mask)
        return hidden, encoder_outputs


class BartForConditionalGeneration(nn.Module):
    """BART with its language-model head, tied to the embeddings: training, scoring and generation.

    Weights start from N(0, init_std) with zero biases, as BART's were; `from_pretrained` loads trained ones.
    """

    def __init__(self, config: BartConfig) -> None:
        super().__init__()
        config.validate()
        self.config = config
        self.generation_config = GenerationConfig.from_model_config(config)
        self.model = BartModel(config)
        self.register_buffer("final_logits_bias", torch.zeros(1, config.vocab_size))
        # The head gets its weight from tie_weights; one of its own would cost as much memory as the embeddings.
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False, device="meta")
        self.tie_weights()
        if not self.final_logits_bias.is_meta:
            for module in self.model.modules():
                self._init_weights(module)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=self.config.init_std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            with torch.no_grad():
                module.weight[module.padding_idx].zero_()

    def tie_weights(self) -> None:
        """Let encoder, decoder and head use the table of `model.shared`."""
        self.model.encoder.embed_tokens = self.model.shared
        self.model.decoder.embed_tokens = self.model.shared
        self.lm_head.weight = self.model.shared.weight

    @property
    def device(self) -> torch.device:
        return self.final_logits_bias.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.shared.weight.dtype

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        encoder_outputs: Tensor | None = None,
    ) -> Seq2SeqOutput:
        """One teacher-forced pass.

        Args:
            input_ids: (B, S) source ids; not needed with encoder_outputs.
            attention_mask: (B, S), 1 for tokens and 0 for padding; None means no padding.
            decoder_input_ids: (B, T); made from labels, moved right behind the start token, when absent.
            decoder_attention_mask: (B, T); None means causal only.
            labels: (B, T) target ids, -100 where no loss is wanted; the loss is their mean cross entropy.
            encoder_outputs: (B, S, D), what `encode` returned for the same source.

        Raises:
            InputError: neither decoder_input_ids nor labels are given, or neither input_ids nor encoder_outputs, or
                a sequence has more tokens than the model has positions.
        """
        if input_ids is None and encoder_outputs is None:
            raise InputError("forward() needs input_ids or encoder_outputs, and got neither")
        if decoder_input_ids is None:
            if labels is None:
                raise InputError("forward() needs decoder_input_ids or labels, and got neither")
            config = self.config
            decoder_input_ids = shift_tokens_right(labels, config.pad_token_id, config.decoder_start_token_id)
        hidden, encoder_states = self.model(
            input_ids, attention_mask, decoder_input_ids, decoder_attention_mask, encoder_outputs
        )
        logits = self._logits(hidden)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX)
        return Seq2SeqOutput(logits=logits, loss=loss, encoder_last_hidden_state=encoder_states)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden) + self.final_logits_bias

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encoder states (B, S, D) of input_ids (B, S)."""
        articles = max(1, TOKENS_AT_ONCE // input_ids.shape[1])
        if self.device.type != "cpu" or torch.is_grad_enabled() or len(input_ids) <= articles:
            return self.model.encoder(input_ids, attention_mask)
        masks = [None] * len(input_ids) if attention_mask is None else attention_mask.split(articles)
        return torch.cat([self.model.encoder(*part) for part in zip(input_ids.split(articles), masks, strict=False)])

    def new_cache(
        self,
        encoder_states: Tensor,
        attention_mask: Tensor | None = None,
        beams: int = 1,
        max_length: int | None = None,
    ) -> DecoderCache:
        """A cache to decode `beams` rows per article from encoder states (B, S, D), up to max_length tokens each."""
        layers = self.model.decoder.layers
        cross = [layer.encoder_attn.keys_values(encoder_states) for layer in layers]
        _, own, _ = layers[0].self_attn.queries_keys_values(encoder_states[:, :1])
        positions = self.config.max_position_embeddings
        if max_length is not None and max_length > positions:
            raise InputError(f"max_length is {max_length}; allowed: at most {positions}, the model's positions")
        readable = None if attention_mask is None else attention_mask.bool()
        return DecoderCache(cross, own, readable, beams, max_length or positions)

    def decode(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        """Logits (B, K, V) of what follows the next token ids (B, K) of each beam, which the cache then holds.

        `cache.advance` must have made room for them. What is done here is the same in every step, on tensors of the
        same shapes, so that it can be recorded.
        """
        return self._logits(self.model.decoder.step(ids, cache))

    def log_softmax(self, logits: Tensor) -> Tensor:
        """The logarithms of the probabilities that logits (R, V) in fp32 stand for; it may write into the logits."""
        return logits.log_softmax(dim=1)

    def for_inference(self, precision: str = "fp32") -> BartForConditionalGeneration:
        """A copy that only generates, and faster: projections fused, weights laid out for this processor.

        Args:
            precision: fp32; bf16; fp16 (on GPUs); or int8 (on CPUs): weights and inputs of matrix products in 8 bits,
                attention in bf16 where this processor is quick at that, all else in fp32.

        Raises:
            InputError: another precision, int8 where it cannot be computed, or the model is such a copy itself.
        """
        from bart.modeling.packed import inference_copy

        return inference_copy(self, precision)

    def generate(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **options: Any
    ) -> Tensor | GenerationOutput:
        """Generate from input_ids (B, S); see `bart.generation.generate`."""
        return generate(self, input_ids, attention_mask, **options)

    def generate_many(
        self, sources: Sequence[Sequence[int]], batch_size: int, **options: Any
    ) -> Iterator[GeneratedArticle]:
        """Generate for any number of sources, which join and leave a batch; see `bart.generation.generate_many`."""
        return generate_many(self, sources, batch_size, **options)

    def set_activation_checkpointing(self, enabled: bool) -> None:
        """Recompute each layer's activations in the backward pass instead of keeping them (Chen et al., 2016)."""
        self.model.encoder.activation_checkpointing = enabled
        self.model.decoder.activation_checkpointing = enabled

    def resize_token_embeddings(self, vocab_size: int) -> None:
        """Cut or grow the vocabulary; new rows are drawn from N(0, init_std), their logit bias is 0."""
        if vocab_size < 1:
            raise InputError(f"vocab_size is {vocab_size}; allowed: at least 1")
        old = self.model.shared
        kept = min(vocab_size, old.num_embeddings)
        new = nn.Embedding(vocab_size, old.embedding_dim, old.padding_idx, device=self.device, dtype=self.dtype)
        bias = self.final_logits_bias.new_zeros(1, vocab_size)
        with torch.no_grad():
            self._init_weights(new)
            new.weight[:kept] = old.weight[:kept]
            bias[:, :kept] = self.final_logits_bias[:, :kept]
        new.weight.requires_grad_(old.weight.requires_grad)
        self.model.shared, self.final_logits_bias = new, bias
        self.lm_head.out_features = vocab_size
        self.tie_weights()
        self.config.vocab_size = vocab_size
        self.config.validate()

    @classmethod
    def from_pretrained(
        cls, path_or_name: str | os.PathLike[str], config: BartConfig | None = None
    ) -> BartForConditionalGeneration:
        """Load weights from a directory, a file or the Hub, in eval mode; see `bart.modeling.checkpoint`."""
        return load_pretrained(cls, path_or_name, config)

    def save_pretrained(self, directory: str | os.PathLike[str], tokenizer: BartTokenizer | None = None) -> None:
        """Write a Hub-format directory that `transformers` loads; see `bart.modeling.checkpoint`."""
        save_pretrained(self, directory, tokenizer)
