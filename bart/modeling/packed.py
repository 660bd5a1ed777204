"""Modules of a copy for inference, with the methods of those of `bart.modeling.layers` whose places they take."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bart.backend import BackendModule, activated
from bart.cpu.backend import CpuBackend
from bart.cpu.kernels import ACTIVATIONS, MOST_KEYS, NO_DRAWS, WIDTH, Kernels, PackedCodes, PackedWeight, load
from bart.cuda.backend import CudaBackend
from bart.errors import InputError
from bart.generation.cache import additive, padded
from bart.modeling.layers import BartAttention, BartEncoderLayer
from bart.rounding import fast_side
from bart.torch_internals import multiply_codes, pack, pack_codes, packed_linear, why_not_packed

logger = logging.getLogger(__name__)

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.float32}
# The number of rows for which a weight is laid out: an article's tokens, and some articles' beams.
ROWS_OF_ENCODER, ROWS_OF_DECODER = 1024, 16
ROWS_AT_ONCE = 384  # in a feed-forward block
MOST_NUMBERS = 1 << 18  # of a weight that stays in a core's cache
OUTPUTS_AT_ONCE = 256  # of a weight, in quantisation
# Queries up to which the compiled attention is faster than torch's where it has no code for this processor.
MOST_QUERIES = 32
TINY = torch.finfo(torch.float32).tiny  # a row's largest value where all are zero


class PackedLinear(nn.Module):
    """A linear layer, and the activation after it, whose weight lies as matrix kernels read it, oneDNN's or ours.

    A plain layer rearranges its weight in every call, which takes longer than the few rows of a decoding step.
    """

    multiply: Callable[..., Tensor]

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        rows: int | None,
        activation: str | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        """weight (O, I), bias (O,); rows is a hint at N, or None to keep both as buffers, which move with the model."""
        super().__init__()
        self.activation = activation
        self.kernels = None
        self.outputs = len(weight)
        if rows is None:
            self.multiply = F.linear
            side = fast_side(len(weight))
            self.register_buffer("weight", padded(weight, 0, side))
            self.register_buffer("bias", padded(bias, 0, side))
        elif (
            kernels is not None
            and (kernels.multiplies_fp32 and weight.dtype == torch.float32)
            and (not kernels.is_avx512 or weight.numel() <= MOST_NUMBERS)  # where oneDNN's calls take too long
        ):
            self.kernels, self.packed = kernels, PackedWeight(weight, bias, kernels.panel)
            self.inside = activation if activation in ACTIVATIONS else None
            self.activation = None if self.inside else activation
        else:
            self.multiply = packed_linear
            self.weight, self.bias = pack(weight, rows), bias

    def forward(self, states: Tensor) -> Tensor:
        if self.kernels is None:
            return activated(self.multiply(states, self.weight, self.bias), self.activation)[..., : self.outputs]
        out = self.kernels.multiply_fp32(states.flatten(0, -2).contiguous(), self.packed, self.inside)
        return activated(out, self.activation).view(*states.shape[:-1], self.outputs)


class Int8Linear(nn.Module):
    """A linear layer with weights and inputs of 8 bits and sums of 32 bits, and the activation after it.

    Weights have one scale per output, inputs one per row (dynamic quantisation; Zafrir et al., 2019, arXiv:1910.06188),
    so that a row's result does not depend on its batch.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        rows: int,
        activation: str | None = None,
        dtype: torch.dtype = torch.float32,
        kernels: Kernels | None = None,
    ) -> None:
        """weight (O, I) and bias (O,) in fp32; rows is a hint at N; dtype, fp32 or bf16, is that of the result."""
        super().__init__()
        self.activation = activation
        self.dtype = dtype
        self.kernels = kernels
        multiplier = kernels if kernels is not None and kernels.multiplies else None
        greatest = greatest_weight_code() if multiplier is None else multiplier.greatest_code
        peak = torch.linalg.vector_norm(weight, torch.inf, dim=1).clamp(min=TINY)
        # In parts: intermediate results as large as the matrix would leave gaps in memory.
        parts = zip(weight.split(OUTPUTS_AT_ONCE), (greatest / peak[:, None]).split(OUTPUTS_AT_ONCE), strict=True)
        codes = torch.cat([(part * factor).round_().to(torch.int8) for part, factor in parts])
        scale = peak / (greatest * 127)  # of a product of two codes, apart from the row's own
        self.packed = None if multiplier is None else PackedCodes(codes, scale, bias, multiplier.panel)
        if self.packed is None:
            self.weight, self.bias = pack_codes(codes, rows), bias
            self.scale, self.zero_point = scale, torch.zeros(len(scale), dtype=torch.int64)

    def forward(self, states: Tensor) -> Tensor:
        rows = states.flatten(0, -2).contiguous()
        with_gelu = self.kernels is not None and self.activation == "gelu"
        if self.kernels is not None and self.packed is not None:
            out = self.kernels.multiply(rows, self.packed, with_gelu, self.dtype)
        elif self.kernels is not None:
            codes, peak = self.kernels.quantize_rows(rows)
            products = multiply_codes(codes, self.weight, self.scale, self.zero_point)
            out = self.kernels.finish_rows(products, peak, self.bias, with_gelu, self.dtype)
        else:
            rows = rows.float()
            peak = rows.abs().amax(dim=1, keepdim=True).add_(TINY)
            # Adding 128 to signed codes wraps around to unsigned ones.
            codes = (rows * (127 / peak)).round_().to(torch.int8).view(torch.uint8).add_(128)
            out = multiply_codes(codes, self.weight, self.scale, self.zero_point).mul_(peak).add_(self.bias)
        if not with_gelu:
            out = activated(out, self.activation)
        return out.to(self.dtype).view(*states.shape[:-1], -1)


