"""Kernels in Triton, which comes with torch's builds for GPUs: what torch takes several passes over memory for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from bart.backend import IGNORE_INDEX

MOST_QUERIES = 16  # of `attend_few`: the rows of the smallest product of matrices
KEYS_AT_ONCE = 128
MOST_MASKED = 2**15  # numbers of a mask that a program looks through at once
MOST_JOINED, ROWS_JOINED, COLUMNS_JOINED = 3, 512, 16  # of `join`: its matrices, and what a program reads at once
LOGITS_AT_ONCE = 4096
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


# ---- Training: dropout, and what kernels leave for the backward pass


@triton.jit
def _dropped(numbers, seed, row, rate, COLUMNS: tl.constexpr):
    """Dropout of a row, the same for the same seed. Philox gives four numbers at a time (Salmon et al., 2011)."""
    a, b, c, d = tl.rand4x(tl.load(seed), row * (COLUMNS // 4) + tl.arange(0, COLUMNS // 4))
    drawn = tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), [COLUMNS])
    return tl.where(drawn >= rate, numbers * (1.0 / (1.0 - rate)), 0.0)


def new_seed(device: torch.device, rate: float) -> Tensor:
    """A seed on the device, so that nobody waits for it, from torch's generator; not drawn where nothing is dropped."""
    return torch.randint(2**62, (1,), device=device) if rate else torch.empty(1, dtype=torch.long, device=device)


def zeros(ctx: Any, like: Tensor, *shape: int) -> Tensor:
    """The sums that the forward kernel of a Function set to 0, or others, where a backward pass has filled them."""
    sums, ctx.sums = ctx.sums, None
    return like.new_zeros(shape, dtype=torch.float32) if sums is None else sums


# ---- The end of a residual branch


