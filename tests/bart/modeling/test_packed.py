"""The copy of a model that only generates: what it computes, and in int8 how exactly."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling import packed
from bart.modeling.kernels import Kernels, compile_kernels
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.modeling.packed import Int8Linear, PackedLinear

VOCAB = 211


@pytest.fixture(scope="module")
def model() -> BartForConditionalGeneration:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = BartConfig(vocab_size=VOCAB, max_position_embeddings=40, init_std=0.2, **sizes, **heads)
    model = BartForConditionalGeneration(config)
    model.final_logits_bias.normal_()
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.LayerNorm)) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.3)
    return model


@pytest.fixture(scope="module")
def source() -> tuple[Tensor, Tensor]:
    ids = torch.randint(3, VOCAB, (3, 20), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 13:] = mask[2, 4:] = 0
    return ids, mask


def logits(model: BartForConditionalGeneration, source: tuple[Tensor, Tensor]) -> Tensor:
    targets = torch.randint(3, VOCAB, (3, 9), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return model.eval()(*source, decoder_input_ids=targets).logits.float()


def test_fp32_is_the_same_model(model: BartForConditionalGeneration, source: tuple[Tensor, Tensor]) -> None:
    fast = model.for_inference("fp32")
    torch.testing.assert_close(logits(fast, source), logits(model, source), rtol=0, atol=1e-5)
    for options in ({}, {"num_beams": 3, "no_repeat_ngram_size": 2}):
        assert torch.equal(
            fast.generate(*source, max_length=15, **options), model.generate(*source, max_length=15, **options)
        )


def test_the_original_stays_as_it_is_and_no_matrix_is_copied(model: BartForConditionalGeneration) -> None:
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fast = model.for_inference("fp32")
    assert model.training
    assert not fast.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert fast.model.shared.weight.data_ptr() == model.model.shared.weight.data_ptr()
    assert not any(isinstance(module, nn.Linear) for module in fast.modules())


def test_bf16_equals_the_model_in_bf16_as_far_as_bf16_goes(
    model: BartForConditionalGeneration, source: tuple[Tensor, Tensor]
) -> None:
    exact = logits(model, source)
    error = (logits(copy.deepcopy(model).to(torch.bfloat16), source) - exact).abs().mean()
    assert (logits(model.for_inference("bf16"), source) - exact).abs().mean() < 1.5 * error


@pytest.mark.usefixtures("path")
def test_int8_is_near(model: BartForConditionalGeneration, source: tuple[Tensor, Tensor]) -> None:
    exact = logits(model, source)
    assert (logits(model.for_inference("int8"), source) - exact).abs().mean() < 0.05 * exact.std()
    generated = model.for_inference("int8").generate(*source, max_length=15, num_beams=3)
    assert generated.shape[0] == 3


@pytest.mark.usefixtures("path")
def test_int8_is_near_with_heads_that_the_kernels_are_written_for(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(6)
    sizes = {"d_model": 128, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = BartForConditionalGeneration(
        BartConfig(vocab_size=VOCAB, max_position_embeddings=100, init_std=0.1, **sizes, **heads)
    )
    ids, mask = torch.randint(3, VOCAB, (3, 90)), torch.ones(3, 90, dtype=torch.int64)
    mask[1, 50:] = mask[2, 4:] = 0
    calls = []
    attend_many = Kernels.attend_many
    monkeypatch.setattr(Kernels, "attend_many", lambda *args: calls.append(1) or attend_many(*args))
    fast = model.for_inference("int8")
    for readable in (mask, None):
        exact = logits(model, (ids, readable))
        assert (logits(fast, (ids, readable)) - exact).abs().mean() < 0.05 * exact.std()
    kernels = packed.load()
    assert len(calls) == (4 if kernels is not None and kernels.multiplies else 0)  # of the encoder's layers, twice
    if calls:
        alone = fast.encode(ids[1:2, :50])
        assert torch.equal(fast.encode(ids, mask)[1:2, :50], alone)


@pytest.fixture(params=["native", "oneDNN", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What int8 products are computed with: this processor's best, oneDNN between compiled kernels, or no kernels."""
    if request.param != "native" and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch lacks oneDNN")
    if request.param == "oneDNN":
        if packed.load() is None:
            pytest.skip("the kernels cannot be compiled")
        plain = compile_kernels("-DBART_PLAIN")
        monkeypatch.setattr(packed, "load", lambda: plain)
    elif request.param == "torch":
        monkeypatch.setattr(packed, "load", lambda: None)