@functools.cache
def greatest_weight_code() -> int:
    """The greatest weight code with which oneDNN's sums are exact.

    Without VNNI, oneDNN adds pairs of products in 16 bits (vpmaddubsw), where 2 · 255 · 127 is cut off at 2^15 - 1.
    Weights then get 7 bits: 2 · 255 · 64 < 2^15.
    """
    weight = pack_codes(torch.full((64, 64), 127, dtype=torch.int8), 16)
    codes = torch.full((16, 64), 255, dtype=torch.uint8)
    products = multiply_codes(codes, weight, torch.ones(64), torch.zeros(64, dtype=torch.int64))
    if (products == 64 * 127 * 127).all():
        return 127
    logger.info("int8: weights are rounded to 7 bits, because this processor has no VNNI instructions")
    return 64


class FeedForward(nn.Module):
    """Two linear layers, given so many rows at once that what lies between them stays in the processor's cache."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, states: Tensor) -> Tensor:
        parts = states.flatten(0, -2).split(ROWS_AT_ONCE)
        out = torch.cat([self.second(self.first(part)) for part in parts])
        return out.view(*states.shape[:-1], out.shape[-1])


class FusedAttention(BackendModule):
    """Attention with one product for all projections of the same states: in cross-attention, for keys and values."""

    def __init__(
        self,
        attention: BartAttention,
        linear: Callable[..., nn.Module],
        dtype: torch.dtype,
        kernels: Kernels | None,
        *,
        is_cross: bool = False,
        in_int8: bool = False,
    ) -> None:
        """linear makes one module of several linear layers; dtype is that of queries, keys and values.

        in_int8: with kernels, keep cross-attention's keys and values, or compute self-attention, in 8 bits.
        """
        super().__init__()
        self.heads = attention.heads
        self.kernels = kernels
        self.out_proj = linear([attention.out_proj])
        query, keys_values = [attention.q_proj], [attention.k_proj, attention.v_proj]
        if is_cross:
            self.q_proj, self.kv_proj = linear(query, dtype=dtype), linear(keys_values, dtype=dtype)
        else:
            self.qkv_proj = linear(query + keys_values, dtype=dtype)
        self.keeps_codes = kernels is not None and in_int8 and is_cross
        width = attention.q_proj.out_features // attention.heads
        can_attend = kernels is not None and kernels.attends_in_int8 and width == WIDTH
        self.attends_in_int8 = in_int8 and not is_cross and can_attend

    def _split(self, projected: Tensor, parts: int) -> Tensor:
        """(B, L, parts·D) -> (parts, B, H, L, Dh)."""
        return projected.unflatten(-1, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def queries_keys_values(self, states: Tensor) -> tuple[Tensor, ...]:
        return self._split(self.qkv_proj(states), 3).unbind(0)

    def queries(self, states: Tensor) -> Tensor:
        return self._split(self.q_proj(states), 1)[0]

    def keys_values(self, states: Tensor) -> tuple[Tensor, ...]:
        """Keys and values as in `BartAttention`, or (B, H, L, Dh + 4) in int8."""
        if self.kernels is not None and self.keeps_codes:
            return self.kernels.code_heads(self.kv_proj(states), 2, self.heads).unbind(0)
        # Each head's rows lie together in memory, because every step reads them so.
        return self._split(self.kv_proj(states), 2).contiguous().unbind(0)

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend like `BartAttention.forward`; keys and values may also be those of `Kernels.code_heads`."""
        if self.kernels is not None and not is_causal:
            if mask is not None and mask.dtype == torch.bool:
                mask = additive(mask, torch.float32)
            if (context := self._by(self.kernels, query, keys, values, mask)) is not None:
                return context
        return self.backend.attend(query, keys, values, mask, is_causal).transpose(1, 2).flatten(2)

    def _by(self, kernels: Kernels, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor | None:
        """The context (B, T, D) by the fastest compiled function; None where torch is faster."""
        # At all lengths, so that a row's result does not depend on how far it is padded.
        if self.attends_in_int8 and query.shape[2] <= MOST_KEYS:
            return kernels.attend_many(query, keys, values, mask)
        has_code = kernels.is_avx512 and keys.dtype == torch.bfloat16  # for this processor
        if query.shape[2] <= MOST_QUERIES or has_code or keys.dtype == torch.int8:
            return kernels.attend(query, keys, values, mask)
        if kernels.multiplies_fp32 and keys.dtype == torch.float32:
            return kernels.attend_dropped(query, keys, values, mask, False, NO_DRAWS).transpose(1, 2).flatten(2)
        return None


class Packer:
    """Makes the modules of a copy for inference, whose weights and states are of its `dtype`, int8's apart."""

    def __init__(self, precision: str, device: torch.device, leaves_out_padding: bool) -> None:
        """Raises InputError for an unknown precision, and for int8 where it cannot be computed.

        leaves_out_padding: compute no rows of padding on GPUs; CPUs always compute them.
        """
        if precision not in PRECISIONS:
            raise InputError(f"precision is {precision!r}; allowed: {', '.join(PRECISIONS)}")
        on_cpu = device.type == "cpu"
        self.backend = CpuBackend() if on_cpu else CudaBackend(leaves_out_padding)
        self.is_int8 = precision == "int8"
        if self.is_int8 and not on_cpu:
            raise InputError(f"precision is 'int8' and the model is on {device}; int8 runs on the CPU")
        if self.is_int8 and (reason := why_not_packed(torch.float32)) is not None:
            raise InputError(f"precision is 'int8', which oneDNN computes; {reason}")
        self.dtype = PRECISIONS[precision]
        if on_cpu and precision == "bf16" and (reason := why_not_packed(torch.bfloat16)) is not None:
            logger.warning("bf16 cannot be computed here (%s); inference is in fp32 instead", reason)
            self.dtype = torch.float32
        self.packs = on_cpu and precision != "fp16" and why_not_packed(self.dtype) is None
        self.kernels = load() if on_cpu and precision != "fp16" else None
        has_bf16 = torch.cpu.get_capabilities().get("avx512_bf16", False)
        # The types of queries, keys and values; and of the states inside a feed-forward block, rounded to 8 bits next.
        self.encoder_dtype = torch.bfloat16 if self.is_int8 and has_bf16 else self.dtype
        self.decoder_dtype = torch.bfloat16 if self.is_int8 and (has_bf16 or self.kernels is not None) else self.dtype
        self.inner_dtype = torch.bfloat16 if self.is_int8 else self.dtype

    def replace_modules(self, copied: Any, original: Any) -> None:
        """Give an encoder or decoder layer of the copy fast modules with the weights of the original layer."""
        is_encoder = isinstance(copied, BartEncoderLayer)
        rows, dtype = (ROWS_OF_ENCODER, self.encoder_dtype) if is_encoder else (ROWS_OF_DECODER, self.decoder_dtype)
        linear = functools.partial(self.linear, rows=rows)
        fused = functools.partial(FusedAttention, linear=linear, dtype=dtype, kernels=self.kernels)
        copied.self_attn = fused(original.self_attn, in_int8=self.is_int8 and is_encoder)
        if not is_encoder:
            copied.encoder_attn = fused(original.encoder_attn, is_cross=True, in_int8=self.is_int8)
        copied.fc1 = linear([original.fc1], activation=original.activation, dtype=self.inner_dtype)
        copied.activation = None  # which fc1 applies
        copied.fc2 = linear([original.fc2])
        if self.packs and is_encoder:
            copied.fc1, copied.fc2 = nn.Identity(), FeedForward(copied.fc1, copied.fc2)

    def linear(
        self,
        linears: Sequence[nn.Linear],
        *,
        rows: int = ROWS_OF_DECODER,
        bias: Tensor | None = None,
        activation: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> nn.Module:
        """One linear layer for several with the same inputs; in int8, dtype is that of its outputs."""
        weight = _joined([linear.weight for linear in linears]).to(self.dtype)
        bias = _joined([linear.bias for linear in linears] if bias is None else [bias]).to(self.dtype)
        if self.is_int8:
            return Int8Linear(weight, bias, rows, activation, dtype or self.dtype, self.kernels)
        return PackedLinear(weight, bias, rows if self.packs else None, activation, self.kernels)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0].detach() if len(tensors) == 1 else torch.cat([tensor.detach() for tensor in tensors])
