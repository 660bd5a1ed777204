"""The copy of a model that only generates: what it computes, and in int8 how exactly."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bart.cpu.kernels import Kernels
from bart.errors import InputError
from bart.modeling import packed
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.modeling.packed import Int8Linear, greatest_weight_code
from bart.torch_internals import why_not_packed
from tests.bart.rounding import BF16, FP32, exact, quantisation, rounding
from tests.tiny_run import tiny_bart

VOCAB = 211
Source = tuple[Tensor, Tensor]
Run = Callable[[nn.Module], Tensor]


def a_model(**changes: Any) -> BartForConditionalGeneration:
    """A random model, also where models start with zeros."""
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    model = tiny_bart(
        **{"vocab_size": VOCAB, "max_position_embeddings": 100, "init_std": 0.2, **sizes, **changes}
    ).eval()
    model.final_logits_bias.normal_()
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.LayerNorm)) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.3)
    return model


@pytest.fixture(scope="module")
def model() -> BartForConditionalGeneration:
    return a_model()


@pytest.fixture(scope="module")
def source() -> Source:
    ids = torch.randint(3, VOCAB, (3, 20), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 13:] = mask[2, 4:] = 0
    return ids, mask


def logits_of(ids: Tensor, mask: Tensor | None) -> Run:
    """Gives a model's logits (3, 9, V) for these sources and some targets."""
    targets = torch.randint(3, VOCAB, (3, 9), generator=torch.Generator().manual_seed(2))

    def run(model: nn.Module) -> Tensor:
        with torch.no_grad():
            return model(ids, mask, decoder_input_ids=targets).logits.double()

    return run


