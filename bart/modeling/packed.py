"""Weights laid out for inference: fused projections, packed matrices, int8.

Shapes: N rows (articles times positions), I input width, O output width, and those of `modeling_bart`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bart.errors import InputError
from bart.generation.cache import additive
from bart.modeling.kernels import MOST_KEYS, WIDTH, Kernels, PackedCodes, load
from bart.modeling.modeling_bart import BartAttention, BartForConditionalGeneration

# Hints at the rows of a product, for which its weight is laid out: an article's tokens, and some articles' beams.
ROWS_OF_ENCODER, ROWS_OF_DECODER = 1024, 16
# Queries up to which the compiled attention is the faster one where it is not written for the processor.
MOST_QUERIES = 32
TINY = torch.finfo(torch.float32).tiny  # in the place of the largest value of a row of zeros
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.float32}


class PackedLinear(nn.Module):
    """A linear layer whose weight lies in the blocks that oneDNN's matrix kernels read.

    Packing once saves what a plain layer does in every call: with the few rows of a decoding step, several times the
    work of the product itself.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int) -> None:
        """weight (O, I), bias (O,); rows is a hint at N, which may differ from call to call."""
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
        self.bias = bias

    def forward(self, states: Tensor) -> Tensor:
        """(..., I) -> (..., O)."""
        return torch.ops.mkldnn._linear_pointwise(states, self.weight, self.bias, "none", [], "")


