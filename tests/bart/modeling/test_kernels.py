"""The compiled kernels against torch in double precision, and what happens where they cannot be compiled."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bart.modeling import kernels
from bart.modeling.kernels import Kernels, PackedCodes

ROOT = Path(__file__).parents[3]
TINY = torch.finfo(torch.float32).tiny


def why_not() -> str | None:
    """Why the kernels cannot be compiled here."""
    if sys.platform != "linux":
        return "the kernels are made for Linux"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    try:
        macros = subprocess.run([*compiler, "-dM", "-E", "-x", "c", os.devnull], check=True, capture_output=True).stdout
    except OSError:
        return "there is no C compiler"
    return "the C compiler is not GCC" if b"__clang__" in macros else None


needs_compiler = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An own folder for compiled kernels."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder / "bart-pytorch"


@pytest.fixture(scope="module", params=["native", "plain"])
def compiled(request: pytest.FixtureRequest, cache: Path) -> Kernels:
    """The kernels as this processor gets them, and without what is written for some processors only."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    return kernels.compile_kernels(*(["-DBART_PLAIN"] if request.param == "plain" else []))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def attended(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention in double precision, and what it gives for the values' sizes."""
    query, keys, values = query.double(), keys.double(), values.double()
    mask = None if mask is None else mask.double()
    both = [F.scaled_dot_product_attention(query, keys, v, attn_mask=mask) for v in (values, values.abs())]
    context, size = (part.transpose(1, 2).flatten(2) for part in both)
    return context, size


def random_mask(articles: int, queries: int, length: int) -> Tensor:
    """(B, 1, K, L), most of it -inf, but not for all keys of a query."""
    mask = torch.randn(articles, 1, queries, length).masked_fill_(
        torch.rand(articles, 1, queries, length) < 0.8, -torch.inf
    )
    mask.scatter_(3, torch.randint(length, (articles, 1, queries, 1)), 0.5)
    return mask.bfloat16()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "articles, heads, queries, length, width",
    [
        *((1, 1, 1, 1, 64), (2, 3, 1, 17, 64), (4, 2, 4, 1024, 64), (2, 2, 6, 100, 64), (3, 2, 7, 15, 64)),
        *((1, 2, 16, 33, 64), (2, 1, 35, 35, 64), (1, 2, 5, 1100, 64), (1, 1, 11, 16, 64), (2, 2, 3, 48, 64)),
        *((2, 2, 4, 50, 8), (1, 3, 6, 33, 20), (1, 2, 18, 40, 16), (1, 1, 2, 70, 80), (1, 1, 1, 1, 1)),
    ],
)
def test_attention(
    compiled: Kernels, articles: int, heads: int, queries: int, length: int, width: int, dtype: torch.dtype
) -> None:
    query = torch.randn(articles, heads, queries, width).bfloat16().to(dtype)
    keys, values = torch.randn(2, articles, heads, length, width).bfloat16()
    mask = random_mask(articles, queries, length)
    for part in (None, mask, mask[:, :, :1], mask[:1], mask[:1, :, :1]):
        context = compiled.attend(query, keys, values, part)
        assert context.dtype == dtype and context.shape == (articles, queries, heads * width)
        expected, size = attended(query, keys, values, part)
        # Rounding to bf16 costs up to 2^-8 of a number; weights may be rounded so, and results are as the query.
        roundings = 1 if dtype == torch.float32 else 2
        error = (context.double() - expected).abs()
        assert (error <= roundings * 2**-8 * size + 1e-6).all(), error.max()


def decoded(codes: Tensor) -> Tensor:
    """What codes and the scale behind them stand for, in double precision."""
    scale = codes[..., -4:].contiguous().view(torch.float32)
    return codes[..., :-4].double() * scale.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("articles, length, heads, width", [(1, 2, 1, 1), (2, 33, 3, 64), (3, 7, 2, 24)])
