"""Kernels in C for CPUs, compiled on first use; see kernels.c.

`load()` returns None where there is no compiler, or BART_KERNELS is 0 in the environment; torch computes then.

Shapes: K queries of an article (beams, or positions); O the outputs of a product, or the width of rows.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import subprocess
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bart.backend import IGNORE_INDEX
from bart.cpu.compiling import SOURCE, argument_types, compile_library
from bart.rows import Spans

logger = logging.getLogger(__name__)

# What the source calls FP32, BF16 and CODES, and its constants of the same names.
FLOATS = {torch.float32: 0, torch.bfloat16: 1}
KINDS = {**FLOATS, torch.int8: 2}
ACTIVATIONS: dict[str | None, int] = {None: 0, "gelu": 1, "relu": 2}
QUAD = 4
XTILEDATA = 18  # Linux's number of AMX's tiles, which an old Linux refuses
WIDTH = 64  # the head width of `attend_many`
MOST_KEYS = 1 << 16  # the greatest length at which the sums of `attend_many` stay within 32 bits
SCALE_BYTES = 4  # behind the codes of a key or value
MOST_INPUTS = 1 << 16  # numbers in a row that is quantised, and in a head: a thread keeps some rows on its stack


@dataclass(frozen=True)
class Draws:
    """The random draws of `Kernels.drop` and `Kernels.attend_dropped`."""

    seed: int
    dropped: int  # of 2³² draws
    scale: float  # of what is kept, the inverse of its share

    @classmethod
    def with_probability(cls, probability: float) -> Draws:
        """Draws by torch's random numbers."""
        dropped = min(round(probability * 2**32), 2**32 - 1)
        return cls(int(torch.empty((), dtype=torch.int64).random_()), dropped, 2**32 / (2**32 - dropped))


NO_DRAWS = Draws(0, 0, 1.0)  # nothing is dropped


class PackedWeight:
    """A linear layer's weight (panels, I, outputs of a panel) and bias in the order of `Kernels.multiply_fp32`.

    The last panel is filled up with zeros.
    """

    def __init__(self, weight: Tensor, bias: Tensor, panel: int) -> None:
        """weight (O, I) and bias (O,) in fp32; panel is `Kernels.panel`."""
        _require(weight.is_cpu and weight.dtype == bias.dtype == torch.float32 and bias.shape == weight.shape[:1])
        self.outputs, self.inputs = weight.shape
        missing = -self.outputs % panel
        self.weight = _in_panels(F.pad(weight, (0, 0, 0, missing)) if missing else weight, panel, 1).flatten(2)
        self.bias = F.pad(bias, (0, missing))


class PackedCodes:
    """A linear layer's weight as codes of 8 bits (panels, quads, outputs of a panel, QUAD), and its bias.

    The last panel, and the last quad of inputs, are filled up with zeros. The scale is that of a product of two codes,
    apart from the row's own; the offset is what 128 too much in all codes of a row adds to a product.
    """

    def __init__(self, codes: Tensor, scale: Tensor, bias: Tensor, panel: int) -> None:
        """codes (O, I) in int8, at most `Kernels.greatest_code`; scale, bias (O,) in fp32; panel is `Kernels.panel`."""
        _require(codes.is_cpu and codes.dtype == torch.int8 and scale.dtype == bias.dtype == torch.float32)
        _require(scale.shape == bias.shape == codes.shape[:1])
        self.outputs, self.inputs = codes.shape
        missing = -self.outputs % panel
        codes = F.pad(codes, (0, -self.inputs % QUAD, 0, missing))
        self.scale, self.bias = F.pad(scale, (0, missing)), F.pad(bias, (0, missing))
        self.offset = codes.sum(dim=1, dtype=torch.int32) * 128
        self.codes = _in_panels(codes, panel, QUAD)