class Int8Linear(nn.Module):
    """A linear layer with weights and inputs of 8 bits, products summed in 32 bits.

    Weights have one scale per output, inputs one per row, found in each call (dynamic quantisation; Zafrir et al.,
    2019, arXiv:1910.06188), so that no row's result depends on the rows it shares a batch with.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int, dtype: torch.dtype = torch.float32) -> None:
        """weight (O, I) and bias (O,) in fp32; rows is a hint at N, which may differ from call to call.

        dtype is that of the result, fp32 or bf16.
        """
        super().__init__()
        self.dtype = dtype
        self.gelu = False  # whether the activation is computed here
        self.kernels = load()
        peak = weight.abs().amax(dim=1).clamp(min=TINY)
        codes = (weight * (127 / peak[:, None])).round_().to(torch.int8)
        scale = peak / 127**2  # of a product of two codes, apart from the row's own
        bias = torch.zeros_like(scale) if bias is None else bias
        if self.kernels is not None and self.kernels.multiplies:
            self.weight = PackedCodes(codes, scale, bias)
        else:
            self.weight, self.bias = torch.ops.onednn.qlinear_prepack(codes, [rows, weight.shape[1]]), bias
            self.scale, self.zero_point = scale, torch.zeros(len(peak), dtype=torch.int64)

    def forward(self, states: Tensor) -> Tensor:
        """(..., I) of any float type -> (..., O)."""
        rows = states.flatten(0, -2).contiguous()
        activation = "gelu" if self.gelu else "none"
        if isinstance(self.weight, PackedCodes):
            out = self.kernels.multiply(rows, self.weight, activation, self.dtype)
        elif self.kernels is not None:
            codes, peak = self.kernels.quantize_rows(rows)
            out = self.kernels.finish(self._products(codes), peak, self.bias, activation, self.dtype)
        else:
            rows = rows.float()
            peak = rows.abs().amax(dim=1, keepdim=True).add_(TINY)
            # Adding 128 to signed codes wraps around to the unsigned ones.
            codes = (rows * (127 / peak)).round_().to(torch.int8).view(torch.uint8).add_(128)
            out = self._products(codes).mul_(peak).add_(self.bias)
            out = (F.gelu(out) if self.gelu else out).to(self.dtype)
        return out.view(*states.shape[:-1], -1)

    def _products(self, codes: Tensor) -> Tensor:
        """Codes (N, I) of which 128 stands for 0 -> (N, O): oneDNN multiplies unsigned by signed."""
        return torch.ops.onednn.qlinear_pointwise(
            codes, 1.0, 128, self.weight, self.scale, self.zero_point, None, 1.0, 0, torch.float32, "none", [], ""
        )


class FusedAttention(BartAttention):
    """Attention that projects the same states in one product."""

    def __init__(
        self,
        attention: BartAttention,
        pack: Callable[..., nn.Module],
        is_cross: bool,
        dtype: torch.dtype,
        in_int8: bool = False,
    ) -> None:
        """Take over the weights of `attention`; is_cross: keys and values come from other states than queries.

        dtype is that of queries, keys and values. in_int8, where there are kernels for it: keys and values of other
        states are kept in 8 bits, and attention of all positions to all is computed in 8 bits.
        """
        nn.Module.__init__(self)
        self.heads = attention.heads
        self.dropout = 0.0
        self.kernels = load() if attention.q_proj.weight.is_cpu and dtype != torch.float16 else None
        self.codes = in_int8 and is_cross and self.kernels is not None
        query, key, value = attention.q_proj, attention.k_proj, attention.v_proj
        if is_cross:
            self.q_proj = pack([query], result=dtype)
            self.kv_proj = pack([key, value], result=dtype)
        else:
            self.qkv_proj = pack([query, key, value], result=dtype)
        self.out_proj = pack([attention.out_proj])
        width = query.out_features // attention.heads
        has_kernel = self.kernels is not None and self.kernels.multiplies and width == WIDTH
        self.in_int8 = in_int8 and not is_cross and has_kernel

    def _split_all(self, projected: Tensor, parts: int) -> Tensor:
        """(B, L, parts·D) -> (parts, B, H, L, Dh)."""
        return projected.unflatten(-1, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        written_for = self.kernels is not None and self.kernels.is_avx512 and keys.dtype == torch.bfloat16
        suits = query.shape[2] <= MOST_QUERIES or self.codes or written_for
        many = self.in_int8 and query.shape[2] <= MOST_KEYS  # of all lengths, so that padding changes nothing
        if self.kernels is not None and (suits or many) and not is_causal:
            if mask is not None and mask.dtype == torch.bool:
                mask = additive(mask, torch.float32)
            if many:
                return self.out_proj(self.kernels.attend_many(query, keys, values, mask))
            return self.out_proj(self.kernels.attend(query, keys, values, mask))
        return super().forward(query, keys, values, mask, is_causal)

    def queries(self, states: Tensor) -> Tensor:
        return self._split_all(self.q_proj(states), 1)[0]

    def keys_values(self, states: Tensor) -> tuple[Tensor, ...]:
        if self.codes:
            return self.kernels.code_heads(self.kv_proj(states), 2, self.heads).unbind(0)
        # Heads after one another, as every step reads them.
        return self._split_all(self.kv_proj(states), 2).contiguous().unbind(0)

    def queries_keys_values(self, states: Tensor) -> tuple[Tensor, ...]:
        return self._split_all(self.qkv_proj(states), 3).unbind(0)


class InferenceBart(BartForConditionalGeneration):
    """A BART whose weights do not change any more: what it encoded last it remembers.

    Its head adds `final_logits_bias` itself.
    """

    remembered: tuple[Tensor, Tensor | None, Tensor] | None = None
    kernels: Kernels | None = None

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)

    def log_softmax(self, logits: Tensor) -> Tensor:
        return super().log_softmax(logits) if self.kernels is None else self.kernels.log_softmax(logits)

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encoder states (B, S, D) of input_ids (B, S); for the same input as before, the same tensor again."""
        if self.remembered is not None:
            ids, mask, states = self.remembered
            same_mask = mask is attention_mask or (
                mask is not None and attention_mask is not None and torch.equal(mask, attention_mask)
            )
            if same_mask and torch.equal(ids, input_ids):
                return states
        states = super().encode(input_ids, attention_mask)
        mask = None if attention_mask is None else attention_mask.clone()
        self.remembered = input_ids.clone(), mask, states
        return states


