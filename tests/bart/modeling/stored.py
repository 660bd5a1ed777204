"""Tiny models of random weights for tests of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration

EMBEDDINGS = "model.shared.weight"
COPIES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
TINY = {
    "vocab_size": 24,
    "d_model": 8,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 12,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 10,
}


def make_model(**changes: Any) -> BartForConditionalGeneration:
    """A model whose every weight is random, also those that start as ones and zeros."""
    torch.manual_seed(7)
    model = BartForConditionalGeneration(BartConfig(**TINY | changes)).eval()
    with torch.no_grad():
        for tensor in {*model.parameters(), *model.buffers()}:
            tensor.normal_()
    return model


def weights(model: BartForConditionalGeneration) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if name not in COPIES}


def assert_same(loaded: BartForConditionalGeneration, model: BartForConditionalGeneration) -> None:
    expected, actual = model.state_dict(), loaded.state_dict()
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].dtype == torch.float32
        torch.testing.assert_close(actual[name], tensor, rtol=0, atol=0, msg=name)


def fails(path: Path | str, *messages: str, config: BartConfig | None = None) -> None:
    """Loading raises one line that names the path and holds the messages."""
    with pytest.raises(InputError) as caught:
        BartForConditionalGeneration.from_pretrained(path, config=config)
    text = str(caught.value)
    assert "\n" not in text
    for message in (str(path), *messages):
        assert message in text
