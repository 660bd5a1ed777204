"""Copies for inference of models with a head, BART's and BERT's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.heads import BartForQuestionAnswering, BartForSequenceClassification, BartForTokenClassification
from bart.modeling.packed import greatest_weight_code
from bart.modeling.pretrained import PretrainedModel
from bert.configuration.configuration_bert import BertConfig
from bert.modeling.modeling_bert import (
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    PretrainedBert,
)
from tests.bart.rounding import BF16, exact, quantisation, rounding

HEADS = (BartForSequenceClassification, BartForTokenClassification, BartForQuestionAnswering)
HEADS += (BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering)
SIZES = {"vocab_size": 97, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 80}
SIZES |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}
OF_BERT = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 80}
OF_BERT |= {"num_attention_heads": 4, "intermediate_size": 96}


@pytest.fixture(params=HEADS, ids=lambda kind: kind.__name__)
def model(request: pytest.FixtureRequest) -> PretrainedModel:
    torch.manual_seed(0)
    of_bert = issubclass(request.param, PretrainedBert)
    config = BertConfig(**OF_BERT, initializer_range=0.1) if of_bert else BartConfig(**SIZES, init_std=0.1)
    return request.param(config).eval()


def logits(model: nn.Module) -> Tensor:
    """The logits of two texts, one of them padded."""
    ids = torch.randint(4, 97, (2, 50), generator=torch.Generator().manual_seed(1))
    ids[0, 49] = ids[1, 29] = 2
    ids[1, 30:] = 1
    output = model(ids, (ids != 1).long())
    actual = output.logits if hasattr(output, "logits") else torch.stack([output.start_logits, output.end_logits], -1)
    return actual[:, :30].double() if actual.dim() == 3 else actual.double()


def test_fp32(model: PretrainedModel) -> None:
    fast = model.for_inference()
    assert type(fast) is type(model)
    assert (logits(fast) - exact(model, logits)).abs().max() <= rounding(model, logits)
    assert fast.get_input_embeddings().weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()


def test_bf16(model: PretrainedModel) -> None:
    assert (logits(model.for_inference("bf16")) - exact(model, logits)).abs().max() <= rounding(model, logits, BF16)


def test_int8(model: PretrainedModel) -> None:
    bound = 2 * quantisation(model, logits, greatest_weight_code())
    assert (logits(model.for_inference("int8")) - exact(model, logits)).abs().mean() <= bound


def test_the_decoder_reads_as_many_ids_as_the_encoder() -> None:
    """States are taken at the places of input_ids."""
    ids = torch.full((2, 5), 2)
    model = BartForSequenceClassification(BartConfig(**SIZES))
    with pytest.raises(InputError, match=r"decoder_input_ids is \(2, 10\)"):
        model(ids, decoder_input_ids=ids.repeat(1, 2))
    with pytest.raises(InputError, match="needs input_ids, and got none"):
        model(encoder_outputs=torch.zeros(2, 5, 16), decoder_input_ids=ids)
