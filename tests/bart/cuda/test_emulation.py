"""Training in bf16 by the backend of GPUs, on the CPU: its kernels and FlashAttention are torch's operations there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from bart.backend import IGNORE_INDEX
from bart.cuda import backend as cuda
from bart.cuda.backend import CudaBackend
from bart.rows import Rows
from tests import forked
from tests.fake_cuda import kernels as stand_ins
from tests.tiny_run import tiny_bart

SEEDS, STEPS = 3, 200


def attend(query: Tensor, keys: Tensor, values: Tensor, starts, longest, is_causal: bool, dropout: float) -> Tensor:
    """Each article's attention in fp32, of rows (N, H, Dh) in half precision; as in `bart.torch_internals`."""
    counts = [each.diff().tolist() for each in starts]
    parts = [
        rows.float().transpose(0, 1)[None].split(count, dim=2)
        for rows, count in zip((query, keys, values), (*counts, counts[1]), strict=True)
    ]
    articles = [F.scaled_dot_product_attention(*part, is_causal=is_causal) for part in zip(*parts, strict=True)]
    return torch.cat(articles, dim=2)[0].transpose(0, 1).to(query.dtype)


def loss_of(model: nn.Module, generator: torch.Generator, half: bool, by_rows: bool) -> Tensor:
    """The mean loss of sentences that are to be repeated, under autocast if half, after the backward pass."""
    ids = torch.randint(4, 12, (4, 12), generator=generator)
    is_token = torch.arange(12) < torch.randint(3, 13, (4, 1), generator=generator)
    labels = ids.where(is_token, IGNORE_INDEX)
    if by_rows:
        given = {"input_ids": Rows.of(ids, is_token, 8), "labels": Rows.of(labels, is_token, 8, IGNORE_INDEX)}
    else:
        given = {"input_ids": ids, "attention_mask": is_token.long(), "labels": labels}
    with model.backend.step(model.layers):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model(**given, summed_loss=True, smoothing=0.1).loss / is_token.sum()
        loss.backward()
    return loss.detach().double()


def trained(model: nn.Module, seed: int, *how: bool) -> Tensor:
    """The loss of each step."""
    generator, optimizer = torch.Generator().manual_seed(seed), AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
        losses.append(loss_of(model, generator, *how))
        optimizer.step()
        optimizer.zero_grad()
    assert sum(losses[-20:]) < 0.9 * sum(losses[:20])
    return torch.stack(losses)


def gradient(model: nn.Module, seed: int, *how: bool) -> Tensor:
    loss_of(model, torch.Generator().manual_seed(seed), *how)
    return torch.cat([parameter.grad.double().flatten() for parameter in model.parameters()])


def made(case: str, seed: int) -> nn.Module:
    fields = {"pre_ln": True} if case == "Pre-LN" else {"activation_function": "relu"} if case == "ReLU" else {}
    model = tiny_bart(dropout=0.0, d_model=32, max_position_embeddings=16, seed=seed, **fields).train()
    model.gradient_checkpointing_enable(enabled=case == "checkpointing")
    if case == "an adapter":  # is no plain linear layer
        for layer in model.layers:
            layer.fc2 = nn.Sequential(layer.fc2)
    return model


def errors(case: str, compute: Callable[..., Tensor]) -> tuple[list[float], list[float]]:
    """Of ours in bf16 and of autocast's beside fp64: the norm of the difference, for each seed.

    Autocast's norms give what bf16 can hold, as the residual stream is in bf16.
    """
    kernels = stand_ins.load()
    cuda.load_kernels, cuda.has_flash, cuda.attend_to_spans = lambda _: kernels, lambda *_: True, attend
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    ours, autocasts = [], []
    for seed in range(SEEDS):
        exact = compute(made(case, seed).double(), seed, False, False)
        oracle = made(case, seed)
        for norm in (part for layer in oracle.layers for part in layer.children() if isinstance(part, nn.LayerNorm)):
            if case != "Pre-LN":  # its stream is in fp32
                norm.register_forward_hook(lambda _, __, out: out.bfloat16().to(out.dtype))
        autocast = compute(oracle, seed, True, False)
        model = made(case, seed)
        model.compute_with(CudaBackend())
        torch.set_autocast_enabled("cuda", True)
        ours.append(float((compute(model, seed, True, True) - exact).norm()))
        torch.set_autocast_enabled("cuda", False)
        autocasts.append(float((autocast - exact).norm()))
    return ours, autocasts


@pytest.mark.parametrize("case", ["post-LN", "Pre-LN", "ReLU", "checkpointing", "an adapter"])
def test_gradients_are_as_near_to_fp64_as_those_of_autocast(case: str) -> None:
    """The mean error is within what autocast's own depends on the seed."""
    ours, autocasts = forked.call(errors, case, gradient)
    assert sum(ours) / SEEDS <= max(autocasts), (ours, autocasts)


@pytest.mark.slow
def test_losses_of_many_steps_are_as_near_to_fp64_as_those_of_autocast() -> None:
    ours, autocasts = forked.call(errors, "post-LN", trained)
    assert sum(ours) / SEEDS <= max(autocasts), (ours, autocasts)


def check_seeds() -> None:
    kernels, layer, norm = stand_ins.load(), nn.Linear(8, 8, dtype=torch.bfloat16), nn.LayerNorm(8)
    cuda.load_kernels = lambda _: kernels
    torch.set_autocast_enabled("cuda", True)
    states, seed = torch.ones(2, 8, dtype=torch.bfloat16), torch.tensor([5])

    def passed_on(seed: Tensor | None, rate: float) -> Tensor | None:
        return CudaBackend().add_and_norm(states, layer, (states, states, seed), norm, rate)[2]

    assert passed_on(None, 0.0) is None and passed_on(seed, 0.0) is seed
    assert passed_on(seed, 0.1) == 6 and isinstance(passed_on(None, 0.1), Tensor)


def test_a_branch_without_dropout_passes_on_no_seed_that_was_never_drawn() -> None:
    """Layers below may be in evaluation."""
    forked.call(check_seeds)
