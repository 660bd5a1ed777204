"""Members of torch that are not public, in one place, since another release may change or lack them.

Shapes: N rows, I inputs, O outputs.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import torch
from torch import Tensor

# Operations on all tensors of a list at once: `foreach.add_(tensors, 1)`.
try:
    foreach = SimpleNamespace(
        **{
            name: getattr(torch, f"_foreach_{name}")
            for name in "add_ addcmul_ clamp_min_ copy_ div_ lerp_ mul mul_ norm reciprocal_ rsqrt sqrt".split()
        }
    )
except AttributeError as error:
    raise ImportError(f"torch {torch.__version__}: {error}; install the release of requirements.txt") from error


def compile_whole_layers() -> None:
    """Prepare `torch.compile` for functions that are compiled layer by layer."""
    from torch._dynamo import config  # which takes seconds to load

    config.optimize_ddp = False  # it cuts graphs where DDP's buckets end, and layers are small enough
    config.recompile_limit = max(config.recompile_limit, 32)  # with and without masks, dropout, gradients of the inputs


def leave_scaling(optimizer: torch.optim.Optimizer, is_left: bool = True) -> None:
    """Let a fused optimizer leave fp16's loss scaling to the caller, as all others do, or take part in it."""
    optimizer._step_supports_amp_scaling = not is_left  # type: ignore[attr-defined]


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
    """Unsigned codes (N, I), of which 128 stands for 0, times a packed weight of signed ones -> (N, O) in fp32.

    Args:
        scale: (O,), what the products of codes are multiplied by.
        zero_point: (O,) zeros.
    """
    return torch.ops.onednn.qlinear_pointwise(
        codes, 1.0, 128, weight, scale, zero_point, None, 1.0, 0, torch.float32, "none", [], ""
    )