@triton.jit
def _add_and_norm(
    update, residual, weight, bias, last, seed, out, half, normed, scales, sums_of_backward, next_seed,
    width, rate, eps, HAS_LAST: tl.constexpr, HAS_OUT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A row: bias, dropout, the sum with the residual stream, and its layer norm, before and after weight and bias."""
    row, column = tl.program_id(0), tl.arange(0, COLUMNS)
    is_column = column < width
    at = row.to(tl.int64) * width + column
    sums = tl.load(update + at, mask=is_column, other=0.0).to(tl.float32)
    if HAS_LAST:
        sums += tl.load(last + column, mask=is_column, other=0.0)
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
    if row == 0:
        for part in tl.static_range(3):
            tl.store(sums_of_backward + part * width + column, tl.zeros([COLUMNS], tl.float32), mask=is_column)
        tl.store(next_seed, tl.load(seed) + 1)


@triton.jit
def _add_and_norm_backward(
    of_out, of_half, normed, weight, seed, scales, of_update, of_residual, sums,
    rows, width, rate, HAS_OUT: tl.constexpr, HAS_HALF: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Every so many rows, and their parts of the gradients of weight, bias, and the bias before."""
    first, column = tl.program_id(0), tl.arange(0, COLUMNS)
    is_column = column < width
    w = tl.load(weight + column, mask=is_column, other=0.0)
    of_weight, of_bias = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    of_last = tl.zeros([COLUMNS], tl.float32)
    for row in range(first, rows, tl.num_programs(0)):
        at = tl.cast(row, tl.int64) * width + column
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
        of_last += of_sums
        tl.store(of_update + at, of_sums.to(of_update.dtype.element_ty), mask=is_column)
    tl.atomic_add(sums + column, of_weight, mask=is_column, sem="relaxed")
    tl.atomic_add(sums + width + column, of_bias, mask=is_column, sem="relaxed")
    tl.atomic_add(sums + 2 * width + column, of_last, mask=is_column, sem="relaxed")


class AddAndNorm(torch.autograd.Function):
    """`norm(residual + dropout(update + last_bias))`, computed in fp32.

    The first result is the residual stream: in bfloat16, which has the range of fp32, if the update is, else in fp32.
    The second is the input of a product, in the update's precision. The backward pass gets what was normed, in the
    stream's precision. The third is the seed of the next call, so that a seed is drawn once for many.
    """

    @staticmethod
    def forward(
        ctx: Any,
        update: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor,
        last_bias: Tensor | None,
        seed: Tensor | None,
        eps: float,
        rate: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """update (…, D) in half precision; residual (…, D) in fp32 or bfloat16; weight and biases (D,) in fp32."""
        width = update.shape[-1]
        update, residual = update.contiguous(), residual.contiguous()
        rows = update.numel() // width
        half, has_out = torch.empty_like(update), update.dtype != torch.bfloat16
        out = torch.empty_like(update, dtype=torch.float32) if has_out else half
        normed, scales = torch.empty_like(out), weight.new_empty(rows)
        seed = new_seed(update.device, rate) if seed is None else seed
        next_seed, ctx.sums = torch.empty_like(seed), weight.new_empty(3, width)
        columns, has_last = max(4, triton.next_power_of_2(width)), last_bias is not None
        with torch.cuda.device_of(update):
            _add_and_norm[(rows,)](
                update, residual, weight, bias, last_bias if has_last else bias, seed, out, half, normed, scales,
                ctx.sums, next_seed, width, rate, eps, has_last, has_out, columns,
            )  # fmt: skip
        ctx.save_for_backward(normed, weight, seed, scales)
        ctx.dtypes, ctx.rate, ctx.columns, ctx.has_last = (update.dtype, residual.dtype), rate, columns, has_last
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(next_seed)
        # `half` may be of one memory with `out`, but no view: their gradients come apart.
        return out, half if has_out else half.detach(), next_seed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_out: Tensor | None, of_half: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        normed, weight, seed, scales = ctx.saved_tensors
        rows, width = len(scales), len(weight)
        of_update, of_residual = (torch.empty_like(normed, dtype=dtype) for dtype in ctx.dtypes)
        sums = zeros(ctx, weight, 3, width)
        given = [None if gradient is None else gradient.contiguous() for gradient in (of_out, of_half)]
        with torch.cuda.device_of(weight):
            _add_and_norm_backward[(_programs(weight.device, rows),)](
                *(normed if gradient is None else gradient for gradient in given), normed, weight, seed, scales,
                of_update, of_residual, sums, rows, width, ctx.rate, *(gradient is not None for gradient in given),
                ctx.columns,
            )  # fmt: skip
        of_weight, of_bias, of_last = sums
        return of_update, of_residual, of_weight, of_bias, of_last if ctx.has_last else None, None, None, None


def _programs(device: torch.device, rows: int) -> int:
    return min(rows, PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count)


# ---- GELU between two products


@triton.jit
def _gelu(
    states, bias, out, gradient, sums, seed, rows, width, rate, HAS_GRADIENT: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Some columns of every so many rows: bias, exact GELU (Hendrycks & Gimpel, 2016), dropout; and its gradients."""
    first, column = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < width
    b = tl.load(bias + column, mask=is_column, other=0.0)
    of_bias = tl.zeros([COLUMNS], tl.float32)
    for row in range(first, rows, tl.num_programs(0)):
        at = tl.cast(row, tl.int64) * width + column
        x = tl.load(states + at, mask=is_column, other=0.0).to(tl.float32) + b
        below = 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)  # how often a normal number is less
        kept = tl.full([COLUMNS], 1.0, tl.float32)
        if rate > 0.0:
            kept = _dropped(kept, seed, row * tl.num_programs(1) + tl.program_id(1), rate, COLUMNS)
        tl.store(out + at, (x * below * kept).to(out.dtype.element_ty), mask=is_column)
        if HAS_GRADIENT:
            of_x = tl.load(gradient + at, mask=is_column, other=0.0).to(tl.float32)
            of_x *= kept * (below + x * tl.exp(-0.5 * x * x) * 0.3989422804014327)
            of_bias += of_x
            tl.store(gradient + at, of_x.to(gradient.dtype.element_ty), mask=is_column)
    if HAS_GRADIENT:
        tl.atomic_add(sums + column, of_bias, mask=is_column, sem="relaxed")
    elif first == 0:
        tl.store(sums + column, of_bias, mask=is_column)


def gelu(
    states: Tensor, bias: Tensor, sums: Tensor, seed: Tensor, rate: float, gradient: Tensor | None = None
) -> Tensor:
    """Dropout of GELU of states (…, D), in half precision, plus a bias (D,), whose sums (D,) become 0.

    With the gradient (…, D) of it, that of the bias is added to the sums, and that of the states takes its place.
    """
    width, out = len(bias), torch.empty_like(states)
    rows, columns = states.numel() // width, min(1024, max(4, triton.next_power_of_2(width)))
    with torch.cuda.device_of(states):
        _gelu[(_programs(states.device, rows), triton.cdiv(width, columns))](
            states, bias, out, out if gradient is None else gradient, sums, seed, rows, width, rate,
            gradient is not None, columns,
        )  # fmt: skip
    return out


# ---- The gradients of layers that share their input


@triton.jit
def _join(
    first, second, third, out, sums, rows, width, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Some columns of a matrix, which go to their place among those of others, and their sums."""
    part, column = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = (column < width)[None, :]
    source = first
    if part == 1:
        source = second
    if part == 2:
        source = third
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, rows, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < rows) & is_column
        numbers = tl.load(source + row * width + column[None, :], mask=inside, other=0.0)
        if PARTS > 1:
            tl.store(out + (row * PARTS + part) * width + column[None, :], numbers, mask=inside)
        total += numbers.to(tl.float32)
    tl.store(sums + part * width + column, tl.sum(total, 0), mask=column < width)


def join(matrices: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Matrices (N, D) beside each other, and the sums of all columns in fp32, by one kernel if they are up to three."""
    if len(matrices) > MOST_JOINED or len({matrix.shape for matrix in matrices}) > 1:
        matrices = [torch.cat([*matrices], dim=1)]
    matrices = [matrix.contiguous() for matrix in matrices]
    (rows, width), parts = matrices[0].shape, len(matrices)
    out = matrices[0].new_empty(rows, parts * width) if parts > 1 else matrices[0]
    sums = out.new_empty(parts * width, dtype=torch.float32)
    given = *matrices, *[out] * (MOST_JOINED - parts)
    with torch.cuda.device_of(out):
        _join[(parts, triton.cdiv(width, COLUMNS_JOINED))](
            *given, out, sums, rows, width, parts, ROWS_JOINED, COLUMNS_JOINED, num_warps=8
        )
    return out, sums


# ---- Cross entropy


@triton.jit
def _logits(logits, bias, column, width):
    x = tl.load(logits + column, mask=column < width, other=float("-inf")).to(tl.float32)
    return x + tl.load(bias + column, mask=column < width, other=0.0)


@triton.jit
def _cross_entropy(logits, bias, labels, losses, stride, width, smoothing, ignored, COLUMNS: tl.constexpr):
    """A row: its loss, and its gradient in the place of its logits."""
    row, every = tl.program_id(0), tl.arange(0, COLUMNS)
    logits += row.to(tl.int64) * stride
    label = tl.load(labels + row)
    is_target = label != ignored
    of_label = _logits(logits, bias, tl.where(label < 0, width, label), width)  # -inf, if there is no such label
    most, total, added = float("-inf"), 0.0, 0.0
    for start in range(0, width, COLUMNS):
        x = _logits(logits, bias, start + every, width)
        greatest = tl.maximum(most, tl.max(x))
        total = total * tl.exp(most - greatest) + tl.sum(tl.exp(x - greatest))
        added += tl.sum(tl.where(start + every < width, x, 0.0))
        most = greatest
    log_total = most + tl.log(total)
    loss = log_total - (1.0 - smoothing) * of_label - smoothing * (added / width)
    tl.store(losses + row, tl.where(is_target, loss, 0.0))
    for start in range(0, width, COLUMNS):
        column = start + every
        gradient = tl.exp(_logits(logits, bias, column, width) - log_total) - smoothing / width
        gradient = tl.where(is_target, gradient - tl.where(column == label, 1.0 - smoothing, 0.0), 0.0)
        tl.store(logits + column, gradient.to(logits.dtype.element_ty), mask=column < width)


def cross_entropy(logits: Tensor, bias: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The losses (N,) and gradients of `Backend.cross_entropy`, these in the place of the logits (N, V)."""
    losses, width = bias.new_empty(len(labels)), logits.shape[1]
    with torch.cuda.device_of(logits):
        _cross_entropy[(len(labels),)](
            logits, bias, labels.contiguous(), losses, logits.stride(0), width, smoothing, IGNORE_INDEX,
            min(LOGITS_AT_ONCE, triton.next_power_of_2(width)), num_warps=8,
        )  # fmt: skip
    return losses, logits
