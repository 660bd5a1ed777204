"""The kernels in Triton, beside torch in fp32."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bart.backend import IGNORE_INDEX, TORCH
from bart.cuda import backend as cuda
from tests import forked
from tests.fake_cuda import kernels as stand_ins

WIDTHS = 48, 1024
# Of the update, the residual stream, and what is kept of the normed states.
TYPES = (
    (torch.float16, torch.float32, torch.float32),
    (torch.bfloat16, torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16, torch.bfloat16),
)


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("articles", "queries", "length", "width"), [(3, 6, 200, 64), (1, 1, 17, 32), (70, 16, 640, 128)]
)
def test_attention_of_few_queries(articles: int, queries: int, length: int, width: int, shared: bool) -> None:
    from bart.cuda.kernels import attend_few, can_attend_few

    generator = torch.Generator("cuda").manual_seed(0)
    query = torch.randn(articles, queries, 2, width, device="cuda", generator=generator).bfloat16().transpose(1, 2)
    keys, values = torch.randn(2, articles, 2, length, width, device="cuda", generator=generator).bfloat16()
    allowed = torch.rand(articles, 1, 1 if shared else queries, length, device="cuda", generator=generator) < 0.5
    allowed[..., length * 3 // 4 :] = False
    allowed[..., length // 2] = True
    mask = torch.zeros_like(allowed, dtype=torch.bfloat16).masked_fill_(~allowed, -torch.inf)
    assert can_attend_few(query, keys, mask)
    expected = F.scaled_dot_product_attention(query.float(), keys.float(), values.float(), mask.float())
    theirs = F.scaled_dot_product_attention(query, keys, values, mask)
    ours = attend_few(query, keys, values, mask)
    assert (ours - expected).norm() < 2 * (theirs - expected).norm()


@pytest.mark.gpu
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("half", "stream", "kept"), TYPES)
def test_sum_and_norm(half: torch.dtype, stream: torch.dtype, kept: torch.dtype, width: int) -> None:
    check_sum_and_norm("cuda", (3, 700, width), half, stream, kept)


CHECKS = "norms", "feed_forward", "gradients_side_by_side", "cross_entropy"


@pytest.mark.gpu
@pytest.mark.parametrize("check", CHECKS)
def test_kernels(check: str) -> None:
    globals()[f"check_{check}"]("cuda")


@pytest.mark.parametrize("check", CHECKS)
def test_what_is_around_the_kernels(check: str) -> None:
    forked.call(check_around, check)


def check_around(check: str) -> None:
    stand_ins.load()
    globals()[f"check_{check}"]("cpu")


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not here")
@pytest.mark.parametrize("how", ["interpreted", "compiled"])
def test_kernels_without_a_gpu(how: str) -> None:
    code = f"from tests.bart.cuda import test_kernels; test_kernels.check_{how}()"
    environment = os.environ | {"TRITON_INTERPRET": "1" if how == "interpreted" else "0"}  # read as Triton is loaded
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], env=environment, check=True)


def check_interpreted() -> None:
    torch.cuda.device_of = lambda _: nullcontext()
    torch.cuda.get_device_properties = lambda *_: type("Properties", (), {"multi_processor_count": 3})
    for check in CHECKS:
        globals()[f"check_{check}"]("cpu")
    from bart.cuda.kernels import cross_entropy

    losses, _ = cross_entropy(torch.randn(3, 40), torch.zeros(40), torch.tensor([-1, 40, 3]), 0.1)
    assert losses.isposinf().tolist() == [True, True, False]


def check_compiled() -> None:
    """Each launch of a training step compiles for Ampere and Hopper."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime import JITFunction

    from bart.cuda import kernels

    compiled = set()

    def launch(function: JITFunction, *arguments: object, num_warps: int = 4) -> None:
        given = list(zip(function.params, arguments, strict=True))
        constants = {(number,): value for number, (each, value) in enumerate(given) if each.is_constexpr}
        types = {
            each.name: "constexpr" if each.is_constexpr else names.get(type(value)) or f"*{names[value.dtype]}"
            for each, value in given
        }
        assert types.get("sums", "*fp32") == "*fp32"  # which many programs add to
        source = ASTSource(function, types, constants)
        for capability in (80, 90):
            made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": num_warps})
            assert re.search("tt.addptr.*i64", made.asm["ttir"])  # matrices may have more than 2^31 numbers
        compiled.add(function.__name__)

    names = {int: "i32", float: "fp32", torch.long: "i64"}
    names |= {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
    JITFunction.__getitem__ = lambda function, grid: partial(launch, function)
    torch.cuda.device_of = lambda _: nullcontext()
    torch.cuda.get_device_properties = lambda *_: type("Properties", (), {"multi_processor_count": 3})
    for half, rate in product((torch.float16, torch.bfloat16), (0.0, 0.1)):
        states, wide, norm = torch.ones(9, 16, dtype=half, requires_grad=True), torch.ones(64), nn.LayerNorm(16)
        last = norm.bias if rate else None
        outs = kernels.AddAndNorm.apply(states, states.float(), norm.weight, norm.bias, last, None, norm.eps, rate)
        (outs[0].sum() + outs[1].sum()).backward()
        first, second = nn.Linear(16, 64), nn.Linear(64, 16)
        with copying(half, kernels) as backend:
            inner = backend.activated(states, first, "gelu", rate)
            inner = inner._replace(bias=first.bias.to(half if rate else torch.float32))  # of weights in half precision
            backend.project(inner, [second, second])[0].sum().backward()
        kernels.cross_entropy(states, wide[:16], torch.zeros(9, dtype=torch.long), rate)
    assert len(compiled) == 5


@contextmanager
def copying(half: torch.dtype, kernels: ModuleType | None = None) -> Iterator[cuda.CudaBackend]:
    """A backend in a step, whose products read copies of weights in half precision, with kernels or without."""
    backend = cuda.CudaBackend()
    backend.dtype, backend.joins_layers = half, True
    with mock.patch.object(cuda, "load_kernels", lambda _: kernels):
        yield backend


def halves() -> tuple[torch.dtype, ...]:
    """The interpreter does not round to bfloat16, but cuts off."""
    return (torch.float16,) if os.environ.get("TRITON_INTERPRET") else (torch.float16, torch.bfloat16)


def check_norms(device: str) -> None:
    for width, types in product(WIDTHS, TYPES):
        if types[0] in halves():
            check_sum_and_norm(device, (3, 20, width), *types)


def check_feed_forward(device: str) -> None:
    from bart.cuda import kernels

    torch.manual_seed(0)
    for half, width in product(halves(), (48, 1100)):
        first, last = nn.Linear(32, width, device=device), nn.Linear(width, 24, device=device)
        states = torch.randn(2, 70, 32, device=device).to(half).requires_grad_()
        leaves = states, first.weight, first.bias, last.weight
        gradient = torch.randn(2, 70, 24, device=device).to(half)

        def of(out: Tensor, leaves: tuple[Tensor, ...] = leaves, gradient: Tensor = gradient) -> list[Tensor]:
            return [out, *torch.autograd.grad(out, leaves, gradient.to(out.dtype), retain_graph=True)]

        doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
        exact = of(F.gelu(doubles[0] @ doubles[1].t() + doubles[2]) @ doubles[3].t() + last.bias, tuple(doubles))
        with copying(half, kernels) as ours:
            out = ours.linear(ours.activated(states, first, "gelu", 0.0), last)
        with copying(half) as theirs:
            torchs = of(theirs.linear(F.gelu(theirs.linear(states, first)), last))
        found = of(out)
        for one, other in zip(found, of(out), strict=True):  # another backward pass adds to other sums
            torch.testing.assert_close(one, other)
        for actual, rounded, expected in zip(found, torchs, exact, strict=True):
            assert (actual - expected).norm() <= 1.2 * (rounded - expected).norm()
        check_dropped_gelu(half, width, device)


def check_dropped_gelu(half: torch.dtype, width: int, device: str, rate: float = 0.3) -> None:
    """The same numbers are dropped in both passes."""
    from bart.cuda import kernels

    last = nn.Linear(width, width, device=device)
    nn.init.eye_(last.weight)
    nn.init.zeros_(last.bias)
    states, bias = torch.rand(50, width, device=device).to(half).add_(0.5).requires_grad_(), torch.zeros(width)
    bias = bias.to(device).requires_grad_()
    with copying(half, kernels) as backend:
        out = backend.linear(cuda.Preactivated(states, bias, rate), last)
    kept = (out != 0) / (1 - rate)
    assert abs(float((out != 0).float().mean()) - (1 - rate)) < 5 * (rate * (1 - rate) / out.numel()) ** 0.5
    doubles = [leaf.detach().double().requires_grad_() for leaf in (states, bias)]
    expected = F.gelu(sum(doubles)) * kept
    gradient = torch.randn_like(out)
    tolerance = {"rtol": 2 * torch.finfo(half).eps, "atol": 1e-6, "check_dtype": False}
    torch.testing.assert_close(out, expected.detach(), **tolerance)
    of_states, of_bias = torch.autograd.grad(out, (states, bias), gradient)
    for_states, for_bias = torch.autograd.grad(expected, doubles, gradient.double())
    torch.testing.assert_close(of_states, for_states, **tolerance)
    torch.testing.assert_close(of_bias, for_bias, rtol=1e-4, atol=1e-4, check_dtype=False)


def check_gradients_side_by_side(device: str) -> None:
    from bart.cuda.kernels import join

    torch.manual_seed(0)
    for number, (rows, width) in product((1, 2, 3, 4), ((600, 24), (37, 64))):
        matrices = torch.randn(number, rows, width, device=device).half().unbind()
        joined, sums = join(matrices)
        assert joined.equal(torch.cat(matrices, dim=1))
        torch.testing.assert_close(sums, joined.double().sum(dim=0).float(), atol=1e-5 * rows**0.5, rtol=0.0)


def check_cross_entropy(device: str) -> None:
    from bart.cuda.kernels import cross_entropy

    torch.manual_seed(0)
    labels = torch.tensor([0, 5, 299, IGNORE_INDEX, 7, IGNORE_INDEX], device=device)[:, None].repeat(1, 2)[:, 0]
    for half, width, smoothing in product((torch.float32, *halves()), (300, 5001), (0.0, 0.1)):
        padded, bias = 3 * torch.randn(6, width + 8, device=device).to(half), torch.randn(width, device=device)
        behind, logits = padded[:, width:].clone(), padded[:, :width]
        exact = TORCH.cross_entropy(logits.double(), bias.double(), labels, smoothing, True)
        torchs = TORCH.cross_entropy(logits.clone(), bias, labels, smoothing, True)
        ours = cross_entropy(logits, bias, labels, smoothing)
        assert padded[:, width:].equal(behind) and ours[1].data_ptr() == padded.data_ptr()
        assert not ours[0][labels < 0].any() and not ours[1][labels < 0].any()
        for actual, rounded, expected in zip(ours, torchs, exact, strict=True):
            assert (actual - expected).norm() <= 2 * (rounded - expected).norm() + 1e-7 * expected.norm()


def check_sum_and_norm(
    device: str, shape: tuple[int, ...], half: torch.dtype, stream: torch.dtype, out_dtype: torch.dtype
) -> None:
    from bart.cuda.kernels import AddAndNorm

    torch.manual_seed(0)
    norm = nn.LayerNorm(shape[-1]).to(device)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    update, residual = (torch.randn(shape, device=device).to(dtype).requires_grad_() for dtype in (half, stream))
    last = torch.randn(shape[-1], device=device, requires_grad=True)
    leaves = update, residual, last, norm.weight, norm.bias
    seed = torch.tensor([2**40 + 3], device=device)
    arguments = update, residual, norm.weight, norm.bias, last, seed, norm.eps, 0.0
    out, in_half, next_seed = AddAndNorm.apply(*arguments)
    assert next_seed.item() == 2**40 + 4 and not next_seed.requires_grad
    assert out.dtype == out_dtype and out._base is in_half._base is None  # a view would hold the other for ever
    assert in_half.dtype == half and in_half.equal(out.to(half))
    one, other = torch.randn_like(out), torch.randn_like(in_half)

    def results(norm: nn.Module, *leaves: torch.Tensor, rounded: bool = False) -> list[torch.Tensor]:
        states = leaves[1] + (leaves[0] + leaves[2])
        out = norm(states.to(out_dtype).float() if rounded else states)
        return [out, *torch.autograd.grad(out, (*leaves, *norm.parameters()), (one.float() + other).to(out.dtype))]

    exact = results(copy.deepcopy(norm).double(), *(leaf.double() for leaf in leaves[:3]))
    theirs = results(norm, *(leaf.float() for leaf in leaves[:3]))
    # The gradients of stream, bias and weight are those of a norm whose input has the stream's precision.
    theirs[2:5] = results(norm, *(leaf.float() for leaf in leaves[:3]), rounded=True)[2:5]
    ours = [out, *torch.autograd.grad((out, in_half), leaves, (one, other), retain_graph=True)]
    # Another backward pass adds to other sums.
    for first, second in zip(ours[1:], torch.autograd.grad((out, in_half), leaves, (one, other)), strict=True):
        torch.testing.assert_close(first, second)
    for actual, torchs, expected in zip(ours, theirs, exact, strict=True):
        assert (actual - expected).norm() <= 2 * (torchs.to(actual.dtype) - expected).norm()
    # Of each of the results alone, too.
    for number, gradient in enumerate((one, other)):
        alone = torch.autograd.grad(AddAndNorm.apply(*arguments)[number], residual, gradient)[0]
        states = (residual.detach().double() + update.detach() + last.detach()).requires_grad_()
        expected = torch.autograd.grad(copy.deepcopy(norm).double()(states), states, gradient.double())[0]
        scale = (states.var(dim=-1, unbiased=False, keepdim=True) + norm.eps).rsqrt()
        normed = (states - states.mean(dim=-1, keepdim=True)) * scale
        # The gradient is (g - mean(g) - normed · mean(g · normed)) · scale, where `normed` is rounded twice, once as
        # it is kept, and then the gradient; the rest is computed in fp32.
        kept, written = (torch.finfo(dtype).eps / 2 for dtype in (out_dtype, stream))
        of_product = normed.abs() * (gradient.double() * norm.weight * normed).abs().mean(dim=-1, keepdim=True) * scale
        bound = (2 * kept + kept**2) * of_product
        bound += written * (expected.abs() + bound)
        assert ((alone - expected).abs() <= bound + 1e-5 + 1.3e-6 * expected.abs()).all()


@pytest.mark.gpu
def test_dropout_before_the_sum() -> None:
    """The same weights are dropped in both passes; others in another call; the same after the same seed."""
    from bart.cuda.kernels import AddAndNorm

    norm, rate = nn.LayerNorm(1024).cuda(), 0.3
    update = torch.ones(4096, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    residual = torch.zeros(4096, 1024, device="cuda", requires_grad=True)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        out, *_ = AddAndNorm.apply(update, residual, norm.weight, norm.bias, None, None, norm.eps, rate)
        of_update, of_residual = torch.autograd.grad(out, (update, residual), torch.randn_like(out))
        kept = of_update != 0
        assert abs(float(kept.float().mean()) - (1 - rate)) < 0.002  # nine standard errors
        torch.testing.assert_close(out, norm(kept / (1 - rate)).bfloat16())
        torch.testing.assert_close(of_update, (of_residual / (1 - rate)).where(kept, 0).bfloat16())
        results.append(kept)
    assert results[0].equal(results[1]) and not results[0].equal(results[2])
