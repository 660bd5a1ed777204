"""`python -m utils.serving MODEL`: summaries, or predictions of a model of another task, over HTTP."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.serving.__main__")

import asyncio
import ctypes
import logging
import math
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import torch
import uvicorn

from bart.errors import InputError
from utils.app.cli import parse_dataclass
from utils.serving.app import create_app
from utils.serving.arguments import HEAD_PATHS, SUMMARIZATION, ServeArguments
from utils.serving.connections import ACCEPTED_AT_ONCE, Connection, most_connections
from utils.serving.predictions import PredictionService
from utils.serving.service import Service
from utils.serving.summaries import SummaryService
from utils.tasks import task_of

logger = logging.getLogger("utils.serving")
# oneDNN keeps compiled kernels, each for some shapes. Requests keep bringing new shapes, and at its own limit of 1024
# kernels they take 200 MB.
KERNELS_KEPT = "128"
TICK = 0.05  # seconds
SO_ATTACH_FILTER = 26  # of Linux; see socket(7)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that holds an address but does not listen yet, so that clients are refused.

    Raises:
        InputError: the address cannot be used.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        # Two sockets that both allow reuse could be bound to one port as long as neither listens.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except (OSError, UnicodeError) as error:
        bound.close()
        raise InputError(f"--host is {host}, --port is {port}: cannot listen there ({error})") from None
    return bound


def refuse_new(listening: socket.socket) -> None:
    """Let a socket ignore attempts to connect from now on; those that are under way come to their end.

    A connection that is made while its listening socket closes would be reset. Elsewhere than on Linux nothing changes.
    """
    # A socket filter: a TCP segment whose flags, in byte 13, have SYN is dropped, and all others pass.
    program = [(0x30, 0, 0, 13), (0x45, 0, 1, 2), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    with suppress(OSError):
        listening.setsockopt(
            socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(code))
        )


class Server(uvicorn.Server):
    """Answers until SIGTERM or SIGINT, and then finishes what is in work. No connection is reset."""

    def __init__(self, service: Service) -> None:
        self.service = service
        quiet = {"log_config": None, "access_log": False, "server_header": False}
        connection = partial(Connection, free={}, most=most_connections(), seconds=service.args.read_timeout)
        config = uvicorn.Config(
            create_app(service), http=connection, ws="none", lifespan="on", backlog=ACCEPTED_AT_ONCE, **quiet
        )
        super().__init__(config)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGHUP ends the service as SIGTERM does, unless it is ignored, as under nohup."""
        with super().capture_signals():
            before, heeded = signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGTERM) == self.handle_exit
            if heeded and before is not signal.SIG_IGN:
                signal.signal(signal.SIGHUP, self.handle_exit)
            yield
            if heeded:
                signal.signal(signal.SIGHUP, before)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Only the system's queue is long: uvicorn's `backlog` also says how many are accepted at once."""
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(socket.SOMAXCONN)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End once all that is in work is answered; until then new requests are refused."""
        self.service.is_ending = True
        end = time.monotonic() + self.service.args.drain_seconds
        while self.service.in_work and not self.force_exit and time.monotonic() < end:
            await asyncio.sleep(TICK)
        for listening in sockets or []:
            refuse_new(listening)
        # A connection that nobody has accepted would be reset when its socket closes, and one that was accepted in the
        # same turn of the event loop as well.
        await asyncio.sleep(TICK)
        while select.select(sockets or [], [], [], 0)[0]:
            await asyncio.sleep(TICK)
        await asyncio.sleep(TICK)
        for server in self.servers:
            server.close()
        # Connections just accepted, and those that are kept, may have a request on its way, from a busy machine too.
        for _ in range(40):
            await asyncio.sleep(TICK)
            if not self.server_state.connections:
                break
        self.config.timeout_graceful_shutdown = max(0, math.ceil(end - time.monotonic()))
        await super().shutdown(sockets)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(
        ServeArguments, argv, "Serve summaries, or predictions of a model of another task, over HTTP."
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS_KEPT)  # read when torch first computes
    # The decoding thread sets this too. If only that thread does, memory grows by 60 MB in 19,200 requests; if both do,
    # by 20 MB.
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    bound = bound_socket(args.host, args.port)
    if (task := task_of(args.inference.model, args.task)) not in (SUMMARIZATION, *HEAD_PATHS):
        allowed = ", ".join((SUMMARIZATION, *HEAD_PATHS))
        raise InputError(f"{args.inference.model} is a model for {task}; allowed here: {allowed}")
    args = replace(args, task=task)
    logger.info("loading %s ...", args.inference.model)
    server = Server(SummaryService(args) if args.task == SUMMARIZATION else PredictionService(args))
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier service's connections may linger
    bound.listen()
    host, port = bound.getsockname()[:2]
    logger.info("listening at http://%s:%d", f"[{host}]" if ":" in host else host, port)
    server.run(sockets=[bound])
