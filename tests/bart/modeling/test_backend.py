"""The seam of speed: a model computes with torch alone until it gets another backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bart.cpu import operators
from bart.cpu.backend import CpuBackend
from bart.cpu.kernels import Kernels
from tests.tiny_run import tiny_bart


@pytest.fixture
def nothing_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every method of `bart.cpu.backend`, every operator and every kernel raise AssertionError."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("code for CPUs was called")

    for owner in (CpuBackend, Kernels, operators):
        for name, member in vars(owner).items():
            if callable(member) and not name.startswith("_") and str(member.__module__).startswith("bart.cpu."):
                monkeypatch.setattr(owner, name, refuse)


@pytest.mark.usefixtures("nothing_for_cpus")
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_torch_alone_trains_and_decodes(autocast: bool) -> None:
    model = tiny_bart(attention_dropout=0.1, activation_dropout=0.1, init_std=0.1).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.randint(3, 50, (4, 9))
    batch = {"input_ids": ids, "attention_mask": (ids > 8).long(), "labels": ids[:, :5], "summed_loss": True}
    losses = []
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for _ in range(10):
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        assert model.eval().generate(ids, num_beams=2, max_length=6).shape[0] == 4
        model.compute_with(CpuBackend())
        with pytest.raises(AssertionError, match="code for CPUs was called"):
            model(**batch)
