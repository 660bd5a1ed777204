"""Kernels in Triton, which comes with torch's builds for GPUs: what torch takes several passes over memory for."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

MOST_QUERIES = 16  # of `attend_few`: the rows of the smallest product of matrices
KEYS_AT_ONCE = 128
MOST_MASKED = 2**15  # numbers of a mask that a program looks through at once
PROGRAMS = 6  # for each multiprocessor, whose registers hold 1,024 columns of each; they share a backward pass's rows

# ---- Attention of a decoding step


@triton.jit
def _attend_few(
    query, keys, values, mask, out, heads, queries, length, scale,
    query_b, query_h, query_k, keys_b, keys_h, keys_l, values_b, values_h, values_l,
    mask_b, mask_k, mask_l, out_b, out_h, out_k,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, MASKS: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    """A head of an article: all its queries, and its keys piece by piece, under an additive mask (Dao, 2023)."""
    article, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    row, column, place = tl.arange(0, QUERIES), tl.arange(0, WIDTH), tl.arange(0, KEYS)
    is_query = (row < queries)[:, None]
    rows = article * query_b + head * query_h + row[:, None] * query_k + column[None, :]
    q = tl.load(query + rows, mask=is_query, other=0.0)
    keys += article.to(tl.int64) * keys_b + head * keys_h
    values += article.to(tl.int64) * values_b + head * values_h
    mask += article * mask_b
    end = length
    if MASKS > 0:  # keys behind the last one that any query may read need not be read
        each, every = tl.arange(0, MASKS)[:, None], tl.arange(0, LENGTH)[None, :]
        inside = (each < queries) & (every < length)
        allowed = tl.load(mask + each * mask_k + every * mask_l, mask=inside, other=float("-inf")).to(tl.float32)
        end = tl.max(tl.where(allowed > float("-inf"), every + 1, 0))
    most = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    context = tl.zeros([QUERIES, WIDTH], tl.float32)
    for start in range(0, end, KEYS):
        at = start + place
        is_key = at < end
        k = tl.load(keys + at[:, None] * keys_l + column[None, :], mask=is_key[:, None], other=0.0)
        v = tl.load(values + at[:, None] * values_l + column[None, :], mask=is_key[:, None], other=0.0)
        added = tl.load(
            mask + row[:, None] * mask_k + at[None, :] * mask_l, mask=is_query & is_key[None, :], other=float("-inf")
        )
        scores = tl.dot(q, tl.trans(k)) * scale + added.to(tl.float32)
        greatest = tl.maximum(most, tl.max(scores, 1))
        finite = tl.where(greatest == float("-inf"), 0.0, greatest)
        weights, kept = tl.exp(scores - finite[:, None]), tl.exp(most - finite)
        context = context * kept[:, None] + tl.dot(weights.to(v.dtype), v)
        total = total * kept + tl.sum(weights, 1)
        most = greatest
    context /= total[:, None]
    places = article * out_b + head * out_h + row[:, None] * out_k + column[None, :]
    tl.store(out + places, context.to(out.dtype.element_ty), mask=is_query)


def attend_few(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention of few queries (B, H, K, Dh) to many keys and values (B, H, L, Dh), in half precision.

    The mask (B or 1, 1, K or 1, L) is 0 where a key may be read, -inf elsewhere. The result (B, H, K, Dh) lies in
    memory as (B, K, H, Dh).
    """
    articles, heads, queries, width = query.shape
    length = keys.shape[2]
    out = query.new_empty(articles, queries, heads, width).transpose(1, 2)
    wide = mask.expand(articles, 1, queries, length)
    strides = *query.stride()[:3], *keys.stride()[:3], *values.stride()[:3]
    masks, whole = 1 if mask.shape[2] == 1 else MOST_QUERIES, triton.next_power_of_2(length)
    with torch.cuda.device_of(query):
        _attend_few[(articles * heads,)](
            query, keys, values, wide, out, heads, queries, length, width**-0.5, *strides,
            wide.stride(0), wide.stride(2), wide.stride(3), *out.stride()[:3],
            width, MOST_QUERIES, KEYS_AT_ONCE, masks if masks * whole <= MOST_MASKED else 0, whole, num_stages=2,
        )  # fmt: skip
    return out


def can_attend_few(query: Tensor, keys: Tensor, mask: Tensor) -> bool:
    """True if `attend_few` takes tensors of these types and shapes."""
    width = query.shape[3]
    return (
        query.shape[2] <= MOST_QUERIES
        and query.dtype in (torch.float16, torch.bfloat16)
        and mask.dtype == query.dtype
        and 16 <= width <= 128
        and width.bit_count() == 1
        and query.stride(3) == keys.stride(3) == 1
    )


# ---- The end of a residual branch


@triton.jit
def _dropped(numbers, seed, row, rate, COLUMNS: tl.constexpr):
    """Dropout of a row, the same for the same seed. Philox gives four numbers at a time (Salmon et al., 2011)."""
    a, b, c, d = tl.rand4x(tl.load(seed), row * (COLUMNS // 4) + tl.arange(0, COLUMNS // 4))
    drawn = tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), [COLUMNS])
    return tl.where(drawn >= rate, numbers * (1.0 / (1.0 - rate)), 0.0)


