"""The cost model, beside what torch counts."""

from __future__ import annotations

import json
import re
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from bart.configuration.configuration_bart import BartConfig
from bart.cpu import kernels
from bart.cpu.backend import CpuBackend
from bart.cuda.backend import CudaBackend
from bart.errors import InputError
from bart.generation.cache import DecoderCache
from bart.modeling import loss as loss_in_chunks
from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests.fake_cuda.budgets import kept_in_training
from tests.fake_cuda.device import carrying_rows, needs_compiler
from utils import cost

ROOT = Path(__file__).parents[2]
SHAPE = (5, 160, 48)
NEAR = 0.05


def config(**fields: Any) -> BartConfig:
    sizes = {"encoder_layers": 3, "encoder_ffn_dim": 256, "decoder_layers": 2, "decoder_ffn_dim": 128}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    return BartConfig(**{"vocab_size": 999, "d_model": 64, "max_position_embeddings": 200, **sizes, **heads, **fields})


def freeze_embeddings(model: BartForConditionalGeneration, freeze: bool) -> None:
    for table in (model.model.shared, model.model.encoder.embed_positions, model.model.decoder.embed_positions):
        table.requires_grad_(not freeze)


def loss(model: BartForConditionalGeneration, device: str = "cpu") -> Tensor:
    batch, source, target = SHAPE
    ids, labels = (torch.randint(4, 900, (batch, length), device=device) for length in (source, target))
    return model(ids, labels=labels, summed_loss=True, label_smoothing=0.1).loss


@pytest.mark.parametrize("pre_ln", [False, True])
@pytest.mark.parametrize("name", ["base", "small", "xsum"])
def test_parameters_are_those_of_the_network(name: str, pre_ln: bool) -> None:
    fields = json.loads((ROOT / f"configs/config_{name}.json").read_text())
    with torch.device("meta"):
        model = BartForConditionalGeneration(BartConfig(**{**fields, "pre_ln": pre_ln}))
    assert sum(cost.parameters(model.config).values()) == model.num_parameters()


@pytest.mark.parametrize("pre_ln", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("freeze", "activation"), [(False, "gelu"), (True, "relu")])
def test_activations_are_what_autograd_keeps(
    pre_ln: bool, half: bool, freeze: bool, activation: str, one_thread: None
) -> None:
    if kernels.load() is None:
        pytest.skip("without the compiled kernels more is kept")
    given = config(dropout=0.1, attention_dropout=0.1, pre_ln=pre_ln, activation_function=activation)
    model = BartForConditionalGeneration(given).train()
    model.compute_with(CpuBackend())
    freeze_embeddings(model, freeze)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss(model)
    counted = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    named = "bf16" if half else "fp32"
    assert cost.activations(model.config, SHAPE, named, on_cpu=True, freeze=freeze) == pytest.approx(counted, rel=NEAR)


@needs_compiler
@pytest.mark.parametrize(
    ("precision", "dtype", "freeze", "fields"),
    [
        ("bf16", torch.bfloat16, True, {}),
        ("fp16", torch.float16, False, {"activation_dropout": 0.1}),
        ("bf16", torch.bfloat16, False, {"pre_ln": True, "activation_function": "relu"}),
        ("fp32", None, False, {}),
    ],
    ids=str,
)
def test_activations_are_what_autograd_keeps_on_a_gpu(
    precision: str, dtype: torch.dtype | None, freeze: bool, fields: dict[str, Any]
) -> None:
    given, shape = config(d_model=256, dropout=0.1, attention_dropout=0.1, **fields), (16, *SHAPE[1:])
    counted = kept_in_training(given, shape, freeze, dtype)
    expected = cost.activations(given, shape, precision, on_cpu=False, freeze=freeze)
    assert expected == pytest.approx(counted, rel=NEAR)


