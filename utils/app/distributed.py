"""Exchanges between the processes of a run, by torch.distributed. A process alone gets its own values."""

from __future__ import annotations

import os
import pickle
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from multiprocessing.util import Finalize
from typing import Any

import torch.distributed as dist
import xxhash

from bart.errors import InputError
from utils.app.errors import RunError
from utils.app.machine import is_first, is_first_here
from utils.app.signals import Interruption

# How long a process waits for another one that is slower. Where one dies, torchrun ends the others at once; only a
# machine that vanishes from the network is noticed so late.
PATIENCE = timedelta(hours=1)
LAST_SECONDS = 5  # in which the first process waits at its end for the others
# How gloo, which raises plain RuntimeErrors, says that it lost another process.
_LOST_PEER = re.compile("gloo|[Cc]onnection (closed|reset|refused)|Broken pipe")


@contextmanager
def connected(remedy: str) -> Iterator[None]:
    """Connect processes that torchrun started, unless they are; the remedy is advice where one is lost."""
    with lost_peers_named(remedy):
        if "LOCAL_RANK" not in os.environ or dist.is_initialized():
            yield
            return
        meeting()
        # They exchange results only, which lie on the CPU, and a process that waits in gloo takes no time of the CPU.
        dist.init_process_group("gloo", timeout=PATIENCE)
        try:
            yield
        finally:
            dist.destroy_process_group()


@contextmanager
def lost_peers_named(remedy: str) -> Iterator[None]:
    """Raise RunError where another process is gone; there, and where a signal ends the program, say the remedy."""
    try:
        yield
    except Interruption as interruption:
        raise Interruption(interruption.number, remedy) from None
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or _LOST_PEER.search(str(error))
        if "LOCAL_RANK" not in os.environ or isinstance(error, RunError) or not lost:
            raise
        reason = str(error).splitlines()[0]
        raise RunError(f"another process of this run is gone, or cannot be reached ({reason}); {remedy}") from error


@cache
def meeting() -> dist.Store | None:
    """The store where processes that torchrun started meet, before they are connected, too; None where it did not.

    Where it restarted them on one machine, they get a store of their own: torchrun's has the addresses of dead ones. On
    several machines torchrun must make one, where TORCH_DISABLE_SHARE_RDZV_TCP_STORE is 1, as scripts set it.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    variables = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE", "GROUP_WORLD_SIZE")
    attempt, shares, machines = map(os.environ.get, variables)
    if attempt not in (None, "0") and (shares, machines) == ("True", "1"):
        host = os.environ["MASTER_ADDR"]
        old = dist.TCPStore(host, int(os.environ["MASTER_PORT"]), is_master=False)
        if os.environ["RANK"] == "0":
            # The rendezvous below takes the same server.
            own = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, multi_tenant=True)
            old.set(f"port {attempt}", str(own.port))
        os.environ["MASTER_PORT"] = old.get(f"port {attempt}").decode()
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    store, rank, world = next(iter(dist.rendezvous("env://")))
    Finalize(None, _leave, (store, rank, world), exitpriority=0)
    return store


def _leave(store: dist.Store, rank: int, world: int) -> None:
    """Let the first process, which may hold the store, end after the others, which may still have to read there."""
    with suppress(RuntimeError):  # the store is gone, or the first process is
        left, until = store.add("left", 1), time.monotonic() + LAST_SECONDS
        while rank == 0 and left < world and time.monotonic() < until:
            time.sleep(0.01)
            left = store.add("left", 0)


def told_by_first(what: str, work: Callable[[], Any], of_all: bool = False) -> Any:
    """The result of work that the first process of a machine, or of all, does alone; each process raises its error.

    They need not be connected. Processes that Lightning starts later find in their environment what it gave.
    """
    variables = ("TORCHELASTIC_RESTART_COUNT",) if of_all else ("TORCHELASTIC_RESTART_COUNT", "GROUP_RANK")
    identity = what, *map(os.environ.get, variables)
    store, key = meeting(), f"BART_{xxhash.xxh3_64_hexdigest(repr(identity).encode())}"
    if is_first() if of_all else is_first_here():
        try:
            told = None, work()
        except (InputError, RunError) as caught:
            told = caught, None
        os.environ[key] = pickle.dumps(told).hex()
        if store is not None:
            store.set(key, os.environ[key])
    elif store is not None:
        with lost_peers_named("its own message says why"):
            store.wait([key], timedelta(days=1))
            told = pickle.loads(bytes.fromhex(store.get(key).decode()))
    elif key in os.environ:
        told = pickle.loads(bytes.fromhex(os.environ[key]))
    else:  # a launcher that is not known
        return work()
    error, result = told
    if error is not None:
        raise error
    return result


def rank_and_world() -> tuple[int, int]:
    """The number of this process, from 0, and the number of connected processes."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def from_all(value: Any) -> list[Any]:
    """Return the values of all processes, in order of rank, in all processes."""
    values = [value] * rank_and_world()[1]
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values
