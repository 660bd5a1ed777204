"""The base of a service: it reads a request within limits of time and size, and answers it unless the client leaves."""

from __future__ import annotations

import asyncio
import codecs
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import prometheus_client as prometheus
from fastapi import HTTPException, Request
from pydantic import BaseModel, ValidationError

from bart.files import as_named
from utils.app.errors import RunError
from utils.app.pages import page_template
from utils.serving.arguments import ServeArguments
from utils.serving.requests import explanation

CLIENT_LEFT = 499  # nginx's status for a request whose client did not wait for the answer
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)


def started_thread() -> ThreadPoolExecutor:
    """Make an executor whose one thread runs already, so that a request cannot find that it cannot be started.

    Raises:
        RunError: it cannot be started.
    """
    executor = ThreadPoolExecutor(1)
    try:
        executor.submit(int)
    except RuntimeError as error:
        raise RunError(
            f"the service cannot start: {error}; it needs more memory, or more threads (ulimit -u)"
        ) from None
    return executor


class Service(ABC):
    """Answers the requests to one path.

    Args:
        args: the model, and limits.
        request_model: the body of a request.
        limit: tokens that the model reads at once.
        vocabulary_size: of the model.

    Attributes:
        executor: one thread, which is there in any case.
        path: where requests are sent.
        title, description: for the description of the interface.
        page_file: the template of the page, beside this file.
        answer_model: the body of an answer, with a field `seconds`.
        in_work: requests that were let in and are not answered yet; those with GET, answered at once, do not count.
        is_ending: true once no request is let in any more.
    """

    path: str
    title: str
    description: str
    page_file: str
    answer_model: type[BaseModel]

    def __init__(self, args: ServeArguments, request_model: type[BaseModel], limit: int, vocabulary_size: int) -> None:
        self.args, self.request_model = args, request_model
        self.executor = started_thread()
        path = Path(args.inference.model)
        # Clients see no more of a path than identifies the model.
        name = "/".join((as_named(path) if path.exists() else path).parts[-2:])
        device = "GPU" if args.inference.device == "cuda" else "CPU"
        self.about = (
            f"{name}, {args.inference.precision} on the {device}; it reads {limit:,} tokens at once and has a "
            f"vocabulary of {vocabulary_size:,}."
        )
        self.in_work = 0
        self.is_ending = False
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)  # memory, processor time, open files; on Linux
        self.answers = prometheus.Counter(
            "bart_requests", f"Requests by path and status; {CLIENT_LEFT}: the client left", ["path", "status"],
            registry=self.registry,
        )  # fmt: skip
        self.seconds = prometheus.Histogram(
            f"bart_{self.path[1:]}_seconds", "From a request to its answer", buckets=SECONDS, registry=self.registry
        )

    @property
    @abstractmethod
    def health(self) -> tuple[bool, int, int]:
        """True if requests are answered; how many inputs wait; how many are in work."""

    @abstractmethod
    async def compute(self, content: BaseModel) -> dict[str, Any]:
        """Compute the fields of the answer to a request, but for the time."""

    @abstractmethod
    async def stop(self) -> None:
        """Drop what is in work."""

    def page(self) -> str:
        """HTML, to try the service."""
        return page_template(Path(__file__).with_name(self.page_file)).render(service=self)

    async def answer(self, request: Request) -> BaseModel:
        """Answer, unless the client leaves or time runs out.

        Raises:
            HTTPException, InputError, Busy, DecodingFailed: the request gets no answer.
        """
        content = await self._read(request)
        start = time.perf_counter()
        work = asyncio.ensure_future(self.compute(content))
        departure = asyncio.ensure_future(_departure(request))
        try:
            await asyncio.wait(
                {work, departure}, timeout=self.args.request_timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if not work.done():
                if departure.done():
                    raise HTTPException(CLIENT_LEFT, "the client left")
                raise HTTPException(504, f"the answer was not there within {self.args.request_timeout:g} seconds")
            fields = work.result()
        finally:
            work.cancel()
            departure.cancel()
        seconds = time.perf_counter() - start
        self.seconds.observe(seconds)
        return self.answer_model(**fields, seconds=round(seconds, 4))

    async def _read(self, request: Request) -> BaseModel:
        """Read the body of a request."""
        content_type = request.headers.get("content-type", "")
        # A web page of another origin cannot send JSON without asking this service first.
        if content_type.partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, f"Content-Type is {content_type[:80]!r}; allowed: application/json")
        if (encoding := request.headers.get("content-encoding", "identity")).lower() != "identity":
            raise HTTPException(415, f"Content-Encoding is {encoding[:80]!r}; allowed: none, the JSON as it is")
        try:
            body = await asyncio.wait_for(self._receive(request), self.args.read_timeout)
        except asyncio.TimeoutError:
            message = f"the body did not arrive within {self.args.read_timeout:g} seconds"
            raise HTTPException(408, message, {"Connection": "close"}) from None
        try:
            return self.request_model.model_validate_json(body.removeprefix(codecs.BOM_UTF8))
        except ValidationError as error:
            raise HTTPException(*explanation(error, self.request_model)) from None

    async def _receive(self, request: Request) -> bytearray:
        limit, body = self.args.max_body_bytes, bytearray()
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise HTTPException(CLIENT_LEFT, "the client left")
            body.extend(message.get("body", b""))
            if len(body) > limit:
                raise HTTPException(413, f"the body has more than {limit} bytes; allowed: {limit}")
            if not message.get("more_body"):
                return body


async def _departure(request: Request) -> None:
    """Return when the client of a request whose body was read closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
