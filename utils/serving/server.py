"""The server process: slow clients are cut, and SIGTERM lets what is in work end."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import time
from concurrent.futures import wait
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from bart.errors import InputError
from utils.serving.app import Service, create_app

logger = logging.getLogger(__name__)
KEEP_ALIVE_SECONDS = 5
# After the last answer: for it to be sent, and for the decoding thread to end.
CLOSING_SECONDS = 3
TRIM_SECONDS = 5


class PunctualProtocol(H11Protocol):
    """uvicorn's HTTP, which also closes connections on which no whole head of a request arrives in time."""

    read_timeout = 10.0  # seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._awaited: asyncio.TimerHandle | None = None
        self._await_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._awaited is not None:
            self._awaited.cancel()

    def _await_request(self) -> None:
        if self._awaited is not None:
            self._awaited.cancel()
        cycle = self.cycle

        def close() -> None:
            if self.cycle is cycle and (cycle is None or cycle.response_complete):
                self.transport.close()

        self._awaited = self.loop.call_later(self.read_timeout, close)


class Server(uvicorn.Server):
    """uvicorn's server, with another end: still answering, it refuses new requests and finishes those in work."""

    def __init__(self, service: Service) -> None:
        protocol = type("Protocol", (PunctualProtocol,), {"read_timeout": service.args.read_timeout})
        super().__init__(
            uvicorn.Config(
                create_app(service),
                http=protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=CLOSING_SECONDS,
            )
        )
        self.service = service
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._trimming = self._loop.create_task(_give_back_memory())
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: the first one lets what is in work end, the second ends at once."""
        if self.service.draining:
            logger.warning("%s again: ending at once", signal.Signals(sig).name)
            os._exit(128 + sig)
        self.service.draining = True
        self._loop.call_soon_threadsafe(self._drain, signal.Signals(sig).name)

    def _drain(self, name: str) -> None:
        self._draining = self._loop.create_task(self._drained(name))

    async def _drained(self, name: str) -> None:
        service, seconds = self.service, self.service.args.drain_seconds
        service.drain()
        logger.info("%s: %d requests in work, which have %g seconds", name, service.answering, seconds)
        end = time.monotonic() + seconds
        while service.answering and time.monotonic() < end:
            await asyncio.sleep(0.02)
        if service.answering:
            logger.warning("%d requests were not done in time", service.answering)
        service.stop()  # which has them answered
        self.should_exit = True


async def _give_back_memory() -> None:
    """Return free memory to the system from time to time, where the C library can.

    Batches of ever other sizes leave gaps between what is in use, and glibc keeps these: 100 MB in a minute.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(TRIM_SECONDS)
        await asyncio.to_thread(trim, 0)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that has an address and does not listen yet: until the model is there, clients are turned away.

    Raises:
        InputError: it cannot be.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        return found
    except OSError as error:
        raise InputError(
            f"--host is {host}, --port is {port}; cannot listen there: {error.strerror or error}"
        ) from None


def serve(service: Service, bound: socket.socket) -> None:
    """Serve until a signal ends it."""
    service.engine.start()
    Server(service).run(sockets=[bound])
    service.engine.stop()
    texts = wait(service.in_pool, CLOSING_SECONDS)
    if not service.engine.join(CLOSING_SECONDS) or texts.not_done:
        # In the midst of a step, or of a text: the interpreter cannot end in order below it.
        logging.shutdown()
        os._exit(0)
