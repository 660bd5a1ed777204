"""`python -m utils.serving MODEL`: summaries, or predictions of a model of another task, over HTTP."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.serving.__main__")

import asyncio
import logging
import math
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import hypercorn.asyncio
from fastapi import HTTPException
from fastapi.responses import JSONResponse
from hypercorn.config import Sockets

from bart.errors import InputError
from utils.app.cli import parse_dataclass
from utils.app.signals import Signals
from utils.serving.app import Message, Receive, Send, create_app, failure
from utils.serving.arguments import SUMMARIZATION, ServeArguments
from utils.serving.service import Service
from utils.tasks import task_of

logger = logging.getLogger("utils.serving")
# oneDNN keeps compiled kernels, each for some shapes. Requests keep bringing new shapes, and at its own limit of 1024
# kernels they take 200 MB.
KERNELS_KEPT = "128"
MOST_DESCRIPTORS = 4096  # files and connections; further connections wait
TICK = 0.05  # seconds
MOST_CLOSING = 5  # seconds in which clients read their last answers


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that holds an address while the model is loaded."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host is {host}, --port is {port}: cannot listen there ({error})") from None


class Listening(socket.socket):
    """A socket whose queue is long: asyncio's `backlog` is also the number of connections accepted in one turn."""

    def listen(self, backlog: int = 0) -> None:
        super().listen(socket.SOMAXCONN)


class Config(hypercorn.Config):
    """The options of hypercorn, with a socket that is bound already."""

    def __init__(self, bound: socket.socket, read_timeout: float) -> None:
        super().__init__()
        self.listening = Listening(fileno=bound.detach())
        self.keep_alive_timeout = read_timeout  # from a connection's beginning to its header, too
        self.graceful_timeout = min(read_timeout + 1, MOST_CLOSING)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux then closes connections whose clients do not read
            self.listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(1000 * read_timeout))
        self.backlog = 1  # where descriptors run out, asyncio logs an error for each that it tries to accept
        self.max_app_queue_size = 0  # no limit, since hypercorn waits for room in it to end a request that was refused
        self.include_server_header = False
        self.errorlog = logging.getLogger("hypercorn.error")
        self.errorlog.setLevel(logging.WARNING)

    def create_sockets(self) -> Sockets:
        self.listening.setblocking(False)
        return Sockets([], [self.listening], [])


async def serve(service: Service, bound: socket.socket, is_to_end: Callable[[], object]) -> None:
    """Answer until `is_to_end` says so, and then finish what is in work, for as long as --drain_seconds says."""

    async def end() -> None:
        while not is_to_end():
            await asyncio.sleep(TICK)
        service.is_ending = True
        end = time.monotonic() + service.args.drain_seconds
        while service.in_work and time.monotonic() < end:
            await asyncio.sleep(TICK)
        service.has_ended.set_result(None)

    host, port = bound.getsockname()[:2]
    logger.info("listening at http://%s:%d", f"[{host}]" if ":" in host else host, port)
    await hypercorn.asyncio.serve(create_app(service), Config(bound, service.args.read_timeout), shutdown_trigger=end)


@contextmanager
def answered(bound: socket.socket, read_timeout: float) -> Iterator[None]:
    """Answer at the socket meanwhile: /livez by 200, and all else by 503, since the model is being loaded."""
    has_loaded = threading.Event()

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {"Retry-After": "5", "Connection": "close"}
            loading = failure(HTTPException(503, "the model is being loaded", headers))
            is_live = scope["path"] == "/livez"
            await (JSONResponse({"status": "loading"}, 200, headers) if is_live else loading)(scope, receive, send)

    loaded = partial(asyncio.to_thread, has_loaded.wait)
    server = hypercorn.asyncio.serve(answer, Config(bound.dup(), read_timeout), shutdown_trigger=loaded)
    thread = threading.Thread(target=asyncio.run, args=[server], daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_loaded.set()
        thread.join()


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(
        ServeArguments, argv, "Serve summaries, or predictions of a model of another task, over HTTP."
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS_KEPT)  # read when torch first computes
    bound = bound_socket(args.host, args.port)
    with answered(bound, args.read_timeout):
        import torch  # here, because --help needs none of it

        from utils.serving.predictions import PredictionService
        from utils.serving.summaries import SummaryService

        # The engine's thread sets this too. If only that thread does, memory grows by 60 MB in 19,200 requests; if both
        # do, by 20 MB.
        if args.threads is not None:
            torch.set_num_threads(args.threads)
        args = replace(args, task=task_of(args.inference.model, args.task))
        logger.info("loading %s ...", args.inference.model)
        service = SummaryService(args) if args.task == SUMMARIZATION else PredictionService(args)
    for name in ("utils.data.tokenized", "utils.prediction.summarizing"):  # which tell of texts that are cut or split
        logging.getLogger(name).setLevel(logging.ERROR)  # here the answers do
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    signals = Signals(lambda number: None)
    asyncio.run(serve(service, bound, lambda: signals.number))
    if signals.number:
        signal.signal(signals.number, signals.before[signals.number])
        signal.raise_signal(signals.number)  # the program tells it