class Kernels:
    """The compiled functions.

    Tensors are on the CPU; where strides are not mentioned, they are contiguous. autograd does not follow them.

    Attributes:
        is_avx512: 1 if attention has code for this processor, else 0.
        multiplies, multiplies_fp32, attends_in_int8: true if `multiply`, `multiply_fp32`, `attend_many` exist.
        greatest_code: of weights, for `multiply`.
        panel: outputs whose weights lie together in `PackedWeight` and `PackedCodes`.

    Raises (all methods):
        ValueError: tensors of other shapes, types, strides or devices.
        MemoryError: a kernel found no memory.
    """

    def __init__(self, *options: str) -> None:
        self._library = ctypes.CDLL(str(compile_library(*options)))
        if hasattr(self._library, "ask_for") and self._library.ask_for(XTILEDATA):
            self._library = ctypes.CDLL(str(compile_library(*options, "-mno-amx-int8")))  # as with VNNI alone
        self.is_avx512, self.panel, self.greatest_code = (
            ctypes.c_int.in_dll(self._library, name).value for name in ("is_avx512", "panel_outputs", "greatest_code")
        )
        self.multiplies, self.multiplies_fp32, self.attends_in_int8 = (
            hasattr(self._library, name) for name in ("multiply", "multiply_fp32", "attend_many")
        )
        for name, types in argument_types(SOURCE.read_text(encoding="utf-8")).items():
            if hasattr(self._library, name):
                function = getattr(self._library, name)
                function.argtypes, function.errcheck = types, _raise_if_failed

    def __reduce__(self) -> tuple[Callable[[], Kernels | None], tuple[()]]:
        """A copy, or a pickle that is read elsewhere, has the kernels of the machine at hand, or None."""
        return load, ()

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention of queries (B, H, K, Dh) to keys and values (B, H, L, Dh) -> context (B, K, D), as the query.

        Args:
            query: bf16 or fp32, with any strides but the last.
            keys, values: fp32, bf16, or (B, H, L, Dh + 4) of `code_heads`; with equal strides, any but the last.
            mask: bf16 or fp32, added to the scores, (B or 1, 1, K or 1, L), or None. A query without a visible key gets
                NaN.
        """
        articles, heads, queries, width = query.shape
        length = keys.shape[2]
        room = width + SCALE_BYTES if keys.dtype is torch.int8 else width
        _check(query, FLOATS, query.shape)
        _check(keys, KINDS, (articles, heads, length, room))
        _check(values, (keys.dtype,), keys.shape, keys.stride())
        _require(width <= MOST_INPUTS)
        context = query.new_empty((articles, queries, heads * width))
        self._library.attend(
            *(query.data_ptr(), KINDS[query.dtype], *query.stride()[:3]),
            *(keys.data_ptr(), values.data_ptr(), KINDS[keys.dtype], *keys.stride()[:3]),
            *_mask(mask, articles, queries, length),
            *(context.data_ptr(), articles, heads, queries, length, width, torch.get_num_threads()),
        )
        return context

    def drop(self, states: Tensor, draws: Draws, added: Tensor | None = None) -> Tensor:
        """Dropout of states in fp32 or bf16, as they are; or what is added, in fp32, and the states after dropout."""
        out = torch.empty_like(states if added is None else added, memory_format=torch.contiguous_format)
        count = states.numel()
        self._library.drop(
            *(_address(states, FLOATS, count), KINDS[states.dtype]),
            None if added is None else _address(added, (torch.float32,), count),
            *(out.data_ptr(), KINDS[out.dtype], count),
            *(draws.seed, draws.dropped, draws.scale, torch.get_num_threads()),
        )
        return out

    def attend_dropped(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | Spans | None, is_causal: bool, draws: Draws
    ) -> Tensor:
        """Attention with dropout of its weights, of queries (B, H, K, Dh) to keys and values (B, H, L, Dh).

        Args:
            query, keys, values: all fp32 or all bf16, where Dh and all strides are even; with any strides but the last;
                those of keys and values are equal.
            mask: fp32, added to the scores, (B or 1, 1, K or 1, L), or None. A query without a visible key reads all.
                Or spans: queries are (1, H, all rows, Dh) then, and read their own article's keys, one at least.
            is_causal: in place of a mask of numbers, a query reads its article's keys up to its own position.

        Returns:
            (B, H, K, Dh), as the query, in memory (B, K, H, Dh).
        """
        context = laid_out(query)
        self._dropped(query, keys, values, mask, is_causal, draws, None, context, None, None, None)
        return context

    def attend_dropped_backward(
        self, gradient: Tensor, query: Tensor, keys: Tensor, values: Tensor, *options: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of query, keys and values of `attend_dropped`, from that of its result, in memory as this."""
        _require(gradient.shape == query.shape and gradient.dtype == query.dtype)
        if query.numel() == 0:  # whose address would be that of no gradient
            return torch.zeros_like(query), torch.zeros_like(keys), torch.zeros_like(values)
        gradient = gradient.transpose(1, 2).contiguous()
        gradients = laid_out(query), laid_out(keys), laid_out(keys)
        self._dropped(query, keys, values, *options, gradient, None, *gradients)
        return gradients

    def _dropped(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | Spans | None,
        is_causal: bool,
        draws: Draws,
        *outputs: Tensor | None,
    ) -> None:
        articles, heads, queries, width = query.shape
        length = keys.shape[2]
        _check(query, FLOATS, query.shape)
        _check(keys, (query.dtype,), (articles, heads, length, width))
        _check(values, (query.dtype,), keys.shape, keys.stride())
        if query.dtype is torch.bfloat16:  # numbers are read in pairs
            _require(width % 2 == 0 and not any(n % 2 for part in (query, keys) for n in part.stride()[:3]))
            _require(not any(part.data_ptr() % 4 for part in (query, keys, values, *outputs) if part is not None))
        starts: tuple[int | None, ...] = (None, None)
        if isinstance(mask, Spans):
            for part, count in zip(mask, (queries, length), strict=True):
                _check(part.starts, (torch.int32,), (len(mask.keys) + 2,))
                _require(articles == 1 and int(part.starts[0]) == 0 and int(part.starts[-1]) == count)
                _require(int(part.starts.diff().min()) >= 0 and int(part.starts.diff().max()) <= part.span)
            starts = mask.queries.starts.data_ptr(), mask.keys.starts.data_ptr()
            articles, queries, length = len(mask.keys) + 1, mask.queries.span, mask.keys.span
            mask = None
        _require(mask is None or mask.dtype is torch.float32)
        address, _, mask_article, mask_row, mask_rows = _mask(mask, articles, queries, length)
        self._library.attend_dropped(
            *(query.data_ptr(), *query.stride()[:3]),
            *(keys.data_ptr(), values.data_ptr(), KINDS[query.dtype], *keys.stride()[:3], *starts),
            *(address, mask_article, mask_row if mask_rows > 1 else 0, is_causal),
            *(None if tensor is None else tensor.data_ptr() for tensor in outputs),
            *(articles, heads, queries, length, width),
            *(draws.seed, draws.dropped, draws.scale, torch.get_num_threads()),
        )

    def attend_many(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Self-attention, of (B, H, L, Dh) each, in 8 bits -> context (B, L, D), as the query.

        It exists where `attends_in_int8` is true, for Dh = WIDTH and L up to MOST_KEYS. Arguments are all fp32 or all
        bf16, with equal strides, any but the last; the mask (B or 1, 1, 1, L), or None, is added to the scores.
        """
        articles, heads, length, width = query.shape
        _check(query, FLOATS, (articles, heads, length, WIDTH))
        for tensor in (keys, values):
            _check(tensor, (query.dtype,), query.shape, query.stride())
        _require(length <= MOST_KEYS)
        context = query.new_empty((articles, length, heads * width))
        self._library.attend_many(
            *(query.data_ptr(), keys.data_ptr(), values.data_ptr(), KINDS[query.dtype], *query.stride()[:3]),
            *_mask(mask, articles, 1, length)[:3],
            *(context.data_ptr(), articles, heads, length, torch.get_num_threads()),
        )
        return context

    def code_heads(self, projected: Tensor, parts: int, heads: int) -> Tensor:
        """Parts (B, L, parts · D) in fp32 or bf16, such as keys and values -> (parts, B, H, L, Dh + 4) in int8.

        A row holds the codes round(x · 127 / max|x|), then max|x| / 127 as fp32, by which they are to be multiplied.
        """
        articles, length, total = projected.shape
        width = min(total // (parts * heads), MOST_INPUTS)
        address = _address(projected, FLOATS, articles * length * parts * heads * width)
        codes = torch.empty((parts, articles, heads, length, width + SCALE_BYTES), dtype=torch.int8)
        self._library.code_heads(
            *(address, KINDS[projected.dtype], codes.data_ptr()),
            *(articles, length, parts, heads, width, torch.get_num_threads()),
        )
        return codes

    def multiply(
        self, rows: Tensor, weight: PackedCodes, with_gelu: bool = False, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """bias + rows · weightᵀ for rows (N, I) in fp32 or bf16, which are quantised as by `quantize_rows`.

        It exists where `multiplies` is true. The result (N, O), or exact GELU of it, has dtype, fp32 or bf16.
        """
        inputs, count = weight.inputs, len(rows)
        _require(dtype in FLOATS and inputs <= MOST_INPUTS and weight.codes.shape[2] == self.panel)
        out = torch.empty((count, weight.outputs), dtype=dtype)
        self._library.multiply(
            *(_address(rows, FLOATS, count * inputs), KINDS[rows.dtype]),
            *(part.data_ptr() for part in (weight.codes, weight.scale, weight.offset, weight.bias)),
            *(with_gelu, out.data_ptr(), KINDS[dtype], count, inputs, weight.outputs, torch.get_num_threads()),
        )
        return out

    def multiply_fp32(self, rows: Tensor, weight: PackedWeight, activation: str | None = None) -> Tensor:
        """bias + rows · weightᵀ (N, O), or one of ACTIVATIONS of it, for rows (N, I) in fp32.

        It exists where `multiplies_fp32` is true.
        """
        inputs, count = weight.inputs, len(rows)
        _require(weight.weight.shape[2] == self.panel)
        out = torch.empty((count, weight.outputs), dtype=torch.float32)
        self._library.multiply_fp32(
            _address(rows, (torch.float32,), count * inputs),
            *(weight.weight.data_ptr(), weight.bias.data_ptr(), ACTIVATIONS[activation], out.data_ptr()),
            *(count, inputs, weight.outputs, torch.get_num_threads()),
        )
        return out

    def add_and_norm(self, states: Tensor, added: Tensor, norm: Any) -> Tensor:
        """norm(states + added), a LayerNorm of two (…, O), all in fp32."""
        width, out = states.shape[-1], torch.empty_like(states)
        self._library.add_and_norm(
            *(_address(part, (torch.float32,), out.numel()) for part in (states, added)),
            *(_address(part, (torch.float32,), width) for part in (norm.weight, norm.bias)),
            *(norm.eps, out.data_ptr(), out.numel() // width, width, torch.get_num_threads()),
        )
        return out

    def cross_entropy(
        self, logits: Tensor, bias: Tensor, labels: Tensor, label_smoothing: float, gradients: bool
    ) -> tuple[Tensor, Tensor]:
        """`Backend.cross_entropy` of logits (N, O) in fp32 or bf16; IndexError for labels that are not below O."""
        rows, width = logits.shape
        addresses = _address(bias, (torch.float32,), width), _address(labels, (torch.int64,), rows)
        targets = labels[labels != IGNORE_INDEX]
        if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < width:
            raise IndexError(f"labels are {int(targets.min())} to {int(targets.max())}; allowed: 0 to {width - 1}")
        losses, correct = torch.empty(rows, dtype=torch.float32), torch.empty(rows, dtype=torch.int64)
        self._library.cross_entropy(
            *(_address(logits, FLOATS, rows * width), KINDS[logits.dtype], *addresses, label_smoothing, gradients),
            *(losses.data_ptr(), correct.data_ptr(), rows, width, torch.get_num_threads()),
        )
        return losses, logits if gradients else correct

    def log_softmax(self, logits: Tensor) -> Tensor:
        """The log-probabilities (N, V) in fp32 of logits (N, V) in fp32, which they overwrite, or bf16."""
        rows, width = logits.shape
        scores = logits if logits.dtype is torch.float32 else torch.empty_like(logits, dtype=torch.float32)
        address = _address(logits, FLOATS, rows * width)
        self._library.log_softmax(address, KINDS[logits.dtype], scores.data_ptr(), rows, width, torch.get_num_threads())
        return scores

    def top_sums(self, scores: Tensor, bases: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """`Backend.top_sums` of scores (B, K, V) and bases (B, K) in fp32; of equal sums the first one is taken."""
        articles, beams, width = scores.shape
        _require(0 < count <= beams * width)
        sums, places = scores.new_empty(articles, count), torch.empty((articles, count), dtype=torch.int64)
        self._library.top_sums(
            _address(scores, (torch.float32,), scores.numel()),
            _address(bases, (torch.float32,), articles * beams),
            *(sums.data_ptr(), places.data_ptr(), articles, beams, width, count, torch.get_num_threads()),
        )
        return sums, places

    def quantize_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (N, O) in fp32 or bf16 -> codes (N, O) in uint8 and peak (N, 1) in fp32.

        peak = max|row| + the least normal number, codes = round(row · 127 / peak) + 128.
        """
        count, width = rows.shape
        _require(width <= MOST_INPUTS)
        codes, peak = torch.empty_like(rows, dtype=torch.uint8), torch.empty((count, 1), dtype=torch.float32)
        self._library.quantize_rows(
            *(_address(rows, FLOATS, count * width), KINDS[rows.dtype], codes.data_ptr(), peak.data_ptr()),
            *(count, width, torch.get_num_threads()),
        )
        return codes, peak

    def finish_rows(
        self, products: Tensor, peak: Tensor, bias: Tensor, with_gelu: bool = False, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """bias + products · peak, or exact GELU of it, for products (N, O), peak (N, 1) and bias (O,) in fp32.

        dtype is that of the result: fp32, which overwrites the products, or bf16.
        """
        count, width = products.shape
        _require(dtype in FLOATS)
        out = products if dtype is torch.float32 else torch.empty_like(products, dtype=dtype)
        self._library.finish_rows(
            _address(products, (torch.float32,), count * width),
            _address(peak, (torch.float32,), count),
            _address(bias, (torch.float32,), width),
            *(with_gelu, out.data_ptr(), KINDS[dtype], count, width, torch.get_num_threads()),
        )
        return out


def _in_panels(weight: Tensor, panel: int, group: int) -> Tensor:
    """(O, I) -> (O / panel, I / group, panel, group)."""
    return weight.view(-1, panel, weight.shape[1] // group, group).transpose(1, 2).contiguous()


def laid_out(states: Tensor) -> Tensor:
    """An empty (B, H, T, Dh) with the memory layout (B, T, H, Dh), in which projections read and write."""
    return torch.empty_like(states.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def _raise_if_failed(failed: int, function: Any, arguments: tuple[Any, ...]) -> None:
    if failed:
        raise MemoryError(f"the kernel {function.__name__} found no memory")


def _require(fits: bool) -> None:
    # Not an assert, which `python -O` leaves out: a kernel would read or write beyond its tensors.
    if not fits:
        raise ValueError("a kernel got a tensor whose shape, type, strides or device it does not take")


def _check(
    tensor: Tensor, types: Collection[torch.dtype], shape: Sequence[int], strides: Sequence[int] | None = None
) -> None:
    """Require a tensor on the CPU whose last dimension has no gaps."""
    _require(
        tensor.is_cpu
        and tensor.dtype in types
        and tensor.shape == shape
        and tensor.stride(-1) == 1
        and (strides is None or tensor.stride() == strides)
    )


def _address(tensor: Tensor, types: Collection[torch.dtype], numbers: int) -> int:
    """The address of a contiguous tensor on the CPU of so many numbers."""
    _require(tensor.is_cpu and tensor.dtype in types and tensor.numel() == numbers and tensor.is_contiguous())
    return tensor.data_ptr()


def _mask(mask: Tensor | None, articles: int, queries: int, length: int) -> tuple[Any, ...]:
    """Address, kind, strides and rows of a mask (B or 1, 1, K or 1, L)."""
    if mask is None:
        return None, 0, 0, 0, 1
    mask_articles, _, rows, _ = mask.shape
    _require(mask_articles in (1, articles) and rows in (1, queries))
    _check(mask, FLOATS, (mask_articles, 1, rows, length))
    return mask.data_ptr(), KINDS[mask.dtype], mask.stride(0) if mask_articles > 1 else 0, mask.stride(2), rows


@functools.cache
def load() -> Kernels | None:
    """The kernels; None where they cannot be had, which is logged once with the reason."""
    if os.environ.get("BART_KERNELS") == "0":
        reason = "BART_KERNELS is 0"
    else:
        try:
            return Kernels()
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode(errors="replace").strip().split("\n")
            reason = f"the compiler fails: {next((line for line in lines if 'error' in line), lines[-1])}"
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            reason = str(error)
    logger.info("no fast kernels here (%s): torch's operations take their place, which takes longer", reason)
    return None