def test_heads_as_codes(
    compiled: Kernels, articles: int, length: int, heads: int, width: int, dtype: torch.dtype
) -> None:
    projected = (torch.randn(articles, length, 2 * heads * width) * 3).to(dtype)
    projected[0, -1] = 0
    codes = compiled.code_heads(projected, 2, heads)
    assert codes.dtype == torch.int8 and codes.shape == (2, articles, heads, length, width + 4)
    expected = projected.double().view(articles, length, 2, heads, width).permute(2, 0, 3, 1, 4)
    step = expected.abs().amax(dim=-1, keepdim=True) / 127
    assert ((decoded(codes) - expected).abs() <= 0.5001 * step).all()
    assert codes[..., :-4].abs().max() == 127


@pytest.mark.parametrize("kind", ["fp32", "int8"])
@pytest.mark.parametrize(
    "articles, heads, queries, length, width",
    [
        (1, 1, 1, 1, 64),
        (4, 2, 4, 1024, 64),
        (2, 2, 6, 100, 64),
        (2, 1, 35, 35, 64),
        (1, 3, 6, 33, 20),
        (1, 2, 5, 70, 80),
    ],
)
def test_attention_to_other_kinds_of_keys(
    compiled: Kernels, articles: int, heads: int, queries: int, length: int, width: int, kind: str
) -> None:
    """Exact to single precision, given the codes."""
    query = torch.randn(articles, heads, queries, width)
    keys, values = exact = torch.randn(2, articles, heads, length, width)
    if kind == "int8":
        projected = exact.permute(1, 3, 0, 2, 4).reshape(articles, length, -1)
        keys, values = codes = compiled.code_heads(projected, 2, heads)
        exact = decoded(codes)
    mask = random_mask(articles, queries, length)
    for part in (None, mask, mask.float(), mask[:1, :, :1]):
        context = compiled.attend(query, keys, values, part)
        expected, size = attended(query, *exact, part)
        assert ((context.double() - expected).abs() <= 3e-6 * size + 1e-6).all()
    hidden = (mask == -torch.inf).all(dim=2)[:, :, :, None]
    spoilt = torch.tensor(torch.nan if kind == "fp32" else 77, dtype=keys.dtype)
    masked = compiled.attend(query, keys.where(~hidden, spoilt), values.where(~hidden, spoilt), mask)
    assert torch.equal(masked, compiled.attend(query, keys, values, mask))


def test_attention_in_plain_c_is_exact_to_single_precision(cache: Path) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    query, (keys, values) = torch.randn(2, 3, 4, 64), torch.randn(2, 2, 3, 200, 64).bfloat16()
    mask = random_mask(2, 4, 200)
    context = kernels.compile_kernels("-DBART_PLAIN").attend(query, keys, values, mask)
    torch.testing.assert_close(context.double(), attended(query, keys, values, mask)[0], atol=2e-6, rtol=0)


@pytest.mark.parametrize("width", [64, 24])
def test_attention_reads_parts_of_larger_tensors(compiled: Kernels, width: int) -> None:
    projected = torch.randn(2, 5, 3 * 4 * width)
    query = projected.view(2, 5, 3, 4, width)[:, :, 1].transpose(1, 2)
    stores = torch.randn(2, 2, 4, 90, width).bfloat16()
    keys, values = stores[:, :, :, 7:60]
    mask = torch.cat([random_mask(2, 5, 53)] * 2, dim=3)[..., 20:73]
    context = compiled.attend(query, keys, values, mask)
    again = compiled.attend(query.contiguous(), keys.contiguous(), values.contiguous(), mask.contiguous())
    assert torch.equal(context, again)
    assert not torch.equal(context, compiled.attend(query, values, keys, mask))


@pytest.mark.parametrize("width", [64, 24])
def test_keys_hidden_from_all_queries_are_not_read(compiled: Kernels, width: int) -> None:
    query, (keys, values) = torch.randn(2, 3, 4, width), torch.randn(2, 2, 3, 75, width).bfloat16()
    mask = random_mask(2, 4, 75)
    mask[0, :, :, 40:] = mask[1, :, :, :33] = -torch.inf
    mask[0, :, :, 3] = mask[1, :, :, 70] = 0
    context = compiled.attend(query, keys, values, mask)
    hidden = (mask == -torch.inf).all(dim=2)[:, :, :, None]
    nan = torch.tensor(torch.nan, dtype=torch.bfloat16)
    assert torch.equal(compiled.attend(query, keys.where(~hidden, nan), values.where(~hidden, nan), mask), context)
    assert context.isfinite().all()


