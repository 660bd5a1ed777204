"""The base of the services of all tasks, and of their requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import Event
from pathlib import Path
from typing import Annotated, Any, ClassVar

import prometheus_client as prometheus
from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from bart.files import as_named
from utils.serving.arguments import ServeArguments

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("a text that is not blank is expected")
    return text


Text = Annotated[str, AfterValidator(_not_blank)]


class Body(BaseModel):
    """The body of a request, or a part of it. It is strict: a number in quotes is no number, and true is no integer.

    Attributes:
        alternatives: fields of which exactly one must be given.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    alternatives: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _check_alternatives(self) -> Body:
        if self.alternatives and sum(getattr(self, name) is not None for name in self.alternatives) != 1:
            raise ValueError("either " + " or ".join(map(repr, self.alternatives)) + " is expected")
        return self


class Service(ABC):
    """Answers the requests to one path.

    Args:
        args: the model, and limits.
        request_model: the body of a request.
        limit: tokens that the model reads at once.
        vocabulary_size: of the model.

    Attributes:
        path: where requests are sent.
        title, description: for the description of the interface.
        page_file: the template of the page, beside this file.
        answer_model: the body of an answer, with a field `seconds`.
        in_work: requests that were let in and are not answered yet; those with GET, answered at once, do not count.
        is_ending: true once no request is let in any more.
        is_over: set once nobody may wait for an answer any more.
    """

    path: str
    title: str
    description: str
    page_file: str
    answer_model: type[BaseModel]

    def __init__(self, args: ServeArguments, request_model: type[BaseModel], limit: int, vocabulary_size: int) -> None:
        self.args, self.request_model = args, request_model
        path = Path(args.inference.model)
        # Clients see no more of a path than identifies the model.
        name = "/".join((as_named(path) if path.exists() else path).parts[-2:])
        device = "GPU" if args.inference.device == "cuda" else "CPU"
        self.about = (
            f"{name}, {args.inference.precision} on the {device}; it reads {limit:,} tokens at once and has a "
            f"vocabulary of {vocabulary_size:,}."
        )
        self.in_work = 0
        self.is_ending, self.is_over = False, Event()
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)  # memory, processor time, open files; on Linux
        self.answers = prometheus.Counter(
            "bart_requests", "Requests by path and status; 499: the client left", ["path", "status"],
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
