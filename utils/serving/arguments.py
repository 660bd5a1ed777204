"""The options of the service."""

from __future__ import annotations

from dataclasses import dataclass

from bart.errors import InputError
from utils.arguments import PRECISIONS
from utils.cli import option
from utils.summarize import LONG_DOCUMENTS, SHORTEST_WINDOW

MODEL, LIMITS, SERVER = "model", "limits", "server"


@dataclass(frozen=True)
class ServeArguments:
    model: str = option(section=MODEL, help="checkpoint file, Hub-format directory or Hub name")
    config_path: str | None = option(
        None,
        section=MODEL,
        help="JSON with the decoding options, and the architecture if the checkpoint has none; by default the "
        "checkpoint's own",
    )
    tokenizer: str | None = option(
        None, section=MODEL, help="vocabulary; by default the one that lies with the weights"
    )
    precision: str = option("fp32", section=MODEL, choices=PRECISIONS, help="as in run_eval.py")
    gpus: int | None = option(
        None, section=MODEL, least=0, most=1, help="0 runs on the CPU; by default 1 where there is one"
    )
    threads: int | None = option(
        None, section=MODEL, least=1, help="threads that compute on the CPU; by default torch's choice"
    )
    batch_size: int = option(32, section=MODEL, least=1, help="articles decoded at once")
    long_documents: str = option(
        "join", section=MODEL, choices=LONG_DOCUMENTS, help="what happens to documents longer than max_source_length"
    )
    max_source_length: int | None = option(
        None, section=MODEL, least=SHORTEST_WINDOW, help="tokens that the model reads at once; by default its positions"
    )

    max_body_bytes: int = option(1 << 20, section=LIMITS, least=1, help="bytes of a request's body")
    max_articles_per_request: int = option(
        64, section=LIMITS, least=1, help="articles of a request, a long document's windows counted one by one"
    )
    max_queue: int = option(256, section=LIMITS, least=1, help="articles that wait for a place in the batch")
    max_clients: int = option(512, section=LIMITS, least=1, help="requests to /summarize that are open at once")
    max_beams: int = option(8, section=LIMITS, least=1, help="num_beams that a request may ask for")
    max_summary_length: int | None = option(
        None, section=LIMITS, least=2, help="max_length that a request may ask for; by default the model's positions"
    )
    read_timeout: float = option(10.0, section=LIMITS, above=0, help="seconds a client may take to send a request")
    request_timeout: float = option(60.0, section=LIMITS, above=0, help="seconds from then on to the answer")

    host: str = option("127.0.0.1", section=SERVER, help="address to listen at; 0.0.0.0 for all of the machine's")
    port: int = option(8000, section=SERVER, least=0, most=65535, help="0 takes one that is free")
    drain_seconds: float = option(
        30.0, section=SERVER, least=0, help="seconds after SIGTERM in which requests that are in work are answered"
    )

    def __post_init__(self) -> None:
        if self.max_queue < self.max_articles_per_request:
            raise InputError(
                f"--max_queue is {self.max_queue}; allowed: at least --max_articles_per_request "
                f"({self.max_articles_per_request}), or a request of that size could never be answered"
            )
        if self.gpus == 0 and self.precision in ("fp16", "tf32"):
            raise InputError(f"--precision {self.precision} needs a GPU and --gpus is 0; allowed: fp32, bf16, int8")
        if self.gpus and self.precision == "int8":
            raise InputError(f"--precision int8 runs on the CPU and --gpus is {self.gpus}; allowed: fp16, bf16, fp32")