def inference_copy(model: BartForConditionalGeneration, precision: str) -> BartForConditionalGeneration:
    """See `BartForConditionalGeneration.for_inference`."""
    if isinstance(model, InferenceBart):
        raise InputError("the model is a copy for inference; allowed: for_inference() of the model it was made from")
    if precision not in PRECISIONS:
        raise InputError(f"precision is {precision!r}; allowed: {', '.join(PRECISIONS)}")
    dtype = PRECISIONS[precision]
    if model.device.type != "cpu" and precision == "int8":
        raise InputError(f"precision is 'int8' and the model is on {model.device}; int8 runs on the CPU")
    if precision == "int8" and not torch.backends.mkldnn.is_available():
        raise InputError("precision is 'int8'; this build of torch lacks oneDNN, which computes it")

    packs = model.device.type == "cpu" and torch.backends.mkldnn.is_available() and precision != "fp16"

    def pack(
        linears: Sequence[nn.Linear], rows: int, bias: Tensor | None = None, result: torch.dtype = dtype
    ) -> nn.Module:
        weight = torch.cat([linear.weight.detach() for linear in linears]).to(dtype)
        if bias is None:
            bias = torch.cat([linear.bias.detach() for linear in linears])
        bias = bias.to(dtype)
        if precision == "int8":
            return Int8Linear(weight, bias, rows, result)
        if packs:
            return PackedLinear(weight, bias, rows)
        fused = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
        fused.weight = nn.Parameter(weight, requires_grad=False)
        fused.bias = nn.Parameter(bias, requires_grad=False)
        return fused

    of_encoder = of_decoder = inner = dtype  # queries, keys and values; what the feed-forward block has inside
    if precision == "int8":
        quick = torch.cpu._is_avx512_bf16_supported()
        of_encoder = torch.bfloat16 if quick else dtype
        of_decoder = torch.bfloat16 if quick or load() is not None else dtype
        inner = torch.bfloat16  # it is rounded to 8 bits next
    # What stands in the memo is taken for the copy, not copied: no matrix lies in memory in two layouts longer than
    # its packing takes.
    memo: dict[int, Any] = {}
    stacks = (model.model.encoder, ROWS_OF_ENCODER, of_encoder), (model.model.decoder, ROWS_OF_DECODER, of_decoder)
    for stack, rows, attention_dtype in stacks:
        for layer in stack.layers:
            memo[id(layer.fc1)] = pack([layer.fc1], rows, result=inner)
            memo[id(layer.fc2)] = pack([layer.fc2], rows)
            in_int8 = precision == "int8" and stack is model.model.encoder
            memo[id(layer.self_attn)] = FusedAttention(
                layer.self_attn, partial(pack, rows=rows), False, attention_dtype, in_int8=in_int8
            )
    for layer in model.model.decoder.layers:
        memo[id(layer.encoder_attn)] = FusedAttention(
            layer.encoder_attn, partial(pack, rows=ROWS_OF_DECODER), True, of_decoder, in_int8=precision == "int8"
        )
    memo[id(model.lm_head)] = pack([model.lm_head], ROWS_OF_DECODER, model.final_logits_bias[0])
    for tensor in model.parameters():
        memo[id(tensor)] = nn.Parameter(tensor.detach().to(dtype), requires_grad=False)
    for tensor in model.buffers():
        memo[id(tensor)] = tensor.to(dtype)
    fast = copy.deepcopy(model, memo).eval()
    fast.__class__ = InferenceBart
    fast.kernels = load() if model.device.type == "cpu" and precision != "fp16" else None
    if precision == "int8":
        for layer in (*fast.model.encoder.layers, *fast.model.decoder.layers):
            if layer.activation is F.gelu:
                layer.fc1.gelu, layer.activation = True, nn.Identity()
            if fast.kernels is not None:
                layer.add_and_norm = fast.kernels.add_and_norm
    return fast
