"""Kernels in C for inference on CPUs, compiled on first use; see kernels.c.

They are optional: `load()` returns None where there is no compiler, and what they compute is then left to torch.
BART_KERNELS=0 in the environment switches them off.

Shapes: B articles, H heads, K queries of an article (its beams, or positions), L keys, D = H·Dh model width,
Dh head width; N rows, O their width.
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
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_suffix(".c")
# Sums may only be reordered where the source says so, and masks need infinity: no -ffast-math.
FLAGS = "-O3 -march=native -fno-math-errno -fno-trapping-math -fno-strict-aliasing -fopenmp -fPIC".split()
COMPILE_SECONDS = 120

_POINTER, _INT, _SIZE, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
_ATTEND = [
    *(_POINTER, _INT, _SIZE, _SIZE, _SIZE),  # query, whether it is bf16, strides
    *(_POINTER, _POINTER, _SIZE, _SIZE, _SIZE),  # keys, values, strides
    *(_POINTER, _SIZE, _SIZE, _SIZE),  # mask, strides, rows
    *(_POINTER, _SIZE, _SIZE, _SIZE, _SIZE, _SIZE, _INT),  # context, B, H, K, L, Dh, threads
]
_FINISH_ROWS = [
    *(_POINTER, _INT, _POINTER, _POINTER, _INT),  # input, whether it is bf16, peak, bias, whether to apply gelu
    *(_POINTER, _POINTER, _POINTER, _FLOAT),  # hidden, weight, norm_bias, eps
    *(_POINTER, _INT, _POINTER, _POINTER, _SIZE, _SIZE, _INT),  # out, is it bf16, codes, code_peak, N, O, threads
]


class _Symbol(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


class Kernels:
    """The compiled functions.

    Tensors are dense, on the CPU and in the formats that each method names; rows and results lie without gaps. What
    breaks this is a fault of the caller (AssertionError). No gradients.
    """

    def __init__(self, library: Path) -> None:
        functions = ctypes.CDLL(str(library))
        self._attend, self._finish_rows = functions.attend, functions.finish_rows
        self._attend.argtypes, self._finish_rows.argtypes = _ATTEND, _FINISH_ROWS
        self._attend.restype = self._finish_rows.restype = None

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention of queries (B, H, K, Dh) to keys and values (B, H, L, Dh) -> context (B, K, D), as the query.

        Args:
            query: bf16 or fp32; any strides but the last.
            keys, values: bf16; of equal strides, any but the last.
            mask: bf16, added to scores, (B or 1, 1, K or 1, L), or None. Each query must see a key. Columns that are
                -inf for all queries of an article cost almost nothing.
        """
        articles, heads, queries, width = query.shape
        length = keys.shape[2]
        key_strides, query_strides = keys.stride(), query.stride()
        assert query.dtype in (torch.bfloat16, torch.float32)
        assert keys.dtype == values.dtype == torch.bfloat16
        assert keys.shape == values.shape == (articles, heads, length, width)
        assert query_strides[3] == key_strides[3] == 1 and key_strides == values.stride()
        mask_address, mask_article, mask_row, mask_rows = None, 0, 0, 1
        if mask is not None:
            mask_articles, mask_heads, mask_rows, mask_length = mask.shape
            assert mask.dtype == torch.bfloat16 and mask.stride(3) == 1
            assert mask_articles in (1, articles) and mask_heads == 1
            assert mask_rows in (1, queries) and mask_length == length
            mask_address, mask_row = mask.data_ptr(), mask.stride(2)
            mask_article = mask.stride(0) if mask_articles > 1 else 0
        context = torch.empty((articles, queries, heads * width), dtype=query.dtype)
        self._attend(
            query.data_ptr(),
            query.dtype == torch.bfloat16,
            *query_strides[:3],
            keys.data_ptr(),
            values.data_ptr(),
            *key_strides[:3],
            mask_address,
            mask_article,
            mask_row,
            mask_rows,
            context.data_ptr(),
            articles,
            heads,
            queries,
            length,
            width,
            torch.get_num_threads(),
        )
        return context

    def quantize_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (N, O) in fp32 or bf16 -> codes (N, O) in uint8 and peak (N, 1) in fp32.

        peak = max|row| + the least normal number, codes = round(row · 127 / peak) + 128.
        """
        return self._quantized(rows, None)

    def finish(
        self,
        products: Tensor,
        peak: Tensor,
        bias: Tensor | None,
        activation: str = "none",
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """act(bias + products · peak), for products (N, O) and peak (N, 1) in fp32, bias (O,) in fp32 or None.

        Args:
            activation: none or gelu (the exact one).
            dtype: of the result: fp32, which takes the place of the products, or bf16.
        """
        assert dtype in (torch.float32, torch.bfloat16)
        out = products if dtype == torch.float32 else torch.empty(products.shape, dtype=dtype)
        self._run(products, peak, bias, activation, out=out)
        return out

    def finish_and_quantize(
        self, products: Tensor, peak: Tensor, bias: Tensor | None, activation: str = "none"
    ) -> tuple[Tensor, Tensor]:
        """`quantize_rows(finish(...))`, without the result between."""
        return self._quantized(products, peak, bias, activation)

    def add_layer_norm(self, hidden: Tensor, update: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """layer_norm(hidden + update) · weight + bias, for (N, O) and (O,), all fp32 or all bf16; sums are fp32."""
        out = torch.empty(hidden.shape, dtype=hidden.dtype)
        self._run(update, None, None, norm=(hidden, weight, bias, eps), out=out)
        return out
