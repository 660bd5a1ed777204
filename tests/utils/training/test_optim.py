from __future__ import annotations

import logging
import math
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_lightning.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests.tiny_run import tiny_bart
from utils.training.lamb import Lamb
from utils.training.optim import build_optimizer, build_schedule, clip
from utils.training.options import OPTIMIZERS, POLY_SQRT, HardwareOptions, OptimisationOptions
from utils.training.precision import LossScaler, MasterWeights


def build(model: nn.Module, name: str, decay: float = 0.1, **hardware: Any) -> Optimizer:
    options = OptimisationOptions(optimizer=name, learning_rate=1e-2, weight_decay=decay)
    return build_optimizer(model, options, HardwareOptions(**{"gpus": 1, **hardware}))


@pytest.fixture
def model() -> BartForConditionalGeneration:
    return tiny_bart(vocab_size=30, dropout=0.0, init_std=0.1)


def backward(model: BartForConditionalGeneration, scale: Callable[[Tensor], Tensor] = torch.clone) -> None:
    ids = torch.randint(3, 30, (2, 6), generator=torch.Generator().manual_seed(1))
    scale(model(ids, labels=ids).loss).backward()


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


class Recorder(Optimizer):
    """Stands for an optimizer of apex: it keeps what it was made with."""

    def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
        super().__init__(groups, options)
        self.options = options


FusedAdam, FusedLAMB = (type(name, (Recorder,), {}) for name in ("FusedAdam", "FusedLAMB"))


