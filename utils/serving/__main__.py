"""`python -m utils.serving MODEL`: summaries over HTTP."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import torch
import uvicorn

from utils.cli import parse_dataclass, run_main
from utils.serving.app import Service, create_app
from utils.serving.arguments import ServeArguments

# oneDNN keeps compiled kernels, each for some shapes. Requests keep bringing new shapes, and at its own limit of 1024
# kernels they take 200 MB.
KERNELS_KEPT = "128"


def server_of(service: Service) -> uvicorn.Server:
    """A server that, once it runs, answers until SIGTERM or SIGINT."""
    args = service.args
    return uvicorn.Server(
        uvicorn.Config(
            create_app(service),
            args.host,
            args.port,
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
    args = parse_dataclass(ServeArguments, argv, "Serve summaries over HTTP.", prog="python -m utils.serving")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS_KEPT)  # read when torch first computes
    # The decoding thread sets this too. Set there alone, memory grows by 60 MB in 19,200 requests; so, by 20 MB.
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    server_of(Service(*args.load(), args)).run()


if __name__ == "__main__":
    run_main(main)
