"""`python -m utils.serving MODEL`: summaries, or predictions of a model of another task, over HTTP."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.serving.__main__")

import asyncio
import logging
import math
import os
import select
import socket
import time
from collections.abc import Sequence

import torch
import uvicorn

from bart.errors import InputError
from utils.app.cli import parse_dataclass
from utils.serving.app import create_app
from utils.serving.arguments import SUMMARIZATION, ServeArguments
from utils.serving.predictions import PredictionService
from utils.serving.service import Service
from utils.serving.summaries import SummaryService

logger = logging.getLogger("utils.serving")
# oneDNN keeps compiled kernels, each for some shapes. Requests keep bringing new shapes, and at its own limit of 1024
# kernels they take 200 MB.
KERNELS_KEPT = "128"
TICK = 0.05  # seconds


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


class Server(uvicorn.Server):
    """Answers until SIGTERM or SIGINT, and then finishes what is in work. No connection is reset."""

    def __init__(self, service: Service) -> None:
        self.service = service
        quiet = {"log_config": None, "access_log": False, "server_header": False}
        super().__init__(uvicorn.Config(create_app(service), http="h11", ws="none", lifespan="on", **quiet))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End once all that is in work is answered; until then new requests are refused."""
        self.service.is_ending = True
        end = time.monotonic() + self.service.args.drain_seconds
        while self.service.in_work and not self.force_exit and time.monotonic() < end:
            await asyncio.sleep(TICK)
        # A connection that nobody has accepted would be reset when its socket closes.
        while select.select(sockets or [], [], [], 0)[0]:
            await asyncio.sleep(0)
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
        ServeArguments,
        argv,
        "Serve summaries, or predictions of a model of another task, over HTTP.",
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS_KEPT)  # read when torch first computes
    # The decoding thread sets this too. If only that thread does, memory grows by 60 MB in 19,200 requests; if both do,
    # by 20 MB.
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    bound = bound_socket(args.host, args.port)
    logger.info("loading %s ...", args.inference.model)
    server = Server(SummaryService(args) if args.task == SUMMARIZATION else PredictionService(args))
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier service's connections may linger
    bound.listen()
    host, port = bound.getsockname()[:2]
    logger.info("listening at http://%s:%d", f"[{host}]" if ":" in host else host, port)
    server.run(sockets=[bound])
