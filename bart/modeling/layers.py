"""The parts of BART's network: attention, layers, and the encoder and decoder stacks.

A copy for inference (`bart.modeling.packed`) replaces attention and linear layers by modules with the same methods.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bart.backend import BackendModule, Mask, Streams
from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.generation.cache import DecoderCache, LayerCache
from bart.rows import Rows, Spans


class BartAttention(BackendModule):
    """Multi-head attention (Vaswani et al., 2017, section 3.2.2)."""

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
        return self._split(self.backend.linear(states, self.q_proj))

    def keys_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, each (B, H, L, Dh), of states (B, L, D)."""
        return self._projected(states, self.k_proj, self.v_proj)

    def queries_keys_values(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (B, H, L, Dh), of the same states (B, L, D)."""
        return self._projected(states, self.q_proj, self.k_proj, self.v_proj)

    def _projected(self, states: Tensor, *layers: nn.Linear) -> Any:
        return tuple(self._split(part) for part in self.backend.project(states, layers))

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Any = None, is_causal: bool = False) -> Tensor:
        """Attend as `Backend.attend` does and join the heads -> (B, T, D), the input of `out_proj`."""
        dropout = self.dropout if self.training else 0.0
        return self.backend.attend(query, keys, values, mask, is_causal, dropout).transpose(1, 2).flatten(2)


class _Layer(BackendModule):
    """The base of encoder and decoder layers: residual branches, self-attention and the feed-forward block."""

    def __init__(self, config: BartConfig, heads: int, ffn_dim: int) -> None:
        super().__init__()
        self.pre_ln = config.pre_ln
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.activation: str | None = config.activation_function
        self.fc1 = nn.Linear(config.d_model, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)
        self.self_attn = BartAttention(config.d_model, heads, config.attention_dropout)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)

    def _branch(self, states: Streams, norm: nn.LayerNorm, branch: Callable[[Tensor], Any], last: nn.Module) -> Streams:
        """Add a branch and its last layer to the residual stream, normalised after (post-LN) or before (Pre-LN) it."""
        hidden, read, _ = states
        dropout = self.dropout if self.training else 0.0
        if self.pre_ln:
            hidden = self.backend.dropout(self.backend.linear(branch(norm(hidden)), last), dropout, added=hidden)
            return hidden, hidden, None
        return self.backend.add_and_norm(branch(read), last, states, norm, dropout)

    def _feed_forward(self, hidden: Tensor) -> Any:
        dropout = self.activation_dropout if self.training else 0.0
        return self.backend.activated(hidden, self.fc1, self.activation, dropout)


class BartEncoderLayer(_Layer):
    def __init__(self, config: BartConfig) -> None:
        super().__init__(config, config.encoder_attention_heads, config.encoder_ffn_dim)

    def forward(self, states: Streams, mask: Mask) -> Streams:
        """The states are (B, S, D), or (1, M, D) of rows; the mask is that of `Backend.attend`."""

        def self_attention(read: Tensor) -> Tensor:
            return self.self_attn(*self.self_attn.queries_keys_values(read), mask)

        states = self._branch(states, self.self_attn_layer_norm, self_attention, self.self_attn.out_proj)
        hidden, read, seed = self._branch(states, self.final_layer_norm, self._feed_forward, self.fc2)
        if hidden.dtype == torch.float16:  # an overflow must not become NaN in later layers
            limit = torch.finfo(torch.float16).max - 1000
            hidden = read = hidden.clamp(-limit, limit)
        return hidden, read, seed


class BartDecoderLayer(_Layer):
    def __init__(self, config: BartConfig) -> None:
        super().__init__(config, config.decoder_attention_heads, config.decoder_ffn_dim)
        self.encoder_attn = BartAttention(config.d_model, config.decoder_attention_heads, config.attention_dropout)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model)

    def forward(
        self,
        states: Streams,
        self_mask: Mask,
        cross_mask: Mask,
        sources: Tensor | tuple[Tensor, Tensor],
        cache: LayerCache | None = None,
        columns: Any = None,
    ) -> Streams:
        """Run the layer over a whole target, or with a cache over the next token of each beam.

        Args:
            states: (B, T, D), or those (1, M, D) of rows; with a cache (B, K, D).
            self_mask: a tensor that broadcasts to (B, H, T, T), or with a cache to (B, H, K, its columns); None and
                masks of rows mean causal.
            cross_mask: (B, 1, 1, S), None, or that of rows.
            sources: encoder states (B, S, D), or those of rows, or their keys and values, each (B, H, S, Dh).
        """

        def self_attention(read: Tensor) -> Tensor:
            query, keys, values = self.self_attn.queries_keys_values(read)
            if cache is not None:
                keys, values = cache.store(keys, values, columns)
            return self.self_attn(query, keys, values, self_mask, is_causal=not isinstance(self_mask, Tensor))

        def cross_attention(read: Tensor) -> Tensor:
            query = self.encoder_attn.queries(read)
            keys, values = sources if isinstance(sources, tuple) else self.encoder_attn.keys_values(sources)
            return self.encoder_attn(query, keys, values, cross_mask)

        states = self._branch(states, self.self_attn_layer_norm, self_attention, self.self_attn.out_proj)
        states = self._branch(states, self.encoder_attn_layer_norm, cross_attention, self.encoder_attn.out_proj)
        return self._branch(states, self.final_layer_norm, self._feed_forward, self.fc2)


def _readable(mask: Any) -> Tensor | None:
    """(B, S) of ones and zeros -> (B, 1, 1, S), true where a position may be read."""
    return None if mask is None else mask.bool()[:, None, None, :]


class _Stack(BackendModule):
    """The base of encoder and decoder: embeddings, LayerDrop, activation checkpointing, the final norm of Pre-LN."""

    position_offset = 2  # fairseq begins with pad_token_id + 1, and published tables keep the rows before, too

    def __init__(
        self, config: BartConfig, embed_tokens: nn.Embedding, layers: Iterable[_Layer], layerdrop: float
    ) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.layerdrop = layerdrop
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.activation_checkpointing = False
        self.embed_tokens: Any = embed_tokens  # or a SourceEncoder
        self.embed_positions = nn.Embedding(config.max_position_embeddings + self.position_offset, config.d_model)
        self.layers = nn.ModuleList(layers)
        self.layernorm_embedding = nn.LayerNorm(config.d_model)
        self.layer_norm = nn.LayerNorm(config.d_model) if config.pre_ln else nn.Identity()

    def _embed(
        self,
        ids: Tensor | Rows,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        added: Tensor | None = None,
    ) -> Tensor:
        """Embeddings (B, T, D) of ids (B, T), or of embeddings of tokens in their place, plus `added` (…, D).

        positions are (B, T), or 0 … T - 1. A mask (B, T) is for a source encoder, which must know the padding, too.
        """
        if isinstance(ids, Rows):
            tokens, positions, length = ids.ids, ids.positions, ids.longest
        else:
            tokens, length = ids, 0 if positions is not None else ids.shape[1]
        if length > (most := self.embed_positions.num_embeddings - self.position_offset):
            raise InputError(f"a sequence has {length} tokens; allowed: at most max_position_embeddings ({most})")
        is_encoded = isinstance(self.embed_tokens, SourceEncoder)
        if not tokens.is_floating_point():
            tokens = self.embed_tokens(ids, mask) if is_encoded else self.embed_tokens(tokens)
        elif is_encoded or self.embed_scale != 1.0 or tokens.shape[2] != self.embed_positions.embedding_dim:
            allowed = f"(…, {self.embed_positions.embedding_dim}), or ids, and ids alone with scale_embedding"
            raise InputError(f"embeddings of tokens are {tuple(tokens.shape)}; allowed: {allowed}")
        if positions is None:
            positions = torch.arange(length, device=tokens.device)
        places = self.embed_positions(positions + self.position_offset)
        if added is not None:
            places = places + added
        scaled = tokens if self.embed_scale == 1.0 else tokens * self.embed_scale
        hidden = self.layernorm_embedding(scaled + places)
        return self.backend.dropout(hidden, self.dropout if self.training else 0.0)

    def _run(self, hidden: Tensor, arguments: Iterable[tuple[Any, ...]]) -> Tensor:
        """The states after all layers; arguments are those of each layer besides its states."""
        states: Streams = (hidden, hidden, None)
        for layer, given in zip(self.layers, arguments, strict=False):
            if self.training and self.layerdrop and torch.rand(()).item() < self.layerdrop:
                continue
            if self.training and self.activation_checkpointing:
                states = checkpoint(layer, states, *given, use_reentrant=False)
            else:
                states = layer(states, *given)
        return self.layer_norm(states[0])


class BartEncoder(_Stack):
    def __init__(self, config: BartConfig, embed_tokens: nn.Embedding) -> None:
        layers = [BartEncoderLayer(config) for _ in range(config.encoder_layers)]
        super().__init__(config, embed_tokens, layers, config.encoder_layerdrop)

    def forward(
        self, input_ids: Tensor | Rows, attention_mask: Tensor | None = None, *, added: Tensor | None = None
    ) -> Tensor:
        """input_ids (B, S), attention_mask (B, S) of ones and zeros or None for all ones -> states (B, S, D).

        Rows, without a mask, give states (1, M, D). What is added to the embeddings is like these, or (D,).
        """
        if isinstance(input_ids, Rows):
            mask: Mask = Spans(input_ids, input_ids)
        elif (rows := self.backend.rows_of(input_ids, attention_mask, self.embed_positions.weight.dtype)) is not None:
            added = rows.pack(added) if added is not None and added.dim() > 1 else added
            return rows.unpack(self.forward(rows, added=added), input_ids.shape[1])
        else:
            mask = _readable(attention_mask)
        return self._run(self._embed(input_ids, attention_mask, added=added), repeat((mask,)))


class SourceEncoder(BartEncoder):
    """An encoder with a vocabulary of its own, whose states stand for the token embeddings of BART's encoder.

    So BART, pretrained on one language, translates from another (Lewis et al., 2020, section 3.4).
    """

    def __init__(self, config: BartConfig) -> None:
        config = copy.copy(config)
        config.encoder_layers = config.source_encoder_layers
        super().__init__(
            config, nn.Embedding(config.source_vocab_size, config.d_model, padding_idx=config.pad_token_id)
        )


class BartDecoder(_Stack):
    def __init__(self, config: BartConfig, embed_tokens: nn.Embedding) -> None:
        layers = [BartDecoderLayer(config) for _ in range(config.decoder_layers)]
        super().__init__(config, embed_tokens, layers, config.decoder_layerdrop)

    def forward(
        self,
        input_ids: Tensor | Rows,
        attention_mask: Tensor | None,
        encoder_hidden_states: Tensor,
        encoder_attention_mask: Tensor | Rows | None = None,
    ) -> Tensor:
        """Teacher forcing: input_ids (B, T) over the encoder's states (B, S, D) -> states (B, T, D).

        attention_mask (B, T) hides target positions in addition to causality; targets padded on the right need none.
        Rows read the states (1, M, D) of the rows that take the place of encoder_attention_mask.
        """
        hidden = self._embed(input_ids)
        if isinstance(input_ids, Rows) and isinstance(encoder_attention_mask, Rows):
            self_mask: Mask = Spans(input_ids, input_ids)
            cross_mask: Mask = Spans(input_ids, encoder_attention_mask)
        else:
            self_mask, cross_mask = _readable(attention_mask), _readable(encoder_attention_mask)
            if self_mask is not None:
                self_mask = self_mask & self_mask.new_ones(hidden.shape[1], hidden.shape[1]).tril()
        return self._run(hidden, ((self_mask, cross_mask, each) for each in self._sources(encoder_hidden_states)))

    def _sources(self, encoder_states: Tensor) -> Iterable[Tensor | tuple[Tensor, Tensor]]:
        """Encoder states for each layer, or its keys and values, where one product gives those of all layers.

        Checkpoints would hold them, and layers that LayerDrop leaves out would get gradients of 0 in place of none.
        """
        if self.activation_checkpointing or self.layerdrop or not self.backend.joins_layers:
            return repeat(encoder_states)
        attention: list[Any] = [layer.encoder_attn for layer in self.layers]
        linears = [linear for part in attention for linear in (part.k_proj, part.v_proj)]
        split = map(attention[0]._split, self.backend.project(encoder_states, linears))
        return zip(split, split, strict=True)

    def step(self, input_ids: Tensor, cache: DecoderCache) -> Tensor:
        """The next token of each beam (B, K), for which `cache.advance` made room -> states (B, K, D)."""
        hidden = self._embed(input_ids, positions=cache.positions[:, None])
        masks, layers = (cache.self_mask, cache.cross_mask), cache.layers
        given = ((*masks, (layer.cross_keys, layer.cross_values), layer, cache.columns) for layer in layers)
        return self._run(hidden, given)