@pytest.mark.parametrize("targets", [32, 320, 960])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("freeze", [False, True])
def test_the_loss_holds_that_memory_at_most(
    targets: int, half: bool, freeze: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels.load() is None:
        pytest.skip("without the compiled kernels more is held")
    if half and not torch.cpu.get_capabilities().get("avx512_bf16", False):
        pytest.skip("without instructions for bf16 products are of copies in fp32")
    if half and freeze and targets == 32 and torch.cpu.get_capabilities().get("amx_tile", False):
        pytest.skip("with AMX products take memory of their own, a tenth of what so few targets need")
    given = config(vocab_size=20_000, d_model=128)
    monkeypatch.setattr(loss_in_chunks, "LOGITS_AT_ONCE", 400 * given.vocab_size)
    dtype = torch.bfloat16 if half else torch.float32
    states = torch.randn(targets, given.d_model, dtype=dtype, requires_grad=True)
    weight = torch.randn(given.vocab_size, given.d_model, requires_grad=not freeze)
    labels = torch.randint(0, given.vocab_size, (targets,))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            inputs = states, weight, torch.zeros(given.vocab_size), labels
            summed, _ = loss_in_chunks.chunked_cross_entropy(*inputs, 0.1, CpuBackend())
        summed.backward()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    kept = sum(tensor.numel() * tensor.itemsize for tensor in (states, weight) if tensor.requires_grad)
    expected = kept + cost.loss_temporaries(given, targets, half, on_cpu=True, freeze=freeze)
    assert max(accumulate(change for _, change in changes)) == pytest.approx(expected, rel=NEAR)


@pytest.mark.parametrize("freeze", [False, True])
def test_training_is_what_torch_counts(freeze: bool) -> None:
    model = BartForConditionalGeneration(config(dropout=0.0, attention_dropout=0.0)).train()
    freeze_embeddings(model, freeze)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # it counts no other on CPUs
        loss(model).backward()
    costs = cost.training(model.config, SHAPE, "fp32", freeze=freeze)
    assert costs.operations == counter.get_total_flops()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    kinds = (model.parameters(), [weight.grad for weight in trained], moments)
    sizes = [sum(4 * tensor.numel() for tensor in tensors) for tensors in kinds]
    assert [costs.weights, costs.gradients, costs.optimizer] == sizes


@pytest.mark.parametrize("beams", [1, 4])
def test_beam_search_is_what_torch_counts(beams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, source, target = SHAPE
    model = BartForConditionalGeneration(config()).eval()
    caches: list[DecoderCache] = []
    init = DecoderCache.__init__

    def remember(self: DecoderCache, *args: Any) -> None:
        init(self, *args)
        caches.append(self)

    monkeypatch.setattr(DecoderCache, "__init__", remember)
    length = {"max_length": target + 1, "min_length": target + 1, "early_stopping": True}
    with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.generate(torch.randint(4, 900, (batch, source)), num_beams=beams, **length)
    costs = cost.beam_search(model.config, SHAPE, beams, half=False)
    assert costs.operations == pytest.approx(counter.get_total_flops(), rel=NEAR)
    [cache] = caches
    kept = sum(4 * tensor.numel() for layer in cache.layers for tensor in vars(layer).values())
    # Beams that end free their columns for others.
    assert kept == pytest.approx(costs.cache, rel=NEAR) if beams == 1 else costs.cache / beams < kept <= costs.cache


def test_a_step_of_beam_search_reads_each_weight_of_the_decoder_once() -> None:
    """But those that make keys and values of the encoder's states; biases, norms and positions are left out."""
    model = BartForConditionalGeneration(config())
    read = [
        weight.numel()
        for name, weight in model.model.decoder.named_parameters()
        if name.endswith("weight") and weight.ndim == 2 and not re.search(r"encoder_attn\.[kv]_proj|positions", name)
    ]
    first, second = (cost.beam_search(model.config, (1, 1, target), 1, half=False) for target in (1, 2))
    caches = sum(costs.cache for costs in (first, second))
    assert second.read - first.read == pytest.approx(4 * sum(read) + caches, abs=caches)


def test_a_table_of_all_three(capsys: pytest.CaptureFixture[str]) -> None:
    cost.main(["--config_path", f"{ROOT}/configs/config_xsum.json", "--shape", "40x1024x60", "--gpu", "h200"])
    text = capsys.readouterr().out
    assert "406,291,456 parameters" in text and "H200 with 989 TFLOP/s" in text
    table = {
        cells[0]: cells[1:]
        for line in text.splitlines()
        if len(cells := re.findall(r"[^|\s][^|]*?(?= *\|)", line)) == 4
    }
    assert table["weights GB"] == ["1.63", "1.63", "0.81"]
    assert float(table["TFLOP"][0]) / 989 == pytest.approx(float(table["seconds at the peak"][0]), rel=0.01)
    cost.main(["--config_path", f"{ROOT}/configs/config_tiny.json", "--shape", "1x9x9", "--precision", "fp32"])
    assert "at the peak" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shape", "40x1024"], "--shape is '40x1024'; allowed: BxSxT"),
        (
            ["--shape", "4x9999x9"],
            "--shape is 4x9999x9; allowed: S and T up to the config's max_position_embeddings, 1024",
        ),
        (["--gpu", "v100"], "--precision is bf16, which a V100 lacks; allowed: fp16, fp32"),
        (["--config_path", "nowhere.json"], "nowhere.json: cannot be read"),
    ],
)
def test_bad_options(options: list[str], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        cost.main(["--config_path", f"{ROOT}/configs/config_xsum.json", *options])


@pytest.mark.gpu
def test_a_step_on_a_gpu_needs_that_memory() -> None:
    given = json.loads((ROOT / "configs/config_base.json").read_text())
    model = BartForConditionalGeneration(BartConfig(**given)).train()
    before = torch.cuda.memory_allocated()  # by other tests
    model.cuda().compute_with(CudaBackend(leaves_out_padding=True))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    shape = (16, 512, 64)
    ids, labels = map(carrying_rows, (torch.ones(16, length, dtype=torch.long) for length in shape[1:]), (0, -100))
    for _ in range(2):  # the first makes the optimizer's state
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False), model.backend.step(model.layers):
            result = model(ids, ids, labels=labels, summed_loss=True, label_smoothing=0.1).loss
        result.backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = cost.training(model.config, shape, "bf16", freeze=False).memory
    assert torch.cuda.max_memory_allocated() - before == pytest.approx(expected, rel=NEAR)