@triton.jit
def _add_and_norm(
    update, residual, weight, bias, seed, out, half, normed, scales, width, rate, eps,
    HAS_OUT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A row: dropout, the sum with the residual stream, and the layer norm of it, before and after weight and bias."""
    row, column = tl.program_id(0), tl.arange(0, COLUMNS)
    is_column = column < width
    at = row * width + column
    sums = tl.load(update + at, mask=is_column, other=0.0).to(tl.float32)
    if rate > 0.0:
        sums = _dropped(sums, seed, row, rate, COLUMNS)
    sums += tl.load(residual + at, mask=is_column, other=0.0).to(tl.float32)
    mean = tl.sum(sums) / width
    centred = tl.where(is_column, sums - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred) / width + eps)
    x = centred * scale
    y = x * tl.load(weight + column, mask=is_column, other=0.0) + tl.load(bias + column, mask=is_column, other=0.0)
    if HAS_OUT:
        tl.store(out + at, y, mask=is_column)
    tl.store(half + at, y.to(half.dtype.element_ty), mask=is_column)
    tl.store(normed + at, x.to(normed.dtype.element_ty), mask=is_column)
    tl.store(scales + row, scale)


@triton.jit
def _add_and_norm_backward(
    of_out, of_half, normed, weight, seed, scales, of_update, of_residual, of_weights, of_biases,
    rows, width, rate, HAS_OUT: tl.constexpr, HAS_HALF: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Every so many rows, whose parts of the gradients of weight and bias are added up."""
    first, column = tl.program_id(0), tl.arange(0, COLUMNS)
    is_column = column < width
    w = tl.load(weight + column, mask=is_column, other=0.0)
    of_weight, of_bias = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    for row in range(first, rows, tl.num_programs(0)):
        at = row * width + column
        gradient = tl.zeros([COLUMNS], tl.float32)
        if HAS_OUT:
            gradient += tl.load(of_out + at, mask=is_column, other=0.0).to(tl.float32)
        if HAS_HALF:
            gradient += tl.load(of_half + at, mask=is_column, other=0.0).to(tl.float32)
        scale = tl.load(scales + row)
        x = tl.load(normed + at, mask=is_column, other=0.0).to(tl.float32)
        of_weight += gradient * x
        of_bias += gradient
        of_x = gradient * w
        of_sums = (of_x - tl.sum(of_x * x) / width * x - tl.sum(of_x) / width) * scale
        tl.store(of_residual + at, of_sums.to(of_residual.dtype.element_ty), mask=is_column)
        if rate > 0.0:
            of_sums = _dropped(of_sums, seed, row, rate, COLUMNS)
        tl.store(of_update + at, of_sums.to(of_update.dtype.element_ty), mask=is_column)
    tl.store(of_weights + first * width + column, of_weight, mask=is_column)
    tl.store(of_biases + first * width + column, of_bias, mask=is_column)


class AddAndNorm(torch.autograd.Function):
    """`norm(residual + dropout(update))`, computed in fp32.

    The first result is the residual stream: in bfloat16, which has the range of fp32, if the update is, else in fp32.
    The second is the input of a product, in the update's precision. The backward pass gets what was normed, in the
    stream's precision.
    """

    @staticmethod
    def forward(
        ctx: Any, update: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, rate: float
    ) -> tuple[Tensor, Tensor]:
        """update (…, D) in half precision; residual (…, D) in fp32 or bfloat16, weight and bias (D,) in fp32."""
        width = update.shape[-1]
        update, residual = update.contiguous(), residual.contiguous()
        rows = update.numel() // width
        half, has_out = torch.empty_like(update), update.dtype != torch.bfloat16
        out = torch.empty_like(update, dtype=torch.float32) if has_out else half
        normed, scales = torch.empty_like(out), weight.new_empty(rows)
        # On the device, so that nobody waits for it. It is drawn from torch's generator, as torch's dropout is.
        seed = torch.randint(2**31, (1,), device=update.device)
        columns = max(4, triton.next_power_of_2(width))
        with torch.cuda.device_of(update):
            _add_and_norm[(rows,)](
                update, residual, weight, bias, seed, out, half, normed, scales, width, rate, eps, has_out, columns,
            )  # fmt: skip
        ctx.save_for_backward(normed, weight, seed, scales)
        ctx.dtypes, ctx.rate, ctx.columns = (update.dtype, residual.dtype), rate, columns
        ctx.set_materialize_grads(False)
        return out, half if has_out else half.detach()  # of one memory, but no view: their gradients come apart

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_out: Tensor | None, of_half: Tensor | None) -> tuple[Tensor | None, ...]:
        normed, weight, seed, scales = ctx.saved_tensors
        rows, width = len(scales), len(weight)
        programs = min(rows, PROGRAMS * torch.cuda.get_device_properties(weight.device).multi_processor_count)
        of_update, of_residual = (torch.empty_like(normed, dtype=dtype) for dtype in ctx.dtypes)
        parts = weight.new_empty(2, programs, width)
        given = [None if gradient is None else gradient.contiguous() for gradient in (of_out, of_half)]
        with torch.cuda.device_of(weight):
            _add_and_norm_backward[(programs,)](
                *(normed if gradient is None else gradient for gradient in given), normed, weight, seed, scales,
                of_update, of_residual, *parts, rows, width, ctx.rate, *(gradient is not None for gradient in given),
                ctx.columns,
            )  # fmt: skip
        return of_update, of_residual, *parts.sum(dim=1), None, None
