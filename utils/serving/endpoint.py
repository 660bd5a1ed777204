"""What answers the requests of a service, whatever its answers are: limits of size and time, and counts."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import prometheus_client as prometheus
from fastapi import HTTPException, Request
from pydantic import BaseModel, ValidationError

from utils.serving.arguments import ServeArguments
from utils.serving.requests import told

CLIENT_LEFT = 499  # nginx's status for a request whose client did not wait for the answer
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)


class Endpoint(ABC):
    """Answers requests.

    Args:
        args: limits, and what is answered with.
        request_model: the body of a request.
        limit: tokens that the model reads at once.
        vocabulary: its size.

    Attributes:
        path: where requests are sent.
        title, doc: for the description of the interface.
        answer_model: the body of an answer, with a field `seconds`.
        in_work: requests that were let in and are not answered yet.
        ending: whether no request is let in any more.
    """

    path: ClassVar[str]
    title: ClassVar[str]
    doc: ClassVar[str]
    answer_model: ClassVar[type[BaseModel]]

    def __init__(self, args: ServeArguments, request_model: type[BaseModel], limit: int, vocabulary: int) -> None:
        self.args, self.request_model = args, request_model
        path = Path(args.model)
        name = "/".join((path.resolve() if path.exists() else path).parts[-2:])  # of a path not more than identifies it
        self.about = (
            f"{name}, {args.precision} on the {'GPU' if args.device == 'cuda' else 'CPU'}; it reads {limit:,} "
            f"tokens at once and has a vocabulary of {vocabulary:,}."
        )
        self.in_work = 0
        self.ending = False
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
    def executor(self) -> ThreadPoolExecutor:
        """A thread that is there in any case."""

    @abstractmethod
    async def fields(self, wanted: BaseModel) -> dict[str, Any]:
        """The fields of the answer, but for the time."""

    @property
    @abstractmethod
    def health(self) -> tuple[bool, int, int]:
        """Whether requests are answered, how many inputs wait, and how many are worked on."""

    @abstractmethod
    def start(self) -> None:
        """Begin to work."""

    @abstractmethod
    async def stop(self) -> None:
        """Drop what is in work."""

    def page(self) -> str:
        """HTML, to try the service."""
        return Path(__file__).with_name("page.html").read_text(encoding="utf-8")

    async def answer(self, request: Request) -> BaseModel:
        """Answer, unless the client leaves or time runs out.

        Raises:
            HTTPException, InputError, Busy, DecodingFailed: the request gets no answer.
        """
        wanted = await self._read(request)
        start = time.perf_counter()
        work = asyncio.ensure_future(self.fields(wanted))
        left = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({work, left}, timeout=self.args.request_timeout, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                if left.done():
                    raise HTTPException(CLIENT_LEFT, "the client left")
                raise HTTPException(504, f"the answer was not there within {self.args.request_timeout:g} seconds")
            answer = work.result()
        finally:
            work.cancel()
            left.cancel()
        seconds = time.perf_counter() - start
        self.seconds.observe(seconds)
        return self.answer_model(**answer, seconds=round(seconds, 4))

    async def _read(self, request: Request) -> BaseModel:
        """What a request wants, read from its body within limits of time and size."""
        content_type = request.headers.get("content-type", "")
        # A web page of another origin cannot send JSON without asking this service first.
        if content_type.partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, f"Content-Type is {content_type[:80]!r}; allowed: application/json")
        limit, seconds = self.args.max_body_bytes, self.args.read_timeout
        body = bytearray()

        async def receive() -> None:
            message: MutableMapping[str, Any] = {"more_body": True}
            while message.get("more_body"):
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise HTTPException(CLIENT_LEFT, "the client left")
                body.extend(message.get("body", b""))
                if len(body) > limit:
                    raise HTTPException(413, f"the body has more than {limit} bytes; allowed: {limit}")

        try:
            await asyncio.wait_for(receive(), seconds)
        except asyncio.TimeoutError:
            late = f"the body did not arrive within {seconds:g} seconds"
            raise HTTPException(408, late, {"Connection": "close"}) from None
        try:
            return self.request_model.model_validate_json(body)
        except ValidationError as error:
            raise HTTPException(*told(error, list(self.request_model.model_fields))) from None


async def _left(request: Request) -> None:
    """Return when the client of a request whose body was read closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