@pytest.fixture(params=["native", "oneDNN", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernels | None:
    """The computation of int8: this processor's best kernels, oneDNN and plain kernels, or oneDNN and torch."""
    if request.param != "native" and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch lacks oneDNN")
    if request.param == "oneDNN":
        if packed.load() is None:
            pytest.skip("the kernels cannot be compiled")
        plain = Kernels("-DBART_PLAIN")
        monkeypatch.setattr(packed, "load", lambda: plain)
    elif request.param == "torch":
        monkeypatch.setattr(packed, "load", lambda: None)
    return packed.load()


# Whole models


@pytest.mark.parametrize("changes", [{}, {"pre_ln": True}, {"activation_function": "relu"}], ids=str)
@pytest.mark.parametrize("with_kernels", [True, False], ids=["kernels", "torch"])
def test_fp32_is_the_same_model(
    source: Source, changes: dict[str, Any], with_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_kernels:
        monkeypatch.setattr(packed, "load", lambda: None)
    model, run = a_model(**changes), logits_of(*source)
    assert (run(model.for_inference("fp32")) - exact(model, run)).abs().max() <= rounding(model, run)


def test_bf16_is_the_model_as_far_as_bf16_goes(model: BartForConditionalGeneration, source: Source) -> None:
    run = logits_of(*source)
    fast = model.for_inference("bf16")
    assert fast.dtype == (torch.bfloat16 if why_not_packed(torch.bfloat16) is None else torch.float32)
    assert (run(fast) - exact(model, run)).abs().max() <= rounding(model, run, BF16)


@pytest.mark.parametrize("changes", [{}, {"pre_ln": True}, {"activation_function": "relu"}], ids=str)
def test_int8_errs_as_quantisation_does(source: Source, changes: dict[str, Any], path: Kernels | None) -> None:
    model, run = a_model(**changes), logits_of(*source)
    fast = model.for_inference("int8")
    greatest = path.greatest_code if path is not None and path.multiplies else greatest_weight_code()
    assert (run(fast) - exact(model, run)).abs().mean() <= 2 * quantisation(model, run, greatest)
    assert len(fast.generate(source[0], attention_mask=source[1], max_length=15, num_beams=3)) == 3


def test_a_copy_that_is_not_packed_is_moved_and_converted_as_a_whole(
    model: BartForConditionalGeneration, source: Source
) -> None:
    run = logits_of(*source)
    fast = model.for_inference("fp16")
    assert fast.encode(*source).dtype == torch.float16
    assert fast.float().encode(*source).dtype == torch.float32
    assert (run(fast) - exact(model, run)).abs().max() <= rounding(model, run, 2.0**-11)
    assert {"lm_head.weight", "lm_head.bias"} <= fast.state_dict().keys()
    assert all(tensor.is_meta for tensor in fast.to("meta").state_dict().values())


def test_int8_with_heads_that_the_kernels_are_written_for(
    path: Kernels | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = a_model(d_model=128, decoder_layers=1, init_std=0.1)
    ids, mask = torch.randint(3, VOCAB, (3, 90)), torch.ones(3, 90, dtype=torch.int64)
    mask[1, 50:] = mask[2, 4:] = 0
    calls = []
    attend_many = Kernels.attend_many
    monkeypatch.setattr(Kernels, "attend_many", lambda *args: calls.append(1) or attend_many(*args))
    fast = model.for_inference("int8")
    greatest = path.greatest_code if path is not None and path.multiplies else greatest_weight_code()
    for readable in (mask, None):
        run = logits_of(ids, readable)
        assert (run(fast) - exact(model, run)).abs().mean() <= 2 * quantisation(model, run, greatest)
    assert len(calls) == (4 if path is not None and path.attends_in_int8 else 0)  # of the encoder's layers, twice
    if calls:
        alone = fast.encode(ids[1:2, :50])
        assert torch.equal(fast.encode(ids, mask)[1:2, :50], alone)


def test_the_original_stays_as_it_is_and_no_matrix_is_copied(model: BartForConditionalGeneration) -> None:
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fast = model.for_inference("fp32")
    assert model.training and not fast.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert fast.model.shared.weight.data_ptr() == model.model.shared.weight.data_ptr()
    assert not any(isinstance(module, nn.Linear) for module in fast.modules())
    tensors = [*fast.parameters(), *fast.buffers()]
    assert not any(tensor.is_meta or tensor.requires_grad for tensor in tensors)
    fast.config.dropout = 0.5
    assert model.config.dropout == 0.1


def test_bad_precisions(model: BartForConditionalGeneration, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="precision is 'int4'; allowed: fp32, bf16, fp16, int8"):
        model.for_inference("int4")
    with pytest.raises(InputError, match="the model is a copy for inference"):
        model.for_inference().for_inference()
    with pytest.raises(InputError, match="the model is a copy for inference"):
        model.for_inference().save_pretrained("nowhere")  # would lack the packed weights
    with pytest.raises(InputError, match="the model is on meta; int8 runs on the CPU"):
        a_model().to("meta").for_inference("int8")
    monkeypatch.setattr(packed, "why_not_packed", lambda dtype: "this build of torch lacks oneDNN")
    with pytest.raises(InputError, match="oneDNN"):
        model.for_inference("int8")
    assert model.for_inference("fp32").lm_head.multiply is nn.functional.linear


def test_encoding_in_parts_changes_nothing(
    model: BartForConditionalGeneration, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bart.modeling.modeling_bart.TOKENS_AT_ONCE", 40)
    double = a_model().double()
    with torch.no_grad():
        for inputs in (source, source[:1]):
            whole = double.model.encoder(*inputs)
            torch.testing.assert_close(double.encode(*inputs), whole, rtol=0, atol=1e-12)
        with pytest.raises(InputError, match=r"attention_mask is \(2, 20\); allowed: \(3, 20\), as input_ids"):
            model.encode(source[0], source[1][:2])


# Layers


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_int8_products_are_those_of_integers(rows: int, path: Kernels | None) -> None:
    generator = torch.Generator().manual_seed(3)
    weight, states = torch.randn(24, 40, generator=generator), torch.randn(2, rows, 40, generator=generator)
    states[0, 0] = 0
    bias = torch.randn(24, generator=generator)
    greatest = path.greatest_code if path is not None and path.multiplies else greatest_weight_code()
    weight_peak = weight.abs().amax(1).double()
    peak = states.abs().amax(2, keepdim=True).double()
    weight_codes = (weight.double() / weight_peak[:, None] * greatest).round()
    codes = (states.double() / peak * 127).round().nan_to_num()
    product = codes @ weight_codes.T * weight_peak * peak / (127 * greatest)
    got = Int8Linear(weight, bias, 16, kernels=path)(states)
    assert got.dtype == torch.float32
    # Sums are exact. There are some roundings after them, and of the scales before them.
    assert ((got - product - bias).abs() <= 8 * FP32 * (product.abs() + bias.abs())).all()


def test_no_row_of_int8_depends_on_the_others(path: Kernels | None) -> None:
    generator = torch.Generator().manual_seed(4)
    weight, bias = torch.randn(64, 128, generator=generator), torch.randn(64, generator=generator)
    linear = Int8Linear(weight, bias, 16, kernels=path)
    states = torch.randn(50, 128, generator=generator) * torch.logspace(-3, 3, 50)[:, None]
    assert torch.equal(torch.cat([linear(row[None]) for row in states]), linear(states))


# Processors that lack instructions

OLD_PROCESSOR = """
import json, logging, torch
from bart.modeling import packed
from tests.tiny_run import tiny_bart

lines = []
packed.logger.addHandler(logging.Handler())
packed.logger.handlers[0].emit = lambda record: lines.append(record.getMessage())
packed.logger.setLevel(logging.INFO)
torch.manual_seed(0)
states, weight, bias = torch.rand(7, 300), torch.rand(50, 300), torch.rand(50)  # all positive: the greatest sums
got = packed.Int8Linear(weight, bias, 16)(states)
states, weight, bias = states.double(), weight.double(), bias.double()
steps = [part.amax(dim=1, keepdim=True) / greatest for part, greatest in ((states, 127), (weight, 64))]
half = [step * (0.5 + 127 * 5 * 2**-24) for step in steps]
bound = states.sum(1, keepdim=True) @ half[1].T + half[0] @ (weight.sum(1, keepdim=True) + 300 * half[1]).T
error = (got - states @ weight.T - bias).abs() / (bound + 300 * 2**-23 * (states @ weight.T + bias))

model = tiny_bart(init_std=0.3).eval()
ids = torch.randint(3, 50, (2, 9))
copies = [model.for_inference(precision) for precision in ("bf16", "bf16", "fp32")]
same = torch.equal(copies[0].generate(ids, num_beams=2), copies[2].generate(ids, num_beams=2))
print(json.dumps({"error": error.max().item(), "lines": lines, "dtype": str(copies[0].dtype), "same": same}))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN can be limited to older processors on x86")
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch lacks oneDNN")
def test_on_older_processors_int8_stays_exact_and_bf16_gives_way_to_fp32() -> None:
    """oneDNN is made to believe that the processor has AVX2 and no VNNI."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2", "BART_KERNELS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", OLD_PROCESSOR],
        cwd=Path(__file__).parents[3],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    actual = json.loads(done.stdout)
    assert actual["error"] <= 1, "greater than rounding to codes allows"
    assert actual["dtype"] == "torch.float32" and actual["same"]
    assert [line.split(":")[0].split(" (")[0] for line in actual["lines"]] == [
        "int8",
        "bf16 cannot be computed here",
        "bf16 cannot be computed here",
    ]
