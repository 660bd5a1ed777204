"""The interface through which decoding uses a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from bart.backend import Backend
from bart.configuration.configuration_generation import GenerationConfig
from bart.generation.cache import DecoderCache


class Sizes(Protocol):
    """The fields of a model's configuration that decoding reads."""

    d_model: int
    vocab_size: int
    max_position_embeddings: int

    @property
    def source_vocab_size(self) -> int: ...


class Model(Protocol):
    """An encoder and a decoder, whose step (`decode`) does not wait for the device, so that it can be recorded."""

    backend: Backend

    @property
    def config(self) -> Sizes: ...

    @property
    def generation_config(self) -> GenerationConfig: ...

    @property
    def device(self) -> torch.device: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encoder states (B, S, D) of input_ids (B, S) under a mask (B, S), 1 for ids and 0 for padding."""

    def new_cache(
        self,
        encoder_states: Tensor,
        attention_mask: Tensor | None = None,
        beams: int = 1,
        max_length: int | None = None,
    ) -> DecoderCache:
        """A cache for K = beams rows per article that read at most max_length tokens each."""

    def decode(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        """Logits (B, K, V) after the next ids (B, K). `cache.advance` has been called once before."""
