"""The base of the services of all tasks, and of their requests."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import prometheus_client as prometheus
from fastapi import HTTPException
from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from bart.files import as_named
from utils.serving.arguments import ServeArguments

if TYPE_CHECKING:
    from utils.serving.engine import Work

CLOSING_SECONDS = 3  # for the engine's thread to end its step


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("a text that is not blank is expected")
    text.encode()  # unpaired surrogates raise a ValueError
    return text


Text = Annotated[str, AfterValidator(_not_blank)]


class Body(BaseModel):
    """The body of a request, or a part of it. It is strict: a number in quotes is no number, and true is no integer."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    alternatives: ClassVar[tuple[str, ...]] = ()  # fields of which exactly one must be given

    @model_validator(mode="after")
    def _check_alternatives(self) -> Body:
        if self.alternatives and sum(getattr(self, name) is not None for name in self.alternatives) != 1:
            raise ValueError("either " + " or ".join(map(repr, self.alternatives)) + " is expected")
        return self


class Service(ABC):
    """Answers the requests to one path. The body of a request has `inputs`, and that of an answer `seconds`."""

    path: str
    title: str
    description: str
    page_file: str
    answer_model: type[BaseModel]

    def __init__(self, args: ServeArguments, request_model: type[BaseModel], work: Work) -> None:
        from utils.serving.engine import Engine  # here, because --help needs no torch

        self.args, self.request_model = args, request_model
        self.engine = Engine(work, args.batch_size, args.threads)
        self.engine.thread.start()
        path = Path(args.inference.model)
        # Clients see no more of a path than identifies the model.
        name = "/".join((as_named(path) if path.exists() else path).parts[-2:])
        device = "GPU" if args.inference.device == "cuda" else "CPU"
        self.about = f"{name}, {args.inference.precision} on the {device}"
        self.inputs = 0  # of the requests that are being answered
        self.in_work = 0  # requests that are not answered yet, but for those with GET, which are answered at once
        self.is_ending = False  # no request is let in any more
        self.has_ended: asyncio.Future[None]  # done when those in work are given up; the application makes it
        registry = self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=registry)  # memory, processor time, open files; on Linux
        self.answers = prometheus.Counter(
            "bart_requests", "Requests by path and status; 499: the client left", ["path", "status"], registry=registry
        )
        seconds = f"bart_{self.path[1:]}_seconds"
        self.seconds = prometheus.Histogram(seconds, "From a request to its answer", registry=registry)
        gauges = [
            prometheus.Gauge("bart_requests_waiting", "Requests with inputs that wait", registry=registry),
            prometheus.Gauge("bart_queue_seconds", "For how long the first one waits", registry=registry),
        ]
        gauges[0].set_function(lambda: len({*self.engine.waiting}))
        gauges[1].set_function(lambda: max(0.0, time.monotonic() - min(self.engine.waiting, default=math.inf)))

    @contextmanager
    def room(self, count: int) -> Iterator[None]:
        """Hold room for so many inputs while they are in work; HTTPException if there is none."""
        most = self.args.max_queue
        if self.inputs + count > most:
            found = f"{self.inputs} inputs are in work and this request has {count}; allowed: {most}; try again"
            raise HTTPException(503, found, {"Retry-After": "1"})
        self.inputs += count
        try:
            yield
        finally:
            self.inputs -= count

    async def results(self, contents: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        """The engine's results for the articles of a request, which leave its queue if this is cancelled."""
        futures = self.engine.submit(contents, options)
        try:
            return await asyncio.gather(*map(asyncio.wrap_future, futures))
        finally:
            for future in futures:
                future.cancel()

    @abstractmethod
    async def compute(self, content: BaseModel) -> dict[str, Any]:
        """Compute the fields of the answer to a request, but for the time."""

    async def stop(self) -> None:
        """Drop what is in work."""
        self.engine.stop()
        await asyncio.to_thread(self.engine.thread.join, CLOSING_SECONDS)
