"""The options of the service."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from bart.errors import InputError
from utils.app.cli import all_options, option
from utils.prediction.options import MODEL, InferenceOptions, LongDocumentOptions
from utils.tasks import TASKS

API_KEY = "BART_API_KEY"
SUMMARIZATION = "summarization"
OF_SUMMARIES = ("long_documents", "max_beams")  # options of no other task


@dataclass(frozen=True, kw_only=True)
class ServeArguments:
    """The options of the service; those of the model and of long documents are parts of their own."""

    task: str | None = option(
        None,
        section=MODEL,
        help=f"what the model does: {', '.join(TASKS)}, or the path of a Python file with a task; by default its own",
    )
    threads: int | None = option(None, least=1, help="threads that compute on the CPU; by default torch's choice")
    batch_size: int = option(32, least=1, help="articles to decode at once; half of them if memory runs out")

    max_body_bytes: int = option(1 << 20, section="limits", least=1, help="most bytes of a request's body")
    max_queue: int = option(256, least=1, help="most articles that wait or are in work, of any length")
    max_clients: int = option(512, least=1, help="most requests that are answered at once")
    max_beams: int = option(8, least=1, help="greatest num_beams of a request")
    read_timeout: float = option(
        10.0, above=0, help="seconds that a client has to send a header, to send a body, and to read an answer"
    )
    request_timeout: float = option(60.0, above=0, help="seconds from the whole request to the answer")
    drain_seconds: float = option(
        20.0, above=0, help="seconds after a signal to end in which requests in work are finished"
    )

    host: str = option("127.0.0.1", section="server", help="address to listen at; 0.0.0.0 is all addresses")
    port: int = option(8000, least=0, most=65535, help="port to listen at; 0 takes a free one")
    allowed_hosts: tuple[str, ...] = option(
        (),
        help="other names of the service that a Host header may have, such as *.example.com; IP addresses, "
        "localhost and the machine's own name are always allowed",
    )
    api_key: str | None = option(
        None, help=f"key that requests must have; other users of the machine do not see it in {API_KEY}", reaches=bool
    )

    inference: InferenceOptions
    documents: LongDocumentOptions

    def __post_init__(self) -> None:
        for field, value in all_options(self):
            if self.task not in (None, SUMMARIZATION) and field.name in OF_SUMMARIES and value != field.default:
                raise InputError(f"--{field.name} is {value}; it is of --task {SUMMARIZATION}; this is {self.task}")
        if self.key is not None and not re.fullmatch("[!-~]+", self.key):
            raise InputError(
                f"--api_key or {API_KEY} has {len(self.key)} characters; allowed: visible ASCII, no spaces"
            )

    @property
    def key(self) -> str | None:
        return os.environ.get(API_KEY) if self.api_key is None else self.api_key
