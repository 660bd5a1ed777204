"""The seam of speed: a model computes with torch alone until it gets another backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bart.backend import TORCH, Backend, BackendModule, Rows
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


def test_one_call_gives_all_parts_of_a_model_a_backend() -> None:
    model = tiny_bart(source_encoder_layers=1, source_vocab_size=50)
    parts = [module for module in model.modules() if isinstance(module, BackendModule)]
    assert len(parts) == 1 + 3 + 3 + 4  # the model, stacks, layers, attentions
    assert {part.backend for part in parts} == {TORCH}
    backend = Backend()
    model.compute_with(backend)
    assert {part.backend for part in parts} == {backend}


def test_a_copy_for_inference_gets_the_backend_of_its_device() -> None:
    model = tiny_bart()
    parts = [module for module in model.for_inference().modules() if isinstance(module, BackendModule)]
    assert len(parts) > 5 and {type(part.backend) for part in parts} == {CpuBackend}
    assert model.backend is TORCH


class Lengths(Backend):
    """Reads lengths, which a collate function knows without asking the device, that a source mask carries."""

    def encoder_rows(self, states: Tensor, mask: Tensor) -> Rows:
        return super().encoder_rows(states, self.mask_of(mask))

    def decoder_rows(self, states: Tensor, mask: None, wanted: Tensor, encoder_states: Tensor, encoder_mask: Tensor):
        return super().decoder_rows(states, mask, wanted, encoder_states, self.mask_of(encoder_mask))

    def mask_of(self, mask: Tensor) -> Tensor:
        return torch.arange(mask.shape[1]) < torch.tensor(mask.lengths)[:, None]


def test_in_training_only_the_backend_reads_the_mask() -> None:
    model = tiny_bart(dropout=0.0).train()
    ids = torch.randint(3, 50, (3, 9))
    unreadable = torch.empty_like(ids, device="meta")
    unreadable.lengths = [9, 2, 5]
    mask = Lengths().mask_of(unreadable)
    expected, unmasked = (model(ids, given, labels=ids, summed_loss=True).loss for given in (mask, None))
    model.compute_with(Lengths())
    assert model(ids, unreadable, labels=ids, summed_loss=True).loss == expected != unmasked