@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("path")
def test_int8_products_are_those_of_integers(rows: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    weight, states = torch.randn(24, 40, generator=generator), torch.randn(2, rows, 40, generator=generator)
    states[0, 0] = 0
    biases = torch.randn(24, generator=generator) if bias else None
    weight_peak = weight.abs().amax(1).double()
    peak = states.abs().amax(2, keepdim=True).double()
    weight_codes = (weight.double() / weight_peak[:, None] * 127).round()
    codes = (states.double() / peak * 127).round().nan_to_num()
    expected = codes @ weight_codes.T * weight_peak * peak / 127**2 + (0 if biases is None else biases)
    got = Int8Linear(weight, biases, 16)(states)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("path")
def test_no_row_of_int8_depends_on_the_others() -> None:
    generator = torch.Generator().manual_seed(4)
    linear = Int8Linear(torch.randn(64, 128, generator=generator), torch.randn(64, generator=generator), 16)
    states = torch.randn(50, 128, generator=generator) * torch.logspace(-3, 3, 50)[:, None]
    assert torch.equal(torch.cat([linear(row[None]) for row in states]), linear(states))


@pytest.mark.parametrize("rows", [1, 5, 300])
def test_packed_linear(rows: int) -> None:
    plain = nn.Linear(48, 80)
    states = torch.randn(rows, 48)
    packed = PackedLinear(plain.weight.detach(), plain.bias.detach(), 16)
    torch.testing.assert_close(packed(states), plain(states), rtol=0, atol=1e-5)


def test_encoding_in_parts_changes_nothing(
    model: BartForConditionalGeneration, source: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model.eval()
    with torch.no_grad():
        whole = model.encode(*source)
        monkeypatch.setattr("bart.modeling.modeling_bart.TOKENS_AT_ONCE", 40)
        torch.testing.assert_close(model.encode(*source), whole, rtol=0, atol=1e-6)
        torch.testing.assert_close(model.encode(source[0]), model.model.encoder(source[0]), rtol=0, atol=1e-6)


def test_the_same_input_is_encoded_once(
    model: BartForConditionalGeneration, source: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = model.for_inference("fp32")
    ids, mask = source[0].clone(), source[1].clone()
    calls = []
    encode = BartForConditionalGeneration.encode
    monkeypatch.setattr(BartForConditionalGeneration, "encode", lambda *args: calls.append(1) or encode(*args))

    def generated(**options: object) -> Tensor:
        ours = fast.generate(ids, mask, max_length=9, **options)
        assert torch.equal(ours, model.generate(ids, mask, max_length=9, **options))
        calls.pop()  # the model itself encodes each time
        return ours

    generated()
    generated(num_beams=3)
    assert len(calls) == 1
    ids[0, 0] += 1  # in place: what is remembered is a copy
    generated()
    assert len(calls) == 2
    mask[0, 10:] = 0
    generated()
    generated(num_beams=2)
    assert len(calls) == 3


def test_bad_precisions(model: BartForConditionalGeneration, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="precision is 'int4'; allowed: fp32, bf16, fp16, int8"):
        model.for_inference("int4")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(InputError, match="oneDNN"):
        model.for_inference("int8")
    plain = model.for_inference("fp32")  # without packing
    assert isinstance(plain.lm_head, nn.Linear)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_copy_of_a_copy_is_refused(model: BartForConditionalGeneration, precision: str) -> None:
    with pytest.raises(InputError, match="the model is a copy for inference"):
        model.for_inference(precision).for_inference()