@pytest.mark.parametrize("threads", [1, 3])
def test_results_depend_on_neither_threads_nor_the_batch(compiled: Kernels, threads: int) -> None:
    query, (keys, values) = torch.randn(3, 16, 4, 64), torch.randn(2, 3, 16, 200, 64).bfloat16()
    mask = random_mask(3, 4, 200)
    rows, peak, bias = torch.randn(90, 1000), torch.rand(90, 1), torch.randn(1000)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        context = compiled.attend(query, keys, values, mask)
        finished = compiled.finish(rows.clone(), peak, bias, "gelu")
        codes, _ = compiled.quantize_rows(finished)
    finally:
        torch.set_num_threads(before)
    for b in range(3):
        one = slice(b, b + 1)
        assert torch.equal(compiled.attend(query[one], keys[one], values[one], mask[one]), context[one])
    for row in (0, 44, 89):
        one = slice(row, row + 1)
        assert torch.equal(compiled.finish(rows[one].clone(), peak[one], bias, "gelu"), finished[one])
        assert torch.equal(compiled.quantize_rows(finished[one])[0], codes[one])


SIZES = pytest.mark.parametrize("count, width", [(1, 1), (3, 7), (16, 1024), (48, 768), (5, 3073), (1, 40)])


def quantized(rows: Tensor) -> tuple[Tensor, Tensor]:
    peak = rows.float().abs().amax(dim=1, keepdim=True) + TINY
    return (rows.float() * (127 / peak)).round().add(128).to(torch.uint8), peak


@SIZES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantization(compiled: Kernels, count: int, width: int, dtype: torch.dtype) -> None:
    rows = (torch.randn(count, width) * torch.logspace(-20, 20, count)[:, None]).to(dtype)
    codes, peak = compiled.quantize_rows(rows)
    expected_codes, expected_peak = quantized(rows)
    assert torch.equal(peak, expected_peak)
    assert torch.equal(codes, expected_codes)


def test_quantization_of_special_rows(compiled: Kernels) -> None:
    halves = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0]])
    assert compiled.quantize_rows(halves)[0].tolist() == [[255, 128, 130, 130, 128, 126, 1]]  # to even ones
    codes, peak = compiled.quantize_rows(torch.zeros(1, 20))
    assert codes.unique().tolist() == [128] and peak.item() == pytest.approx(TINY)
    spoilt = torch.randn(1, 50)
    spoilt[0, 3] = torch.nan
    assert compiled.quantize_rows(spoilt)[1].isnan().all()  # and so what is multiplied by it


@SIZES
@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_finish(compiled: Kernels, count: int, width: int, activation: str) -> None:
    products, peak, bias = torch.randn(count, width) * 1e4, torch.rand(count, 1) * 1e-4 + 1e-5, torch.randn(width)
    expected = products.double() * peak + bias.double()
    if activation == "gelu":
        expected = F.gelu(expected)
    given = products.clone()
    narrow = compiled.finish(given, peak, bias, activation, torch.bfloat16)
    assert torch.equal(given, products)
    wide = compiled.finish(given, peak, bias, activation)
    assert wide.data_ptr() == given.data_ptr()
    torch.testing.assert_close(wide.double(), expected, atol=1e-6, rtol=1e-6)
    assert torch.equal(narrow, wide.bfloat16())


@SIZES
def test_add_and_norm(compiled: Kernels, count: int, width: int) -> None:
    hidden, update = torch.randn(2, count, 1, width) + 3
    norm = torch.nn.LayerNorm(width, eps=1e-3)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    result = compiled.add_and_norm(hidden, update, norm)
    expected = copy.deepcopy(norm).double()(hidden.double() + update.double())
    assert result.shape == hidden.shape
    torch.testing.assert_close(result.double(), expected, atol=2e-5, rtol=1e-5)
    assert torch.equal(compiled.add_and_norm(hidden[:1], update[:1], norm), result[:1])


