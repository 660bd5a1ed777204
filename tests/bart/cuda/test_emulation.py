"""Training in bf16 by the backend of GPUs, on the CPU: its kernels and FlashAttention are torch's operations there."""

from __future__ import annotations

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


def losses(model: nn.Module, seed: int, half: bool, by_rows: bool) -> Tensor:
    """The mean loss of each step, of training on sentences that are to be repeated."""
    generator, optimizer = torch.Generator().manual_seed(seed), AdamW(model.parameters(), lr=1e-3)
    found = []
    for _ in range(STEPS):
        ids = torch.randint(4, 12, (4, 12), generator=generator)
        is_token = torch.arange(12) < torch.randint(3, 13, (4, 1), generator=generator)
        labels = ids.where(is_token, IGNORE_INDEX)
        if by_rows:
            given = {"input_ids": Rows.of(ids, is_token, 8), "labels": Rows.of(labels, is_token, 8, IGNORE_INDEX)}
        else:
            given = {"input_ids": ids, "attention_mask": is_token.long(), "labels": labels}
        with torch.autocast("cpu", torch.bfloat16, enabled=half), model.backend.step(model.layers):
            loss = model(**given, summed_loss=True, smoothing=0.1).loss / is_token.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach().double())
    return torch.stack(found)


def errors() -> tuple[list[float], list[float]]:
    """Of our losses in bf16, and of autocast's, beside those in fp64: the root of the mean square, for each seed."""
    kernels = stand_ins.load()
    cuda.load_kernels, cuda.has_flash, cuda.attend_to_spans = lambda _: kernels, lambda *_: True, attend
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    ours, autocasts = [], []
    for seed in range(SEEDS):

        def made(seed: int = seed) -> nn.Module:
            return tiny_bart(dropout=0.0, d_model=32, max_position_embeddings=16, seed=seed).train()

        exact, rows = losses(made().double(), seed, half=False, by_rows=False), made()
        autocast = losses(made(), seed, half=True, by_rows=False)
        rows.compute_with(CudaBackend())
        torch.set_autocast_enabled("cuda", True)
        of_rows = losses(rows, seed, half=True, by_rows=True)
        torch.set_autocast_enabled("cuda", False)
        assert exact[-20:].mean() < 0.9 * exact[:20].mean()
        for found, into in ((of_rows, ours), (autocast, autocasts)):
            into.append(float((found - exact).square().mean().sqrt()))
    return ours, autocasts


@pytest.mark.slow
def test_losses_of_many_steps_are_as_near_to_fp64_as_those_of_autocast() -> None:
    """The mean error is within what autocast's own depends on the seed."""
    ours, autocasts = forked.call(errors)
    assert sum(ours) / SEEDS <= max(autocasts), (ours, autocasts)
