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
from transformers import get_scheduler
from transformers.optimization import Adafactor

from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests.tiny_run import CONFIG
from utils.arguments import OPTIMIZERS, TrainArguments, parse_train_arguments
from utils.training.lamb import Lamb
from utils.training.optim import build_optimizer, build_schedule
from utils.training.precision import MasterWeights


def arguments(*options: str) -> TrainArguments:
    return parse_train_arguments(["--do_train", "--learning_rate", "1e-2", "--weight_decay", "0.1", *options])


@pytest.fixture
def model() -> BartForConditionalGeneration:
    torch.manual_seed(0)
    return BartForConditionalGeneration(BartConfig(**CONFIG, vocab_size=30, dropout=0.0))


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


class FusedAdam(Recorder):
    pass


class FusedLAMB(Recorder):
    pass


def install(
    monkeypatch: pytest.MonkeyPatch, classes: tuple[type, ...] | None = (FusedAdam, FusedLAMB), extensions: bool = True
) -> None:
    """A stand-in for NVIDIA's apex, or for the package of that name on PyPI, which has no such classes or module."""
    apex = types.ModuleType("apex")
    apex.__path__ = []  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "apex", apex)
    monkeypatch.delitem(sys.modules, "apex.optimizers", raising=False)
    if classes is not None:
        module = types.ModuleType("apex.optimizers")
        vars(module).update({optimizer.__name__: optimizer for optimizer in classes})
        monkeypatch.setitem(sys.modules, "apex.optimizers", module)
    # None in sys.modules makes the import fail.
    monkeypatch.setitem(sys.modules, "amp_C", types.ModuleType("amp_C") if extensions else None)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_biases_and_norms_do_not_decay(
    name: str, level: str, model: BartForConditionalGeneration, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    model.model.shared.requires_grad_(False)
    optimizer = build_optimizer(model, arguments("--optimizer", name, "--bf16", "--amp_level", level))
    decayed, plain = optimizer.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert {parameter.ndim for parameter in decayed["params"]} == {2}
    assert {parameter.ndim for parameter in plain["params"]} == {1}
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(decayed["params"]) + len(plain["params"]) == len(trainable) < len(list(model.parameters()))
    assert {group["lr"] for group in optimizer.param_groups} == {1e-2}


@pytest.mark.parametrize(
    ("name", "expected"), [("adamw", AdamW), ("adafactor", Adafactor), ("lamb", Lamb), ("sgd", SGD)]
)
def test_classes(name: str, expected: type[Optimizer], model: BartForConditionalGeneration) -> None:
    optimizer = build_optimizer(model, arguments("--optimizer", name))
    assert type(optimizer) is expected
    assert getattr(optimizer, "max_grad_norm", None) is None  # the training loop clips
    halves = build_optimizer(model, arguments("--optimizer", name, "--bf16", "--amp_level", "O2"))
    assert isinstance(halves, MasterWeights)
    assert type(halves.inner) is expected


@pytest.mark.parametrize("half", [[], ["--bf16"], ["--fp16"], ["--fp16", "--amp_level", "O2"]])
@pytest.mark.parametrize(
    ("name", "expected", "options"),
    [
        ("fused_adam", FusedAdam, {"lr": 1e-2, "adam_w_mode": True}),
        ("fused_lamb", FusedLAMB, {"lr": 1e-2, "max_grad_norm": math.inf}),
    ],
)
def test_apex_on_gpus(
    name: str,
    expected: type[Optimizer],
    options: dict[str, Any],
    half: list[str],
    model: BartForConditionalGeneration,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its FusedLAMB clips gradients too, by 1.0 if not told otherwise; the training loop has done that already."""
    install(monkeypatch)
    optimizer = build_optimizer(model, arguments("--optimizer", name, *half))
    if "O2" in half:
        assert isinstance(optimizer, MasterWeights)
        optimizer = optimizer.inner
    assert type(optimizer) is expected
    assert optimizer.options == options


@pytest.mark.parametrize(("name", "stand_in"), [("fused_adam", AdamW), ("fused_lamb", Lamb)])
@pytest.mark.parametrize(
    ("missing", "options", "message"),
    [
        ("the module", [], "https://github.com/NVIDIA/apex (PyPI's apex is another package)"),
        ("the classes", [], "https://github.com/NVIDIA/apex (PyPI's apex is another package)"),
        ("any apex", [], "https://github.com/NVIDIA/apex"),
        ("CUDA extensions", [], "built with its CUDA extensions from https://github.com/NVIDIA/apex"),
        ("GPUs", ["--gpus", "0"], "this run is on the CPU"),
    ],
)
def test_without_apex_one_line_says_what_is_missing_and_what_serves(
    name: str,
    stand_in: type[Optimizer],
    missing: str,
    options: list[str],
    message: str,
    model: BartForConditionalGeneration,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    classes = {"the module": None, "the classes": ()}.get(missing, (FusedAdam, FusedLAMB))
    install(monkeypatch, classes, extensions=missing != "CUDA extensions")
    if missing == "any apex":
        for module in ("apex", "apex.optimizers", "amp_C"):
            monkeypatch.setitem(sys.modules, module, None)
    with caplog.at_level(logging.INFO):
        assert type(build_optimizer(model, arguments("--optimizer", name, *options))) is stand_in
    (line,) = [record.message for record in caplog.records]
    assert line.startswith(f"--optimizer {name}: ")
    assert message in line


def test_fused_lamb_of_apex_takes_no_bfloat16_weights(
    model: BartForConditionalGeneration, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch)
    o3 = ("--bf16", "--amp_level", "O3")
    with caplog.at_level(logging.INFO):
        assert type(build_optimizer(model, arguments("--optimizer", "fused_lamb", *o3))) is Lamb
    assert "bfloat16" in caplog.text
    assert type(build_optimizer(model, arguments("--optimizer", "fused_adam", *o3))) is FusedAdam


@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("adafactor", lambda ps: Adafactor(ps, lr=1e-2, scale_parameter=False, relative_step=False, warmup_init=False)),
        ("sgd", lambda ps: SGD(ps, lr=1e-2, momentum=0.9)),
        ("adamw", lambda ps: AdamW(ps, lr=1e-2, weight_decay=0.0)),
    ],
)
def test_steps_equal_those_of_the_library(name: str, oracle: Any, model: BartForConditionalGeneration) -> None:
    initial = state_of(model)
    paths = []
    args = arguments("--optimizer", name, "--weight_decay", "0")
    for build in (lambda: build_optimizer(model, args), lambda: oracle(list(model.parameters()))):
        model.load_state_dict(initial, strict=False)
        optimizer = build()
        for _ in range(4):
            optimizer.zero_grad()
            backward(model)
            optimizer.step()
        paths.append(state_of(model))
    for key, tensor in paths[0].items():
        if "k_proj.bias" not in key:  # its gradient is rounding noise
            torch.testing.assert_close(tensor, paths[1][key], rtol=1e-6, atol=1e-7, msg=key)
            assert not torch.equal(tensor, initial[key])


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if "fused" not in name])
def test_fp16_gradients_are_unscaled_and_clipped(name: str, model: BartForConditionalGeneration) -> None:
    """Lightning's own calls, with a loss scaler, against steps without one; then an overflow, which is no step."""
    initial = state_of(model)
    results = []
    for scaled in (False, True):
        model.load_state_dict(initial, strict=False)
        optimizer = build_optimizer(model, arguments("--optimizer", name, "--fp16"))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
        plugin = MixedPrecision("16-mixed", "cpu", scaler)
        for _ in range(3):
            optimizer.zero_grad()
            backward(model, scaler.scale)
            scaler.unscale_(optimizer)
            plugin.clip_gradients(optimizer, 0.1)
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            assert norm.item() == pytest.approx(0.1, rel=1e-4)
            scaler.step(optimizer)
            scaler.update()
        results.append(state_of(model))
    for key, tensor in results[0].items():
        if "k_proj.bias" not in key:
            torch.testing.assert_close(tensor, results[1][key], rtol=1e-4, atol=1e-5, msg=key)
    optimizer.zero_grad()
    backward(model, lambda loss: scaler.scale(loss) * math.inf)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert all(torch.equal(tensor, results[1][key]) for key, tensor in state_of(model).items())


@pytest.mark.parametrize(
    ("name", "theirs", "specific"),
    [
        ("polynomial", "polynomial", {"lr_end": 1e-7}),
        ("linear", "linear", {}),
        ("cosine", "cosine", {}),
        ("cosine_w_restarts", "cosine_with_restarts", {"num_cycles": 4}),
        ("constant", "constant_with_warmup", {}),
    ],
)
@pytest.mark.parametrize("warmup", [0, 7])
def test_schedules_are_those_of_transformers(name: str, theirs: str, specific: dict[str, Any], warmup: int) -> None:
    total = 47

    def rates(make: Any) -> list[float]:
        optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=3e-4)
        schedule = make(optimizer)
        values = []
        for _ in range(total + 1):
            values.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return values

    ours = rates(lambda optimizer: build_schedule(name, optimizer, warmup, total))
    expected = rates(lambda optimizer: get_scheduler(theirs, optimizer, warmup, total, specific))
    assert ours == expected
    assert ours[:warmup] == pytest.approx([3e-4 * step / 7 for step in range(warmup)])
    assert ours[warmup] == max(ours) == 3e-4
    end = {"polynomial": 1e-7, "constant": 3e-4}.get(name, 0.0)
    assert ours[-1] == pytest.approx(end)
    rises = sum(after > before for before, after in zip(ours[warmup:], ours[warmup + 1 :], strict=False))
    assert rises == (3 if name == "cosine_w_restarts" else 0)
