"""fp32 copies of half-precision weights, and the state of optimizers, through a checkpoint."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import finetune
from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests.tiny_run import CONFIG, write_tiny_run
from utils.arguments import OPTIMIZERS, parse_train_arguments
from utils.training.optim import build_optimizer, build_schedule
from utils.training.precision import MasterWeights

OWN = [name for name in OPTIMIZERS if "fused" not in name]


class Run:
    """A model in training, whose batches are given by the number of the step."""

    def __init__(self, name: str, level: str, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.model = BartForConditionalGeneration(BartConfig(**CONFIG, vocab_size=30, dropout=0.0)).to(dtype)
        argv = ["--do_train", "--optimizer", name, "--bf16", "--amp_level", level, "--weight_decay", "0.1"]
        self.optimizer: Optimizer = build_optimizer(
            self.model, parse_train_arguments([*argv, "--learning_rate", "1e-3"])
        )
        self.schedule = build_schedule("linear", self.optimizer, 2, 12)

    def steps(self, numbers: range) -> None:
        for number in numbers:
            ids = torch.randint(3, 30, (2, 6), generator=torch.Generator().manual_seed(number))
            self.optimizer.zero_grad()
            self.model(ids, labels=ids).loss.backward()
            if isinstance(self.optimizer, MasterWeights):
                self.optimizer.collect_gradients()
            self.optimizer.step()
            self.schedule.step()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(
    ("level", "dtype"), [("O1", torch.float32), ("O2", torch.bfloat16), ("O3", torch.bfloat16), ("O3", torch.float16)]
)
def test_a_checkpoint_brings_back_every_bit(name: str, level: str, dtype: torch.dtype) -> None:
    whole = Run(name, level, dtype)
    whole.steps(range(4))
    stored = through_a_file(whole.state())
    whole.steps(range(4, 9))
    resumed = Run(name, level, dtype)
    resumed.steps(range(2))  # what it did before must not show
    resumed.load(stored)
    assert same(resumed.state(), stored)
    resumed.steps(range(4, 9))
    assert same(resumed.state(), whole.state())
    assert all(parameter.isfinite().all() for parameter in resumed.model.parameters())


@pytest.mark.parametrize("name", OWN)
def test_master_weights_move_as_fp32_weights_do(name: str) -> None:
    """The same gradients move the fp32 copies as they move weights that are fp32 themselves; the halves follow."""
    halves = Run(name, "O2", torch.bfloat16)
    full = Run(name, "O1", torch.float32)
    full.model.load_state_dict(halves.model.state_dict())
    assert isinstance(halves.optimizer, MasterWeights)
    parameters = dict(full.model.named_parameters())
    for number in range(5):
        halves.steps(range(number, number + 1))
        for half, parameter in zip(halves.model.parameters(), parameters.values(), strict=True):
            parameter.grad = half.grad.float()
        full.optimizer.step()
        full.schedule.step()
    masters = {id(half): master for half, master in zip(halves.optimizer.halves, halves.optimizer.masters, strict=True)}
    moved = 0
    for (key, half), parameter in zip(halves.model.named_parameters(), parameters.values(), strict=True):
        torch.testing.assert_close(masters[id(half)], parameter, rtol=1e-6, atol=1e-8, msg=key)
        assert torch.equal(half, masters[id(half)].bfloat16())
        moved += int((half.float() != masters[id(half)]).any())
    assert moved == len(masters)  # every copy holds what its half cannot


def test_gradients_are_freed_on_both_sides() -> None:
    run = Run("adamw", "O2", torch.bfloat16)
    run.steps(range(1))
    optimizer = run.optimizer
    assert isinstance(optimizer, MasterWeights)
    parameters: list[nn.Parameter] = [*optimizer.masters, *optimizer.halves]
    assert all(parameter.grad is not None for parameter in parameters)
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in parameters)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_a_whole_run_with_master_weights_resumes(name: str, tmp_path: Path) -> None:
    argv = [*write_tiny_run(tmp_path), "--do_train", "--bf16", "--amp_level", "O2", "--optimizer", name]
    argv += ["--learning_rate", "1e-3", "--weight_decay", "0.1", "--lr_scheduler", "constant"]
    ends = {}
    for output, steps, resume in (("whole", 4, False), ("parts", 2, False), ("parts", 4, True)):
        last = tmp_path / output / "last.ckpt"
        options = ["--output_dir", str(last.parent), "--max_steps", str(steps)]
        finetune.main([*argv, *options, *(["--resume_from_checkpoint", str(last)] if resume else [])])
        ends[output] = torch.load(last, weights_only=True)
    for key in ("global_step", "state_dict", "optimizer_states"):
        assert same(ends["parts"][key], ends["whole"][key]), key
    assert {master.dtype for master in ends["whole"]["optimizer_states"][0]["masters"]} == {torch.float32}
