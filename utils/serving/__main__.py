"""`python -m utils.serving MODEL`: summaries over HTTP."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Sequence
from types import FrameType

import torch
import uvicorn

from bart.errors import InputError
from utils.cli import parse_dataclass, run_main
from utils.serving.app import Service, create_app
from utils.serving.arguments import ServeArguments

logger = logging.getLogger("utils.serving")
# oneDNN keeps compiled kernels, each for some shapes. Requests keep bringing new shapes, and at its own limit of 1024
# kernels they take 200 MB.
KERNELS_KEPT = "128"
CLOSING_SECONDS = 3  # for the decoding thread to end its step


class Server(uvicorn.Server):
    """uvicorn's server for a service. After a signal it ends with status 0, and at once after a second one."""

    def __init__(self, service: Service) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(service),
                http="h11",
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=service.args.drain_seconds,
            )
        )
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        name = signal.Signals(sig).name
        if self.should_exit:
            logger.warning("%s again: ending at once", name)
            os._exit(128 + sig)
        seconds = self.config.timeout_graceful_shutdown
        logger.info("%s: requests in work are answered first, for at most %d seconds", name, seconds)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = sockets[0].getsockname()[:2]
        logger.info("listening at http://%s:%d", f"[{host}]" if ":" in host else host, port)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run(sockets)
        self.service.engine.join(CLOSING_SECONDS)
        logger.info("ended")
        if self.service.engine.alive:  # in a long step, during which the interpreter cannot end in order
            logging.shutdown()
            os._exit(0)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address but does not listen: clients are refused until the model is loaded.

    Raises:
        InputError: the address cannot be used.
    """
    try:
        found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        return found
    except OSError as error:
        raise InputError(
            f"--host is {host}, --port is {port}; cannot listen there: {error.strerror or error}"
        ) from None


def main(argv: Sequence[str] | None = None) -> None:
    """Load a model and serve it until SIGTERM or SIGINT.

    Raises:
        InputError: the options, the checkpoint or the address cannot be used.
    """
    args = parse_dataclass(ServeArguments, argv, "Serve summaries over HTTP.", prog="python -m utils.serving")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS_KEPT)  # read when torch first computes
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    bound = bound_socket(args.host, args.port)
    service = Service(*args.load(), args)
    Server(service).run(sockets=[bound])


if __name__ == "__main__":
    run_main(main)
