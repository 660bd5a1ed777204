"""`python -m utils.serving MODEL`: summaries over HTTP."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from functools import partial

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


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address but does not listen yet, so that clients are refused.

    Raises:
        InputError: the address cannot be used.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except (OSError, UnicodeError) as error:
        bound.close()
        raise InputError(f"--host is {host}, --port is {port}: cannot listen there ({error})") from None
    return bound


def server_of(service: Service) -> uvicorn.Server:
    """A server that, once it runs on a socket, answers until SIGTERM or SIGINT."""
    args = service.args
    return uvicorn.Server(
        uvicorn.Config(
            create_app(service),
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=args.max_clients + 1,  # the limit refuses the connection that reaches it
            timeout_graceful_shutdown=args.drain_seconds,
        )
    )


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(ServeArguments, argv, "Serve summaries over HTTP.")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS_KEPT)  # read when torch first computes
    # The decoding thread sets this too. If only that thread does, memory grows by 60 MB in 19,200 requests; if both do,
    # by 20 MB.
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    bound = bound_socket(args.host, args.port)
    server = server_of(Service(*args.load(), args))
    bound.listen()
    host, port = bound.getsockname()[:2]
    logger.info("listening at http://%s:%d", f"[{host}]" if ":" in host else host, port)
    server.run(sockets=[bound])


command = partial(run_main, main)

if __name__ == "__main__":
    command()
