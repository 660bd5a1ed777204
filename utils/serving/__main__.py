"""`python -m utils.serving MODEL`: summaries over HTTP."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Sequence

import torch

from utils.cli import parse_dataclass, run_main
from utils.loading import check_gpus, for_inference, load_for_evaluation
from utils.serving.app import Service
from utils.serving.arguments import ServeArguments
from utils.serving.server import bound_socket, serve

logger = logging.getLogger("utils.serving")
# That oneDNN keeps, each for some shapes. Requests bring ever new ones, and at its own limit of 1024 they are 200 MB.
KERNELS_KEPT = "128"


def main(argv: Sequence[str] | None = None) -> None:
    """Load a model and serve it until SIGTERM or SIGINT.

    Raises:
        InputError: anything wrong with options, checkpoint or address.
    """
    args = parse_dataclass(ServeArguments, argv, "Serve summaries over HTTP.", prog="python -m utils.serving")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS_KEPT)  # read where torch first computes
    if args.gpus is None:
        args = dataclasses.replace(args, gpus=int(torch.cuda.is_available()))
    check_gpus(args.gpus)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    bound = bound_socket(args.host, args.port)
    model, tokenizer = load_for_evaluation(args.model, args.config_path, args.tokenizer)
    model = for_inference(model.to("cuda" if args.gpus else "cpu"), args.precision)
    service = Service(model, tokenizer, args)
    host, port = bound.getsockname()[:2]
    logger.info("listening at http://%s:%d", f"[{host}]" if ":" in host else host, port)
    serve(service, bound)
    logger.info("ended")


if __name__ == "__main__":
    run_main(main)
