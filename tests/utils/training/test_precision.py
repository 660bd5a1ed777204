"""What --fp16, --bf16 and --amp_level do to weights, gradients and optimizers, through a checkpoint too."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from tests.tiny_run import Train, checkpoint_of, same, tiny_bart
from utils.training.optim import build_optimizer, build_schedule
from utils.training.options import OPTIMIZERS, HardwareOptions, OptimisationOptions
from utils.training.precision import LossScaler, MasterWeights

OWN = [name for name in OPTIMIZERS if "fused" not in name]
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Run:
    """A model in training, whose batches are given by the number of the step."""

    def __init__(self, name: str, level: str, half: str = "bf16", device: str = "cpu") -> None:
        dtype = HALVES[half] if level == "O2" else torch.float32
        self.model = tiny_bart(vocab_size=30, dropout=0.0, init_std=0.1).to(device, dtype)
        options = OptimisationOptions(optimizer=name, weight_decay=0.1, learning_rate=1e-3)
        self.optimizer: Optimizer = build_optimizer(
            self.model, options, HardwareOptions(gpus=1, **{half: True}, amp_level=level)
        )
        self.schedule = build_schedule("linear", self.optimizer, 2, 12)

    def steps(self, numbers: range) -> None:
        for number in numbers:
            ids = torch.randint(3, 30, (2, 6), generator=torch.Generator().manual_seed(number))
            self.optimizer.zero_grad()
            self.model(ids, labels=ids).loss.backward()
            if isinstance(self.optimizer, MasterWeights):
                self.optimizer.add_gradients()
            self.optimizer.step()
            self.schedule.step()

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "schedule")}

    def load(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            getattr(self, name).load_state_dict(value)


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_checkpoint_brings_back_every_bit(name: str, level: str) -> None:
    whole = Run(name, level)
    whole.steps(range(4))
    stored = through_a_file(whole.state())
    whole.steps(range(4, 9))
    resumed = Run(name, level)
    resumed.steps(range(2))  # what it did before must not show
    resumed.load(stored)
    assert same(resumed.state(), stored)
    resumed.steps(range(4, 9))
    assert same(resumed.state(), whole.state())
    assert all(parameter.isfinite().all() for parameter in resumed.model.parameters())


def test_adafactor_goes_on_from_the_former_codes_checkpoints() -> None:
    """Under fp16 it counted steps in tensors, and it kept no sizes of weights."""
    whole = Run("adafactor", "O1")
    whole.steps(range(3))
    stored = through_a_file(whole.state())
    for state in stored["optimizer"]["state"].values():
        state["step"] = torch.tensor(float(state["step"]))
        del state["RMS"]
    whole.steps(range(3, 6))
    resumed = Run("adafactor", "O1")
    resumed.load(stored)
    resumed.steps(range(3, 6))
    assert same(resumed.model.state_dict(), whole.model.state_dict())


@pytest.mark.parametrize("name", OWN)
def test_master_weights_move_as_fp32_weights_do(name: str) -> None:
    """The same gradients move the fp32 copies as they move weights that are fp32 themselves; the halves follow."""
    halves, full = Run(name, "O2"), Run(name, "O1")
    full.model.load_state_dict(halves.model.state_dict())
    optimizer = halves.optimizer
    assert isinstance(optimizer, MasterWeights)
    place = {id(half): master for half, master in zip(optimizer.halves, optimizer.masters, strict=True)}
    pairs = list(zip(halves.model.parameters(), full.model.parameters(), strict=True))
    for number in range(5):
        halves.steps(range(number, number + 1))
        for half, parameter in pairs:
            parameter.grad = place[id(half)].grad.clone()
        full.optimizer.step()
        full.schedule.step()
    for half, parameter in pairs:
        assert torch.equal(place[id(half)], parameter)
        assert torch.equal(half, parameter.bfloat16())
        assert (half.float() != parameter).any()  # the copy holds what its half cannot


def test_gradients_of_many_micro_batches_add_up_in_fp32() -> None:
    """A sum in bf16 stands still at 256: half the distance to the next number is as much as is added."""
    weight = nn.Parameter(torch.zeros(3, 2, dtype=torch.bfloat16))
    optimizer = MasterWeights([{"params": [weight]}], lambda groups: AdamW(groups))
    for _ in range(1000):
        weight.grad = torch.ones_like(weight)
        optimizer.add_gradients()
        assert weight.grad is None
    assert (optimizer.masters[0].grad == 1000).all()
    optimizer.zero_grad()
    assert optimizer.masters[0].grad is None


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("name", OWN)
def test_a_step_that_overflows_is_skipped_and_the_host_does_not_ask(
    name: str, level: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, moments and the number of steps are those of a run without that step, be it the first one."""
    if name != "adafactor":  # that of transformers cannot skip one by itself
        monkeypatch.setattr(LossScaler, "_maybe_opt_step", lambda *_: pytest.fail("asked"))
    results = []
    for scales in ([math.nan, 1.0, math.inf, math.nan, 1.0, 1.0], [1.0, 1.0, 1.0]):
        run = Run(name, level, "fp16", device)
        optimizer, scaler = run.optimizer, LossScaler(device, init_scale=2.0**10)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for scale in scales:
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, 0.25) * scaler.scale(torch.tensor(scale, device=device))
            scaler.unscale_(optimizer)
            assert torch.nn.utils.clip_grad_norm_(parameters, 1.0).isfinite() == math.isfinite(scale)
            scaler.step(optimizer)
            scaler.update()
            if math.inf in scales:  # where it goes through checkpoints, too
                optimizer.load_state_dict(through_a_file(optimizer.state_dict()))
        assert scaler.get_scale() == 2.0 ** (7 if math.inf in scales else 10)
        results.append((run.model.state_dict(), optimizer.state_dict()))
    assert same(*results)
    assert not same(results[0][0], Run(name, level, "fp16", device).model.state_dict())


def test_a_whole_run_with_master_weights_resumes(train: Train) -> None:
    options = ["--bf16", "--amp_level", "O2", "--optimizer", "lamb", "--gradient_accumulation_steps", 2]
    options += ["--learning_rate", 1e-3, "--weight_decay", 0.1, "--lr_scheduler", "constant"]
    whole = checkpoint_of(train("whole", *options, "--max_steps", 4))
    train("parts", *options, "--max_steps", 2)
    parts = checkpoint_of(train("parts", *options, "--max_steps", 4, "--resume_from_checkpoint", "last"))
    for key in ("global_step", "state_dict", "optimizer_states"):
        assert same(parts[key], whole[key]), key
    assert {master.dtype for master in whole["optimizer_states"][0]["masters"]} == {torch.float32}
