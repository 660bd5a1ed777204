"""Kernels in C for inference on CPUs, compiled on first use; see kernels.c.

They are optional: `load()` returns None where there is no compiler, and what they compute is then left to torch.
BART_KERNELS=0 in the environment switches them off.

Shapes: B articles, H heads, K queries of an article (its beams, or positions), L keys, D = H·Dh model width,
Dh head width; N rows, I and O the inputs and outputs of a product, or O the width of rows.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_suffix(".c")
# Sums may only be reordered where the source says so, and masks need infinity: no -ffast-math.
FLAGS = "-O3 -march=native -fno-math-errno -fno-trapping-math -fno-strict-aliasing -fopenmp -fPIC".split()
COMPILE_SECONDS = 120

_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_ATTEND = [
    *(_POINTER, _INT, _SIZE, _SIZE, _SIZE),  # query, whether it is bf16, strides
    *(_POINTER, _POINTER, _INT, _SIZE, _SIZE, _SIZE),  # keys, values, their kind, strides
    *(_POINTER, _INT, _SIZE, _SIZE, _SIZE),  # mask, whether it is bf16, strides, rows
    *(_POINTER, _SIZE, _SIZE, _SIZE, _SIZE, _SIZE, _INT),  # context, B, H, K, L, Dh, threads
]
_CODE_HEADS = [
    *(_POINTER, _INT, _POINTER),  # input, whether it is bf16, codes
    *(_SIZE, _SIZE, _SIZE, _SIZE, _SIZE, _INT),  # B, L, parts, H, Dh, threads
]
_FINISH_ROWS = [
    *(_POINTER, _INT, _POINTER, _POINTER, _INT),  # input, whether it is bf16, peak, bias, whether to apply gelu
    *(_POINTER, _INT, _POINTER, _POINTER, _SIZE, _SIZE, _INT),  # out, is it bf16, codes, code_peak, N, O, threads
]
_ADD_AND_NORM = [
    *(_POINTER, _POINTER, _POINTER, _POINTER, ctypes.c_float),  # hidden, update, weight, bias, epsilon
    *(_POINTER, _SIZE, _SIZE, _INT),  # out, N, O, threads
]
_LOG_SOFTMAX = [_POINTER, _SIZE, _SIZE, _INT]  # rows, N, O, threads
_MULTIPLY = [
    *(_POINTER, _INT, _POINTER, _POINTER, _POINTER, _POINTER),  # input, is it bf16, weights, scale, offset, bias
    *(_INT, _POINTER, _INT, _SIZE, _SIZE, _SIZE, _INT),  # whether to apply gelu, out, is it bf16, N, I, O, threads
]
_ATTEND_MANY = [
    *(_POINTER, _POINTER, _POINTER, _INT, _SIZE, _SIZE, _SIZE),  # query, keys, values, are they bf16, strides
    *(_POINTER, _INT, _SIZE),  # mask, whether it is bf16, stride
    *(_POINTER, _SIZE, _SIZE, _SIZE, _INT),  # context, B, H, L, threads
]
# What keys and values may be; as in the source.
_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
SCALE_BYTES = 4  # behind the codes of a key or value
# Outputs whose weights lie together, and inputs; as in the source.
PANEL, QUAD = 32, 4
# Head width that `attend_many` is for, and the greatest length with which its sums stay within 32 bits.
WIDTH, MOST_KEYS = 64, 1 << 16


class _Symbol(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


class PackedCodes:
    """A linear layer's weight as codes of 8 bits, and its bias, in the order in which `Kernels.multiply` reads them.

    Attributes:
        codes: (panels, quads, PANEL, QUAD): the output of a code is panel and place in it, its input quad and place.
        scale: (panels · PANEL,) of a product of two codes, apart from the row's own.
        offset: (panels · PANEL,) what 128 too much in all codes of a row add to a product.
        bias: (panels · PANEL,).
        inputs, outputs: I and O.
    """

    def __init__(self, codes: Tensor, scale: Tensor, bias: Tensor) -> None:
        """codes (O, I) in int8, scale and bias (O,) in fp32."""
        self.outputs, self.inputs = codes.shape
        missing = -self.outputs % PANEL
        codes = F.pad(codes, (0, -self.inputs % QUAD, 0, missing))
        self.scale, self.bias = F.pad(scale, (0, missing)), F.pad(bias, (0, missing))
        self.offset = codes.sum(dim=1, dtype=torch.int32) * 128
        self.codes = codes.view(-1, PANEL, codes.shape[1] // QUAD, QUAD).transpose(1, 2).contiguous()


class Kernels:
    """The compiled functions.

    Tensors lie on the CPU, in the formats that each method names; those without a word on strides have no gaps. What
    breaks this is a fault of the caller (AssertionError). There are no gradients.
    """

    def __init__(self, library: Path) -> None:
        functions = ctypes.CDLL(str(library))

        def bind(function: Any, arguments: list[type]) -> Any:
            function.argtypes, function.restype = arguments, None
            return function

        self._attend = bind(functions.attend, _ATTEND)
        self._code_heads = bind(functions.code_heads, _CODE_HEADS)
        self._finish_rows = bind(functions.finish_rows, _FINISH_ROWS)
        self._add_and_norm = bind(functions.add_and_norm, _ADD_AND_NORM)
        self._log_softmax = bind(functions.log_softmax, _LOG_SOFTMAX)
        # Whether attention is written for this processor; whether `multiply` and `attend_many` are there.
        self.is_avx512, self.multiplies = bool(functions.is_avx512()), bool(functions.multiplies())
        if self.multiplies:
            self._multiply = bind(functions.multiply, _MULTIPLY)
            self._attend_many = bind(functions.attend_many, _ATTEND_MANY)

    def __reduce__(self) -> tuple[Callable[[], Kernels | None], tuple[()]]:
        """Copied or unpickled as part of a model, they are those of the machine at hand, or None."""
        return load, ()

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention of queries (B, H, K, Dh) to keys and values (B, H, L, Dh) -> context (B, K, D), as the query.

        Args:
            query: bf16 or fp32, with any strides but the last. Where keys are bf16 and the processor multiplies that,
                it is rounded to bf16, and so are the weights; all else is fp32.
            keys, values: fp32, bf16, or (B, H, L, Dh + 4) of `code_heads`; with equal strides, any but the last.
            mask: bf16 or fp32, added to the scores, (B or 1, 1, K or 1, L), or None. Every query must see a key. What
                is -inf for all queries of an article is not read.
        """
        articles, heads, queries, width = query.shape
        length = keys.shape[2]
        *query_strides, query_step = query.stride()
        *strides, step = keys.stride()
        assert query.is_cpu and (query.dtype is torch.float32 or query.dtype is torch.bfloat16)
        assert keys.dtype is values.dtype and values.stride() == (*strides, step)
        room = width + SCALE_BYTES if keys.dtype is torch.int8 else width
        assert keys.shape == values.shape == (articles, heads, length, room) and query_step == step == 1
        mask_address, mask_is_bf16, mask_strides, mask_rows = None, False, (0, 0), 1
        if mask is not None:
            mask_articles, mask_heads, mask_rows, mask_length = mask.shape
            mask_is_bf16 = mask.dtype is torch.bfloat16
            assert (mask_is_bf16 or mask.dtype is torch.float32) and mask.stride(3) == 1 and mask_length == length
            assert mask_articles in (1, articles) and mask_heads == 1 and mask_rows in (1, queries)
            mask_address = mask.data_ptr()
            mask_strides = mask.stride(0) if mask_articles > 1 else 0, mask.stride(2)
        context = query.new_empty((articles, queries, heads * width))
        self._attend(
            *(query.data_ptr(), query.dtype is torch.bfloat16, *query_strides),
            *(keys.data_ptr(), values.data_ptr(), _KINDS[keys.dtype], *strides),
            *(mask_address, mask_is_bf16, *mask_strides, mask_rows),
            *(context.data_ptr(), articles, heads, queries, length, width, torch.get_num_threads()),
        )
        return context

    def attend_many(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Self-attention, of (B, H, L, Dh) each, in 8 bits -> context (B, L, D), as the query.

        Queries and keys are quantised with one scale for each, values with one for each dimension of a head, and
        weights to 16 bits of the greatest one. Only where `multiplies` is true, Dh is WIDTH and L at most MOST_KEYS.

        Args:
            query, keys, values: all fp32 or all bf16; with equal strides, any but the last.
            mask: bf16 or fp32, added to the scores, (B or 1, 1, 1, L), or None. An article must have a key to see. Of
                what is -inf neither key nor value is read.
        """
        articles, heads, length, width = query.shape
        *strides, step = query.stride()
        assert query.is_cpu and (query.dtype is torch.float32 or query.dtype is torch.bfloat16)
        assert query.dtype is keys.dtype is values.dtype and query.shape == keys.shape == values.shape
        assert query.stride() == keys.stride() == values.stride() and step == 1
        assert width == WIDTH and length <= MOST_KEYS
        mask_address, mask_is_bf16, mask_stride = None, False, 0
        if mask is not None:
            mask_is_bf16 = mask.dtype is torch.bfloat16
            assert (mask_is_bf16 or mask.dtype is torch.float32) and mask.stride(3) == 1
            assert mask.shape in ((1, 1, 1, length), (articles, 1, 1, length))
            mask_address, mask_stride = mask.data_ptr(), mask.stride(0) if len(mask) > 1 else 0
        context = query.new_empty((articles, length, heads * width))
        self._attend_many(
            *(query.data_ptr(), keys.data_ptr(), values.data_ptr(), query.dtype is torch.bfloat16, *strides),
            *(mask_address, mask_is_bf16, mask_stride),
            *(context.data_ptr(), articles, heads, length, torch.get_num_threads()),
        )
        return context

    def code_heads(self, projected: Tensor, parts: int, heads: int) -> Tensor:
        """Parts (B, L, parts · D) in fp32 or bf16, such as keys and values -> (parts, B, H, L, Dh + 4) in int8.

        A row has codes round(x · 127 / max|x|), and behind them, as fp32, the max|x| / 127 to multiply them by.
        """
        articles, length, _ = projected.shape
        width = projected.shape[2] // (parts * heads)
        assert projected.dtype is torch.float32 or projected.dtype is torch.bfloat16
        codes = torch.empty((parts, articles, heads, length, width + SCALE_BYTES), dtype=torch.int8)
        self._code_heads(
            *(_address(projected, projected.dtype, articles * length * parts * heads * width),),
            *(projected.dtype is torch.bfloat16, codes.data_ptr()),
            *(articles, length, parts, heads, width, torch.get_num_threads()),
        )
        return codes

    def multiply(
        self,
        rows: Tensor,
        weight: PackedCodes,
        activation: str = "none",
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """act(bias + rows · weightᵀ) for rows (N, I) in fp32 or bf16, with the rows quantised as `quantize_rows` does.

        Only where `multiplies` is true.

        Args:
            activation: none, or gelu (the exact one).
            dtype: of the result (N, O): fp32 or bf16.
        """
        assert dtype is torch.float32 or dtype is torch.bfloat16
        assert rows.dtype is torch.float32 or rows.dtype is torch.bfloat16
        assert activation == "none" or activation == "gelu"
        assert rows.shape[1] == weight.inputs
        out = torch.empty((len(rows), weight.outputs), dtype=dtype)
        outputs = len(weight.codes) * PANEL
        self._multiply(
            *(_address(rows, rows.dtype, rows.numel()), rows.dtype is torch.bfloat16),
            _address(weight.codes, torch.int8, weight.codes.numel()),
            _address(weight.scale, torch.float32, outputs),
            _address(weight.offset, torch.int32, outputs),
            _address(weight.bias, torch.float32, outputs),
            activation == "gelu",
            *(out.data_ptr(), dtype is torch.bfloat16),
            *(len(rows), weight.inputs, weight.outputs, torch.get_num_threads()),
        )
        return out

    def add_and_norm(self, hidden: Tensor, update: Tensor, norm: nn.LayerNorm) -> Tensor:
        """norm(hidden + update), for states (…, O) in fp32."""
        out = torch.empty_like(hidden)
        width = hidden.shape[-1]
        states = [_address(states, torch.float32, out.numel()) for states in (hidden, update)]
        parameters = [_address(parameter, torch.float32, width) for parameter in (norm.weight, norm.bias)]
        rows = out.numel() // width
        self._add_and_norm(*states, *parameters, norm.eps, out.data_ptr(), rows, width, torch.get_num_threads())
        return out

    def log_softmax(self, rows: Tensor) -> Tensor:
        """The logarithms of the softmax of rows (N, O) in fp32, in whose place they come."""
        count, width = rows.shape
        self._log_softmax(_address(rows, torch.float32, count * width), count, width, torch.get_num_threads())
        return rows

    def quantize_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (N, O) in fp32 or bf16 -> codes (N, O) in uint8 and peak (N, 1) in fp32.

        peak = max|row| + the least normal number, codes = round(row · 127 / peak) + 128.
        """
        codes = torch.empty_like(rows, dtype=torch.uint8)
        peak = torch.empty((rows.shape[0], 1), dtype=torch.float32)
        self._run(rows, codes=codes, code_peak=peak)
        return codes, peak

    def finish(
        self,
        products: Tensor,
        peak: Tensor,
        bias: Tensor,
        activation: str = "none",
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """act(bias + products · peak), for products (N, O), peak (N, 1) and bias (O,) in fp32.

        Args:
            activation: none, or gelu (the exact one).
            dtype: of the result: fp32, which takes the place of the products, or bf16.
        """
        assert dtype is torch.float32 or dtype is torch.bfloat16
        out = products if dtype is torch.float32 else torch.empty_like(products, dtype=dtype)
        self._run(products, peak, bias, activation, out)
        return out

    def _run(
        self,
        rows: Tensor,
        peak: Tensor | None = None,
        bias: Tensor | None = None,
        activation: str = "none",
        out: Tensor | None = None,
        codes: Tensor | None = None,
        code_peak: Tensor | None = None,
    ) -> None:
        """Take rows through the steps whose arguments are given, in this order."""
        width, dtype = rows.shape[-1], rows.dtype
        count = rows.numel() // width
        assert dtype is torch.float32 or (dtype is torch.bfloat16 and peak is None)
        assert activation == "none" or activation == "gelu"
        self._finish_rows(
            *(_address(rows, dtype, rows.numel()), dtype is torch.bfloat16),
            None if peak is None else _address(peak, torch.float32, count),
            None if bias is None else _address(bias, torch.float32, width),
            activation == "gelu",
            *((None, False) if out is None else (out.data_ptr(), out.dtype is torch.bfloat16)),
            *((None, None) if codes is None else (codes.data_ptr(), code_peak.data_ptr())),
            *(count, width, torch.get_num_threads()),
        )


def _address(tensor: Tensor, dtype: torch.dtype, numbers: int) -> int:
    assert tensor.is_cpu and tensor.dtype is dtype and tensor.numel() == numbers and tensor.is_contiguous()
    return tensor.data_ptr()


def _openmp_of_torch() -> str:
    """Path of the OpenMP library whose threads torch uses: a second one's would keep the cores from them."""
    symbols = ctypes.CDLL(torch._C.__file__)
    found = _Symbol()
    # GOMP_parallel is what GCC has code call; libraries other than its own have it too, but not all.
    if not hasattr(symbols, "GOMP_parallel"):
        raise OSError("torch has no OpenMP library that GCC can use")
    ctypes.CDLL(None).dladdr(ctypes.cast(symbols.GOMP_parallel, ctypes.c_void_p), ctypes.byref(found))
    return os.fsdecode(found.file)


def compile_kernels(*options: str) -> Kernels:
    """Compile kernels.c, with further options of the compiler, unless that has been done before, and load it.

    Raises:
        OSError, RuntimeError, subprocess.SubprocessError: there is no compiler, it fails, there is no home directory,
            or something else that is needed is missing.
    """
    if sys.platform != "linux":
        raise OSError(f"they are not made for {sys.platform}")
    openmp = _openmp_of_torch()
    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = [*FLAGS, *options]
    run = functools.partial(subprocess.run, check=True, capture_output=True, timeout=COMPILE_SECONDS)
    # What the compiler knows of itself and, from -march=native, of this processor.
    macros = run([*compiler, *flags, "-dM", "-E", "-x", "c", os.devnull]).stdout
    origin = [SOURCE.read_bytes(), macros, repr((compiler, flags, openmp, torch.__version__)).encode()]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bart-pytorch"
    library = cache / f"kernels-{hashlib.sha256(b''.join(origin)).hexdigest()[:32]}.so"
    if not library.exists():
        cache.mkdir(parents=True, exist_ok=True)
        # Renamed once it is whole: other processes may be at the same.
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            unlinked, linked = Path(folder, "kernels.o"), Path(folder, "kernels.so")
            run([*compiler, *flags, "-c", SOURCE, "-o", unlinked])
            # Without -fopenmp, which would link the compiler's own library.
            place = f"-Wl,-rpath,{os.path.dirname(openmp)}"
            run([*compiler, "-shared", unlinked, openmp, place, "-Wl,-z,defs", "-lm", "-o", linked])
            linked.replace(library)
    return Kernels(library)


@functools.cache
def load() -> Kernels | None:
    """The kernels, compiled if need be; None where they cannot be had, which is logged once with the reason."""
    if os.environ.get("BART_KERNELS") == "0":
        reason = "BART_KERNELS is 0"
    else:
        try:
            return compile_kernels()
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode(errors="replace").strip().split("\n")
            reason = f"the compiler fails: {next((line for line in lines if 'error' in line), lines[-1])}"
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            reason = str(error)
    logger.info("The compiled kernels are not used (%s); inference takes the slower path", reason)
    return None