@pytest.mark.parametrize("count, width", [(1, 1), (3, 17), (48, 1601)])
def test_log_softmax(compiled: Kernels, count: int, width: int) -> None:
    rows = 5 * torch.randn(count, width)
    rows[0, width // 2] = 300.0  # the others' exponentials vanish
    if width > 1:
        rows[-1, 0] = -torch.inf
    expected = rows.double().log_softmax(dim=1)
    result = compiled.log_softmax(rows)
    assert result is rows
    torch.testing.assert_close(result.double(), expected, rtol=3e-7, atol=3e-6)
    for bad in (torch.nan, torch.inf):
        rows = torch.zeros(2, 40)
        rows[1, 3] = bad
        result = compiled.log_softmax(rows)
        assert result[1].isnan().any() and not result[0].isnan().any()
    assert compiled.log_softmax(torch.full((1, 40), -torch.inf)).isnan().all()


def needs_multiply(compiled: Kernels) -> None:
    if not compiled.multiplies:
        pytest.skip("products are left to oneDNN here")


@pytest.mark.parametrize(
    "rows, inputs, outputs",
    [
        *((1, 1, 1), (3, 7, 33), (8, 64, 32), (9, 50, 31), (23, 768, 100), (48, 768, 768)),
        *((400, 3072, 64), (130, 4099, 40)),  # more rows than are multiplied at once
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_multiply(compiled: Kernels, rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    needs_multiply(compiled)
    # Codes of all sizes, -128 and the greatest sums among them.
    states = (torch.randn(rows, inputs) * torch.logspace(-5, 5, rows)[:, None]).to(dtype)
    states[0] = 3
    codes = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8)
    codes[0] = 127
    scale, bias = torch.rand(outputs) / inputs, torch.randn(outputs)
    row_codes, peak = quantized(states)
    expected = (row_codes.double() - 128) @ codes.double().T * scale.double() * peak.double() + bias.double()
    weight = PackedCodes(codes, scale, bias)
    result = compiled.multiply(states, weight)
    # Sums are exact; what follows is in single precision.
    size = expected.abs() + bias.abs()
    assert ((result.double() - expected).abs() <= 4e-7 * size).all()
    assert torch.equal(compiled.multiply(states, weight, dtype=torch.bfloat16), result.bfloat16())
    active = compiled.multiply(states, weight, "gelu")
    torch.testing.assert_close(active.double(), F.gelu(result.double()), atol=1e-6, rtol=1e-6)
    for row in {0, rows // 2, rows - 1}:
        one = slice(row, row + 1)
        assert torch.equal(compiled.multiply(states[one], weight), result[one])


def test_multiply_by_nan_and_by_many_threads(compiled: Kernels) -> None:
    needs_multiply(compiled)
    states = torch.randn(50, 600)
    states[7, 5] = torch.nan
    weight = PackedCodes(torch.randint(-127, 128, (700, 600), dtype=torch.int8), torch.rand(700), torch.zeros(700))
    result = compiled.multiply(states, weight)
    assert result.isnan().all(dim=1).nonzero().flatten().tolist() == [7]
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        again = compiled.multiply(states, weight)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(again.nan_to_num(), result.nan_to_num())


def in_8_bits(numbers: Tensor) -> Tensor:
    """What quantisation with one scale for each row makes of numbers, in double precision."""
    codes, peak = quantized(numbers.flatten(0, -2))
    return ((codes.double() - 128) * peak.double() / 127).view(numbers.shape)


def self_attention(articles: int, heads: int, length: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Query, keys and values (B, H, L, 64), as parts of one product."""
    return torch.randn(articles, length, 3, heads, 64).to(dtype).permute(2, 0, 3, 1, 4).unbind(0)


def hide_some(articles: int, length: int) -> Tensor:
    """(B, 1, 1, L), a third of it -inf, but not the first."""
    mask = torch.randn(articles, 1, 1, length).masked_fill_(torch.rand(articles, 1, 1, length) < 0.3, -torch.inf)
    mask[..., 0] = 0.5
    return mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.01, 1, 8], ids=["even", "mixed", "sharp"])
@pytest.mark.parametrize(
    "articles, heads, length", [(1, 1, 1), (2, 3, 33), (1, 2, 64), (3, 2, 70), (1, 1, 131), (2, 2, 1024)]
)
def test_attention_of_many(
    compiled: Kernels, articles: int, heads: int, length: int, spread: float, dtype: torch.dtype
) -> None:
    needs_multiply(compiled)
    query, keys, values = self_attention(articles, heads, length, dtype)
    query *= spread
    for mask in (None, hide_some(articles, length), hide_some(1, length).bfloat16()):
        result = compiled.attend_many(query, keys, values, mask)
        assert result.dtype == dtype and result.shape == (articles, length, heads * 64)
        added = torch.zeros(1, 1, 1, length) if mask is None else mask
        seen = (added != -torch.inf).mT
        visible = values.float() * seen
        # Attention to the quantised numbers, from which only weights, rounded to 16 bits, may depart.
        coded = in_8_bits(query), in_8_bits(keys), in_8_bits(visible.mT).mT
        weights = (coded[0] @ coded[1].mT / 8 + added.double()).softmax(dim=3)
        expected = weights @ coded[2]
        half = weights.amax(dim=3, keepdim=True) / 65535 / 2
        rounding = half * (coded[2].abs().sum(dim=2, keepdim=True) + seen.sum(dim=2, keepdim=True) * expected.abs())
        size = weights @ coded[2].abs()
        narrowing = 0 if dtype == torch.float32 else 2**-8
        context = result.double().view(articles, length, heads, 64).transpose(1, 2)
        assert ((context - expected).abs() <= rounding + (1e-5 + narrowing) * size).all()
        if spread <= 1:
            exact = attended(query, keys, values, mask)[0].view(articles, length, heads, 64).transpose(1, 2)
            assert (context - exact).abs().max() <= 0.02 * visible.abs().max()


def test_attention_of_many_does_not_read_what_is_hidden(compiled: Kernels) -> None:
    needs_multiply(compiled)
    query, keys, values = self_attention(3, 2, 150)
    hidden = torch.rand(3, 150) < 0.3
    hidden[0] = torch.arange(150) >= 77
    hidden[1] = torch.arange(150) != 149
    mask = torch.zeros(3, 1, 1, 150).masked_fill_(hidden[:, None, None], -torch.inf)
    context = compiled.attend_many(query, keys, values, mask)
    for part in (keys, values):
        part.masked_fill_(hidden[:, None, :, None], torch.nan)
    assert torch.equal(compiled.attend_many(query, keys, values, mask), context)
    for b in range(3):
        alone = [part[b : b + 1, :, ~hidden[b]] for part in (query, keys, values)]
        assert torch.equal(compiled.attend_many(*alone), context[b : b + 1, ~hidden[b]])


def test_attention_of_many_passes_nan_on(compiled: Kernels) -> None:
    needs_multiply(compiled)
    # Of the head: the row of a query, all for a key, a dimension for a value.
    for part, spoilt in enumerate([(4, slice(None)), (slice(None), slice(None)), (slice(None), 7)]):
        parts = self_attention(2, 2, 50)
        parts[part][1, 1, 4, 7] = torch.nan
        expected = torch.zeros(2, 50, 2, 64, dtype=torch.bool)
        expected[1, :, 1][spoilt] = True
        assert torch.equal(compiled.attend_many(*parts).isnan(), expected.flatten(2))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_attention_of_many_depends_on_neither_threads_nor_the_batch(compiled: Kernels, threads: int) -> None:
    needs_multiply(compiled)
    parts, mask = self_attention(3, 5, 200), hide_some(3, 200)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        context = compiled.attend_many(*parts, mask)
    finally:
        torch.set_num_threads(before)
    for b in range(3):
        one = slice(b, b + 1)
        assert torch.equal(compiled.attend_many(*(part[one].contiguous() for part in parts), mask[one]), context[one])


def test_gelu_is_the_exact_one(compiled: Kernels) -> None:
    x = torch.cat([torch.linspace(-20, 20, 400_001), torch.tensor([0.0, -1e30, 1e30])])[None]
    result = compiled.finish(x.clone(), torch.ones(1, 1), torch.zeros(x.shape[1]), "gelu")
    assert (result.double() - F.gelu(x.double())).abs().max() < 1e-6
    assert compiled.finish(torch.full((1, 20), torch.nan), torch.ones(1, 1), torch.zeros(20), "gelu").isnan().all()


def test_rounding_to_bf16_keeps_nan_and_infinity(compiled: Kernels) -> None:
    # All the numbers between two of bf16, those of a NaN whose lowest bits only are set, and both infinities.
    bits = torch.cat([torch.arange(0x3F80_0000, 0x3F81_0001), torch.tensor([0x7F80_0001, 0x7FFF_FFFF])])
    numbers = torch.cat([bits.int().view(torch.float32), torch.tensor([torch.inf, -torch.inf])])[None]
    nothing = torch.zeros(numbers.shape[1])
    result = compiled.finish(numbers.clone(), torch.ones(1, 1), nothing, dtype=torch.bfloat16)
    torch.testing.assert_close(result, numbers.bfloat16(), equal_nan=True, atol=0, rtol=0)


@needs_compiler
def test_compiled_once_by_processes_that_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda _: kernels.compile_kernels("-O0"), range(2)))
    (library,) = (tmp_path / "bart-pytorch").iterdir()
    written = library.stat().st_mtime_ns
    kernels.compile_kernels("-O0")
    assert [library.stat().st_mtime_ns] == [file.stat().st_mtime_ns for file in library.parent.iterdir()] == [written]
    kernels.compile_kernels("-O0", "-DBART_PLAIN")
    assert len(list(library.parent.iterdir())) == 2


@needs_compiler
def test_copies_and_pickles_are_those_of_the_machine(cache: Path) -> None:
    loaded = kernels.load()
    assert loaded is not None
    assert copy.deepcopy([loaded]) == pickle.loads(pickle.dumps([loaded])) == [loaded]


@pytest.mark.parametrize(
    "name, value, reason",
    [
        ("BART_KERNELS", "0", "BART_KERNELS is 0"),
        pytest.param("PATH", "", "No such file or directory", marks=needs_compiler),
        pytest.param("CC", "false", "the compiler fails", marks=needs_compiler),
        pytest.param("CC", "cc --no-such-option", "--no-such-option", marks=needs_compiler),
        pytest.param("XDG_CACHE_HOME", "/dev/null", "/dev/null", marks=needs_compiler),
    ],
)
def test_without_a_compiler_one_line_says_so(
    name: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, value)
    kernels.load.cache_clear()
    try:
        with caplog.at_level(logging.INFO):
            assert kernels.load() is None
            assert kernels.load() is None
    finally:
        kernels.load.cache_clear()
    (record,) = caplog.records
    assert record.levelno == logging.INFO and record.exc_info is None
    message = record.getMessage()
    assert reason in message and "slower path" in message and "\n" not in message


@needs_compiler
def test_threads_are_those_of_torch(cache: Path) -> None:
    """In a fresh process, one OpenMP library is loaded and starts one thread besides the main one."""
    code = """
import os, torch
from bart.modeling.kernels import load
torch.set_num_threads(2)
one = torch.ones(1000, 1000)
torch.add(one, one)
threads = len(os.listdir("/proc/self/task"))
keys = torch.ones(4, 16, 256, 64).bfloat16()
assert (load().attend(keys[:, :, :4], keys, keys) == 1).all()
assert (load().finish(one, torch.ones(1000, 1), torch.zeros(1000)) == 1).all()
with open("/proc/self/maps") as maps:
    files = {line.split()[-1] for line in maps if "/" in line}
print(*sorted(name for name in map(os.path.basename, files) if name.startswith(("libgomp", "libomp", "libiomp"))))
print(len(os.listdir("/proc/self/task")) - threads)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    libraries, more_threads = done.stdout.splitlines()
    assert len(libraries.split()) == 1
    assert more_threads == "0"
