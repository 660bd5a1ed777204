"""Members of torch that are not public, in one place, since another release may change or lack them."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

# Operations on all tensors of a list at once: `foreach.add_(tensors, 1)`.
_NAMES = "add_ addcmul_ copy_ div_ lerp_ mul mul_ norm reciprocal_ sqrt zero_".split()
foreach = SimpleNamespace(**{name: getattr(torch, f"_foreach_{name}") for name in _NAMES})
fused_adamw_ = torch._fused_adamw_


def leave_scaling(optimizer: torch.optim.Optimizer, is_left: bool = True) -> None:
    """Let a fused optimizer leave fp16's loss scaling to the caller, as all others do, or take part in it."""
    optimizer._step_supports_amp_scaling = not is_left  # type: ignore[attr-defined]


def is_ampere(device: torch.device) -> bool:
    """True for NVIDIA's GPUs from Ampere on."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def has_flash(device: torch.device, dtype: torch.dtype) -> bool:
    """True if `attend_to_spans` computes on such a device in such a type."""
    is_half = dtype in (torch.float16, torch.bfloat16)
    return is_half and is_ampere(device) and torch.backends.cuda.is_flash_attention_available()


def attend_to_spans(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    starts: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    is_causal: bool,
    dropout: float,
) -> Tensor:
    """FlashAttention among the rows of each article (Dao, 2023, arXiv:2307.08691).

    torch's public function for this, `torch.nn.attention.varlen`, has no dropout. Its memory-efficient attention, which
    computes in fp32, too, drops other weights in the backward pass than in the forward pass where articles have lengths
    of their own (torch 2.11; https://github.com/pytorch/pytorch/issues/115590).

    query, keys, values and the result are (N, H, Dh), of N rows. starts (B + 1,) in int32, of queries and of keys, are
    the first rows of the articles, and N; longest are the most rows of each that an article has.
    """
    width = query.shape[2]
    if lacking := -width % 8:  # the kernel takes multiples of 8
        query, keys, values = (F.pad(states, (0, lacking)) for states in (query, keys, values))
    arguments = query, keys, values, *starts, *longest, dropout, is_causal, False
    return torch.ops.aten._flash_attention_forward(*arguments, scale=width**-0.5)[0][..., :width]


def pack(weight: Tensor, rows: int) -> Tensor:
    """A weight (O, I) in the block layout that oneDNN's matrix kernels read; rows is a hint at N."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)


def packed_linear(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(…, I) -> (…, O), with a packed weight."""
    return torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")


@functools.cache
def why_not_packed(dtype: torch.dtype) -> str | None:
    """Why oneDNN has no linear layers in this type, for example on processors without instructions for it; or None."""
    if not torch.backends.mkldnn.is_available():
        return "this build of torch lacks oneDNN"
    ones = torch.ones(16, 16, dtype=dtype)
    try:
        packed_linear(ones, pack(ones, 16), ones[0])
    except (RuntimeError, AttributeError) as error:
        return str(error).split("\n")[0]
    return None


def pack_codes(codes: Tensor, rows: int) -> Tensor:
    """A weight (O, I) of signed codes in the layout that `multiply_codes` reads; rows is a hint at N."""
    return torch.ops.onednn.qlinear_prepack(codes, [rows, codes.shape[1]])


def multiply_codes(codes: Tensor, weight: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """Unsigned codes (N, I), of which 128 stands for 0, times a packed weight of signed ones, times a scale (O,), with
    zeros (O,) as zero_point -> (N, O) in fp32.
    """
    return torch.ops.onednn.qlinear_pointwise(
        codes, 1.0, 128, weight, scale, zero_point, None, 1.0, 0, torch.float32, "none", [], ""
    )
