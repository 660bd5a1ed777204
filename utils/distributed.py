"""What processes that work together tell each other, by torch.distributed; alone, a process talks to itself."""

from __future__ import annotations

import re
from typing import Any

import torch.distributed as dist

from utils.cli import RunError

# How gloo, which raises plain RuntimeErrors, says that it lost another process.
_LOST_PEER = re.compile("gloo|[Cc]onnection (closed|reset|refused)|Broken pipe")


def rank_and_world() -> tuple[int, int]:
    """This process's number, from 0, and how many there are that can talk to each other."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def from_first(value: Any) -> Any:
    """What the first process gave, in all of them."""
    if rank_and_world()[1] == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def at_first(value: Any) -> list[Any] | None:
    """What every process gave, in order of rank, in the first process; None in the others."""
    rank, world = rank_and_world()
    if world == 1:
        return [value]
    values: list[Any] | None = [None] * world if rank == 0 else None
    dist.gather_object(value, values)
    return values


def is_lost_peer(error: BaseException) -> bool:
    """Whether an exchange failed because another process is gone or cannot be reached."""
    lost = isinstance(error, dist.DistError) or _LOST_PEER.search(str(error)) is not None
    return lost and not isinstance(error, RunError)