def install(
    monkeypatch: pytest.MonkeyPatch, classes: tuple[type, ...] = (FusedAdam, FusedLAMB), extensions: bool = True
) -> None:
    """A stand-in for NVIDIA's apex, or for the package of that name on PyPI, which has no such classes."""
    apex, optimizers = types.ModuleType("apex"), types.ModuleType("apex.optimizers")
    vars(optimizers).update({optimizer.__name__: optimizer for optimizer in classes})
    # None in sys.modules makes the import fail.
    parts = {"apex": apex, "apex.optimizers": optimizers, "amp_C": types.ModuleType("amp_C") if extensions else None}
    for name, module in parts.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_biases_and_norms_do_not_decay(
    name: str, level: str, model: BartForConditionalGeneration, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    model.model.shared.requires_grad_(False)
    decayed, plain = (optimizer := build(model, name, bf16=True, amp_level=level)).param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert {parameter.ndim for parameter in decayed["params"]} == {2}
    assert {parameter.ndim for parameter in plain["params"]} == {1}
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(decayed["params"]) + len(plain["params"]) == len(trainable) < len(list(model.parameters()))
    assert {group["lr"] for group in optimizer.param_groups} == {1e-2}


@pytest.mark.parametrize("half", [{}, {"fp16": True, "amp_level": "O2"}])
def test_apex_on_gpus(half: dict[str, Any], model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its FusedLAMB clips gradients too, by 1.0 if not told otherwise; the training loop has done that already."""
    install(monkeypatch)  # after everything was imported: apex is looked for when an optimizer is built
    for name, nvlamb, expected, options in (
        ("fused_adam", False, FusedAdam, {"lr": 1e-2, "adam_w_mode": True, "eps": 1e-7}),
        ("fused_lamb", False, FusedLAMB, {"lr": 1e-2, "max_grad_norm": math.inf, "eps": 1e-7}),
        ("fused_lamb", True, FusedLAMB, {"lr": 1e-2, "max_grad_norm": math.inf, "eps": 1e-7, "use_nvlamb": True}),
    ):
        asked = OptimisationOptions(optimizer=name, learning_rate=1e-2, nvlamb=nvlamb, adam_epsilon=1e-7)
        optimizer = build_optimizer(model, asked, HardwareOptions(gpus=1, **half))
        optimizer = optimizer.inner if isinstance(optimizer, MasterWeights) else optimizer
        assert (type(optimizer), optimizer.options) == (expected, options)


@pytest.mark.parametrize(
    ("missing", "hardware"),
    [("classes", {}), ("CUDA extensions", {}), ("GPUs", {"gpus": 0}), ("ddp", {"strategy": "fsdp"})],
)
def test_without_apex_one_line_says_what_is_missing_and_what_serves(
    missing: str,
    hardware: dict[str, int],
    model: nn.Module,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install(monkeypatch, () if missing == "classes" else (FusedAdam, FusedLAMB), missing != "CUDA extensions")
    for name, stand_in in (("fused_adam", AdamW), ("fused_lamb", Lamb)):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            assert type(build(model, name, **hardware)) is stand_in
        (line,) = [record.message for record in caplog.records]
        assert line.startswith(f"--optimizer {name} needs GPUs, ") and line.endswith(" is used instead")


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if "fused" not in name])
def test_fp16_gradients_are_unscaled_and_clipped(name: str, model: BartForConditionalGeneration) -> None:
    """Lightning's own calls, with a loss scaler, against steps without one; then an overflow, which is no step.

    A scale that is a power of two changes no bit of a gradient. Ours round steps differently where they may skip them;
    gradients of keys' biases, which softmax takes no notice of, are nothing but rounding.
    """
    initial = state_of(model)
    results = []
    for scaled in (False, True):
        model.load_state_dict(initial, strict=False)
        optimizer = build(model, name, fp16=True)
        scaler = LossScaler("cpu", init_scale=2.0**10, enabled=scaled)
        plugin = MixedPrecision("16-mixed", "cpu", scaler)
        for _ in range(3):
            optimizer.zero_grad()
            backward(model, scaler.scale)
            scaler.unscale_(optimizer)
            plugin.clip_gradients(optimizer, 0.1)
            # torch divides by 1e-6 more than the norm, which is above 0.1.
            norm = torch.stack([p.grad.double().norm() for p in model.parameters()]).norm()
            assert norm.item() == pytest.approx(0.1, rel=2e-5)
            scaler.step(optimizer)
            scaler.update()
        results.append(state_of(model))
    rounding = 1e-6 if name == "lamb" else 0.0
    compared = [{key: state[key] for key in state if not (rounding and "k_proj.bias" in key)} for state in results]
    torch.testing.assert_close(*compared, rtol=rounding, atol=rounding)
    optimizer.zero_grad()
    backward(model, lambda loss: scaler.scale(loss) * math.inf)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert all(torch.equal(tensor, results[1][key]) for key, tensor in state_of(model).items())


class OnGpu(Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("limit", [0.1, 1e3])
def test_on_gpus_adamw_divides_gradients_as_torch_clips_them(limit: float, scaled: bool) -> None:
    """With loss scaling, too, where a gradient that overflows is no step."""
    results = []
    for kind in (Tensor, OnGpu):
        generator = torch.Generator().manual_seed(1)
        weights = nn.ParameterList(torch.randn(size, generator=generator) for size in ((9, 30), (30,)))
        optimizer = build(weights, "adamw", fp16=True)
        scaler = LossScaler("cpu", init_scale=2.0**10, enabled=scaled)
        results.append([])
        for factor in (1.0, 30.0, math.inf, 2.0, math.nan):
            for weight in weights:
                weight.grad = scaler.scale(torch.randn(weight.shape, generator=generator) * factor)
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.get_total_norm([weight.grad for weight in weights])
            clip(optimizer, [*weights], limit, norm.as_subclass(kind))
            assert hasattr(optimizer, "grad_scale") == (kind is OnGpu)
            scaler.step(optimizer)
            scaler.update()
            results[-1].append([weight.detach().clone() for weight in weights])
    for number, (expected, actual) in enumerate(zip(*results, strict=True)):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7, equal_nan=True)
        assert all(weight.isfinite().all() for weight in actual) == (scaled or number < 2)


@pytest.mark.parametrize(
    ("name", "decay"),
    [
        ("polynomial", lambda done: 1e-7 / 3e-4 + (1 - 1e-7 / 3e-4) * (1 - done)),
        ("linear", lambda done: 1 - done),
        ("cosine", lambda done: (1 + math.cos(math.pi * done)) / 2),
        ("cosine_w_restarts", lambda done: (1 + math.cos(math.pi * (4 * done % 1))) / 2 if done < 1 else 0),
        ("constant", lambda done: 1),
    ],
)
@pytest.mark.parametrize("warmup", [0, 7])
def test_schedules(name: str, decay: Callable[[float], float], warmup: int) -> None:
    """Linear to the peak, and from there by the share of the steps after the warm-up that are done."""
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=3e-4)
    schedule = build_schedule(name, optimizer, warmup, 47)
    rates = []
    for _ in range(48):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    expected = [step / warmup for step in range(warmup)]
    expected += [decay((step - warmup) / (47 - warmup)) for step in range(warmup, 48)]
    assert rates == pytest.approx([3e-4 * factor for factor in expected], rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("nvlamb", [False, True])
@pytest.mark.parametrize("clip", [0.1, 1e9])
def test_lamb_is_that_of_nvidias_pretraining(nvlamb: bool, clip: float, model: BartForConditionalGeneration) -> None:
    """Against their formula, weight by weight: gradients are divided by their norm over the limit, where that is above
    1; decay is a part of the update; the ratio of norms is 1 where either is 0 and, without --nvlamb, without decay."""
    model.double()
    torch.nn.init.zeros_(model.model.encoder.layers[0].fc1.weight)  # whose norm is 0
    options = OptimisationOptions(
        optimizer="lamb", learning_rate=1e-2, weight_decay=0.1, adam_epsilon=1e-8, nvlamb=nvlamb
    )
    optimizer = build_optimizer(model, options, HardwareOptions(gpus=0))
    names = [name for name, _ in model.named_parameters()]
    weights, moments = state_of(model), dict.fromkeys(names, (0.0, 0.0))
    for step in range(1, 7):
        optimizer.zero_grad()
        backward(model)
        gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        norm = sum(float((gradient**2).sum()) for gradient in gradients.values()) ** 0.5
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)  # as the training loop does it
        optimizer.step()
        for name in names:
            gradient = gradients[name] * min(1, clip / (norm + 1e-6))  # torch's clip adds that to the norm
            decay = 0.0 if name.endswith("bias") or "norm" in name else 0.1
            mean, square = moments[name]
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.999 * square + 0.001 * gradient * gradient
            moments[name] = mean, square
            update = mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8) + decay * weights[name]
            sizes = float(weights[name].norm()), float(update.norm())
            ratio = sizes[0] / sizes[1] if min(sizes) > 0 else 1.0
            weights[name] = weights[name] - 1e-2 * (ratio if decay or nvlamb else 1.0) * update
        torch.testing.assert_close(state_of(model), weights, rtol=1e-9, atol=1e-12)


def test_nvidias_schedule_for_bert_falls_at_the_end_of_the_warm_up() -> None:
    """Against a reading of NVIDIA's PolyWarmUpScheduler, whose steps are numbered from 1.

    It compares with the share itself, 2000.9 steps: cut to 2,000, step 2,000 would have a rate of 5.08e-3 for 6e-3.
    """
    steps, share = 7038, 0.2843
    warmup = OptimisationOptions(warmup_proportion=share).warmup(steps)
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=6e-3)
    schedule = build_schedule(POLY_SQRT, optimizer, warmup, steps)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    for part, error in ((warmup / steps, 1e-9), (share, 0.5 / warmup)):
        expected = []
        for number in range(1, steps + 1):
            progress = number / steps
            expected.append(6e-3 * (progress / part if progress < part else (1 - progress) ** 0.5))
        assert rates == pytest.approx(expected, rel=error)
    assert max(rates) == rates[warmup - 2] and round(rates[warmup - 1], 5) == 5.08e-3
    assert rates[-1] == 0
