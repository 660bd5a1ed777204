"""The backend of GPUs, on the CPU: compiled layers, and what needs no GPU to be known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from bart import torch_internals
from bart.backend import IGNORE_INDEX, Backend
from bart.cpu.backend import CpuBackend
from bart.cuda import backend as cuda
from bart.cuda.backend import CudaBackend
from bart.modeling import layers
from bart.rows import Rows
from tests.tiny_run import tiny_bart


@torch.library.custom_op("tests::attend_to_spans", mutates_args=())
def attend(
    query: Tensor, keys: Tensor, values: Tensor, starts: list[Tensor], longest: list[int], dropout: float
) -> Tensor:
    """Stands for FlashAttention; its results mean nothing."""
    return query.clone(memory_format=torch.contiguous_format)


attend.register_fake(lambda query, *_: torch.empty_like(query, memory_format=torch.contiguous_format))
attend.register_autograd(lambda _, gradient: (gradient, None, None, [None, None], None, None))


@pytest.mark.slow
@pytest.mark.parametrize("backend", [CudaBackend, CpuBackend])
def test_compiled_layers_know_all_lengths_after_the_first_step(
    backend: type[Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "has_flash", lambda *_: True)
    monkeypatch.setattr(
        cuda,
        "attend_to_spans",
        lambda query, keys, values, starts, longest, is_causal, dropout: attend(
            query, keys, values, list(starts), list(longest), dropout
        ),
    )
    torch.compiler.reset()
    layers.compile_whole_layers()
    compiled = torch.compile(layers._call, dynamic=True, backend="eager")
    monkeypatch.setattr(layers, "compiled_call", lambda: compiled)
    model = tiny_bart(dropout=0.1, max_position_embeddings=512, encoder_layers=3, decoder_layers=3).train()
    model.compute_with(backend())
    model.compile_layers()
    generator, graphs = torch.Generator().manual_seed(0), []
    counters.clear()
    for step in range(60):
        articles = int(torch.randint(2, 9, (), generator=generator))
        given = []
        for most in (30, 30) if step == 0 else (400, 60):  # equal sizes at first, which are no rule
            length = most if step == 0 else int(torch.randint(3, most, (), generator=generator))
            counts = torch.randint(2, length + 1, (articles, 1), generator=generator)
            ids = torch.randint(4, 50, (articles, length), generator=generator)
            given.append(Rows.of(ids, torch.arange(length) < counts, 512, IGNORE_INDEX if given else 0))
        model(given[0], labels=given[1], summed_loss=True).loss.backward()
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] > 0 and graphs == graphs[:1] * 60


@pytest.mark.parametrize("are_alike", [True, False])
def test_dropout_that_differs_between_the_passes_is_found(are_alike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Attention(torch.autograd.Function):
        """Of two articles; the seed of the backward pass drops the same weights as that of the forward pass, or not."""

        @staticmethod
        def forward(ctx, values):
            return weights_of(seed=1) @ values.float()

        @staticmethod
        def backward(ctx, gradient):
            return weights_of(seed=1 if are_alike else 2).mT @ gradient

    def weights_of(seed: int) -> Tensor:
        kept = torch.rand(2, 128, 128, generator=torch.Generator().manual_seed(seed)) < 0.5
        kept[:, :48, 48:] = kept[:, 48:, :48] = False
        return kept / 40

    def attend(query, keys, values, starts, longest, is_causal, dropout):
        return Attention.apply(values.transpose(0, 1)).transpose(0, 1).to(values.dtype)

    monkeypatch.setattr(torch_internals, "attend_to_spans", attend)
    before = torch.get_rng_state()
    assert torch_internals.drops_alike.__wrapped__(torch.device("cpu")) is are_alike
    assert torch.get_rng_state().equal(before)


@pytest.mark.gpu
def test_flash_attention_drops_the_same_weights_in_both_passes() -> None:
    assert torch_internals.drops_alike(torch.device("cuda", 0))
