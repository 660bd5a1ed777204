"""The routes of the service, and what lies between a request and the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import prometheus_client as prometheus
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.serving.arguments import ServeArguments
from utils.serving.engine import DecodingFailed, Engine, Job, QueueFull, Stopped
from utils.serving.parsing import MOST_LENGTH_PENALTY, Problem, SummaryRequest, parse_request
from utils.summarize import LONG_DOCUMENTS, Rounds

# Threads that turn texts to ids and back. Most of that is Python, of which only one thread runs at a time; a second one
# lets short texts pass a long one.
TEXT_THREADS = 2
PATHS = ("/", "/summarize", "/healthz", "/metrics", "/openapi.json")
SPLITTING = ("join", "resummarize")
SLACK = 8  # tokens that a window may seem longer in the midst of its text than alone
CLIENT_LEFT = 499  # what nginx calls a request whose client did not wait for the answer
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)


class ClientLeft(Exception):
    """The client has closed the connection."""


class Metrics:
    """What /metrics shows."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)  # memory, processor time, open files; on Linux
        self.requests = prometheus.Counter(
            "bart_requests", f"Requests by path and status; {CLIENT_LEFT}: the client left", ["path", "status"],
            registry=self.registry,
        )  # fmt: skip
        self.seconds = prometheus.Histogram(
            "bart_summarize_seconds", "From a request's arrival to its summary", buckets=SECONDS, registry=self.registry
        )
        self.tokens = prometheus.Counter("bart_generated_tokens", "Tokens generated", registry=self.registry)

    def watch(self, engine: Engine) -> None:
        """Show an engine's articles."""
        for name, text, count in (
            ("bart_queue_articles", "Articles that wait for a place in the batch", lambda: engine.waiting),
            ("bart_batch_articles", "Articles in the batch", lambda: engine.in_work),
        ):
            prometheus.Gauge(name, text, registry=self.registry).set_function(count)

    def render(self) -> bytes:
        return prometheus.generate_latest(self.registry)


class Service:
    """Answers requests with the summaries that `utils.summarize.summarize` gives.

    Args:
        model: ready for inference.
        tokenizer: its vocabulary.
        args: limits, and how to decode.

    Attributes:
        draining: whether requests to /summarize are refused, for the service is about to end.
        answering: requests that have been read and not answered.
        in_pool: what threads do with the texts of requests.

    Raises:
        InputError: the model's own decoding options are beyond the limits, or a limit is beyond its positions.
    """

    def __init__(self, model: BartForConditionalGeneration, tokenizer: BartTokenizer, args: ServeArguments) -> None:
        self.args = args
        self.tokenizer = tokenizer
        self.positions = model.config.max_position_embeddings
        self.defaults = model.generation_config.merged(num_return_sequences=1)
        longest = self.defaults.longest(self.positions)
        self.max_length = args.max_summary_length or max(longest, self.positions)
        for name, allowed, own in (
            ("max_beams", args.max_beams, self.defaults.num_beams),
            ("max_summary_length", self.max_length, longest),
        ):
            if own > allowed:
                raise InputError(f"--{name} is {allowed}; allowed: at least {own}, the model's own default")
        if self.max_length > self.positions + 1:
            raise InputError(
                f"--max_summary_length is {self.max_length}; the model has {self.positions} positions, so allowed: at "
                f"most {self.positions + 1}"
            )
        if args.max_source_length is not None and args.max_source_length > self.positions:
            raise InputError(
                f"--max_source_length is {args.max_source_length}; the model has {self.positions} positions"
            )
        self.metrics = Metrics()
        self.engine = Engine(model, args.batch_size, args.max_queue, args.threads, self.metrics.tokens.inc)
        self.metrics.watch(self.engine)
        self.draining = False
        self.answering = 0
        self._open = 0  # requests to /summarize
        self._reading: set[asyncio.Task[bytes]] = set()
        self._stopped = asyncio.Event()
        self.in_pool: set[Future[Any]] = set()
        self._pool = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text")

    def drain(self) -> None:
        """Refuse further requests, and those that are not read yet."""
        self.draining = True
        for task in self._reading:
            task.cancel()

    def stop(self) -> None:
        """Decode no further, and have all requests answered that are in work."""
        self._stopped.set()
        self.engine.stop()

    def health(self) -> Response:
        status = "failed" if self.engine.failed else "draining" if self.draining else "ok"
        content = {"status": status, "queue": self.engine.waiting, "batch": self.engine.in_work}
        return JSONResponse(content, {"ok": 200, "draining": 503, "failed": 500}[status])

    async def summarize(self, request: Request) -> Response:
        """Answer a request.

        Raises:
            Problem: it gets no summary.
        """
        start = time.perf_counter()
        if self.draining:
            raise _ending()
        if self._open >= self.args.max_clients:
            raise _busy(f"{self._open} requests are open; allowed: {self.args.max_clients}; try again")
        self._open += 1
        try:
            body = await self._read(request)
            wanted = parse_request(
                body, self.defaults, self.args.max_articles_per_request, self.args.max_beams, self.max_length
            )
            summaries, articles = await self._watched(request, wanted)
        except ClientLeft:
            return Response(status_code=CLIENT_LEFT)
        finally:
            self._open -= 1
        seconds = time.perf_counter() - start
        self.metrics.seconds.observe(seconds)
        content: dict[str, Any] = {"summary": summaries[0]} if wanted.single else {"summaries": summaries}
        return JSONResponse({**content, "articles": articles, "seconds": round(seconds, 4)})

    async def _read(self, request: Request) -> bytes:
        """The body, as long as it is not too large or too slow."""
        limit = self.args.max_body_bytes
        too_large = Problem(413, f"the body has more than {limit} bytes; allowed: {limit}")
        if int(request.headers.get("content-length", 0)) > limit:
            raise too_large

        async def read() -> bytes:
            body = bytearray()
            async for part in _parts(request):
                body += part
                if len(body) > limit:
                    raise too_large
            return bytes(body)

        task = asyncio.ensure_future(read())
        self._reading.add(task)
        try:
            return await asyncio.wait_for(task, self.args.read_timeout)
        except asyncio.TimeoutError:
            raise Problem(
                408, f"the body did not arrive within {self.args.read_timeout:g} seconds", Connection="close"
            ) from None
        except asyncio.CancelledError:
            if not self.draining:
                raise
            raise _ending() from None
        finally:
            self._reading.discard(task)

    async def _watched(self, request: Request, wanted: SummaryRequest) -> tuple[list[str], int]:
        """What `_summarize` gives, unless time runs out, the client leaves or the service ends."""
        self.answering += 1
        work = asyncio.ensure_future(self._summarize(wanted))
        left = asyncio.ensure_future(_left(request))
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait(
                {work, left, stopped}, timeout=self.args.request_timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                return work.result()
            if left.done():
                raise ClientLeft
            if stopped.done():
                raise _ending()
            raise Problem(504, f"the summary was not done within {self.args.request_timeout:g} seconds")
        finally:
            work.cancel()
            left.cancel()
            stopped.cancel()
            self.answering -= 1

    async def _summarize(self, wanted: SummaryRequest) -> tuple[list[str], int]:
        """The summaries, and how many articles were decoded for them."""
        most = self.args.max_articles_per_request
        articles = 0
        long_documents = wanted.long_documents or self.args.long_documents
        limit = self.args.max_source_length or self.positions
        # Splitting takes ten times as long as counting: what is far too much is not split.
        if long_documents in SPLITTING and sum(map(len, wanted.texts)) > most * limit:
            windows = await self._in_pool(self._fewest_windows, wanted.texts, limit)
            if windows > most:
                raise Problem(413, f"the request makes at least {windows} windows; allowed: at most {most}")
        try:
            rounds = await self._in_pool(
                Rounds,
                wanted.texts,
                self.tokenizer,
                self.positions,
                long_documents,
                limit,
            )
            while rounds.windows:
                if len(rounds.windows) > most:
                    raise Problem(413, f"the request makes {len(rounds.windows)} windows; allowed: at most {most}")
                # A request that has begun is not refused in its second round.
                outputs = await self._decoded(Job(rounds.windows, wanted.options), limited=articles == 0)
                articles += len(outputs)
                await self._in_pool(rounds.proceed, outputs)
        except InputError as error:
            raise Problem(422, str(error)) from None
        return rounds.summaries, articles

    def _fewest_windows(self, texts: list[str], limit: int) -> int:
        """So many windows of at most `limit` tokens the texts make, or more."""
        ids = self.tokenizer([" ".join(text.split()) for text in texts])["input_ids"]  # splitting drops white space
        return sum(-(-len(row) // (limit + SLACK)) for row in ids)

    async def _decoded(self, job: Job, limited: bool) -> list[list[int]]:
        try:
            self.engine.submit(job, limited=limited)
            return await asyncio.wrap_future(job.future)
        except QueueFull:
            waiting, most = self.engine.waiting, self.args.max_queue
            raise _busy(
                f"{waiting} articles wait and this request has {len(job.sources)}; allowed: {most}; try again"
            ) from None
        except Stopped:
            raise _ending() from None
        except DecodingFailed:
            raise Problem(500, "decoding failed; the service's log says why") from None
        finally:
            self.engine.cancel(job)

    async def _in_pool(self, function: Callable[..., Any], *args: Any) -> Any:
        future = self._pool.submit(function, *args)
        self.in_pool.add(future)
        future.add_done_callback(self.in_pool.discard)
        return await asyncio.wrap_future(future)


async def _parts(request: Request) -> AsyncIterator[bytes]:
    """The body as it arrives; ClientLeft where the rest will not."""
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def _left(request: Request) -> None:
    """Return when the client of a request that has been read leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _busy(message: str) -> Problem:
    return Problem(503, message, Retry_After="1")


def _ending() -> Problem:
    return Problem(503, "the service is shutting down", Retry_After="5", Connection="close")


class CountRequests:
    """Counts requests by path and status."""

    def __init__(self, app: Callable[..., Awaitable[None]], metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 500  # unless there is an answer

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.metrics.requests.labels(path, str(status)).inc()


def create_app(service: Service) -> FastAPI:
    """The application of a service, whose engine somebody else starts and stops."""

    async def problem(request: Request, error: Problem) -> Response:
        return JSONResponse({"error": error.message}, error.status, error.headers)

    async def no_route(request: Request, error: Any) -> Response:
        what = f"{request.method} {request.url.path[:80]}"
        allowed = "POST /summarize, GET /, /healthz, /metrics, /openapi.json"
        return JSONResponse({"error": f"no {what} here; allowed: {allowed}"}, error.status_code, error.headers)

    async def fault(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": "a fault of the service; its log says more"}, 500)

    app = FastAPI(
        title="BART summaries",
        docs_url=None,  # pages that load scripts from elsewhere
        redoc_url=None,
        exception_handlers={Problem: problem, 404: no_route, 405: no_route, Exception: fault},
    )
    app.add_middleware(CountRequests, metrics=service.metrics)
    page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")

    @app.post("/summarize", openapi_extra={"requestBody": _request_schema(service)})
    async def summarize(request: Request) -> Response:
        """Summarise a text, or several; documents longer than the model are split into windows."""
        return await service.summarize(request)

    @app.get("/healthz")
    async def healthz() -> Response:
        """200 while requests are taken, 503 while the service drains, 500 when nothing decodes any more."""
        return service.health()

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus's text format."""
        return Response(service.metrics.render(), media_type=prometheus.CONTENT_TYPE_LATEST)

    @app.get("/")
    async def index() -> Response:
        """A page to try it."""
        return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})

    return app


def _request_schema(service: Service) -> dict[str, Any]:
    """The body of POST /summarize as OpenAPI has it."""
    own, longest = service.defaults, service.max_length
    length = {"type": "integer", "minimum": 0, "maximum": longest}
    properties = {
        "text": {"type": "string"},
        "texts": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "maxItems": service.args.max_articles_per_request,
        },
        "long_documents": {"enum": [*LONG_DOCUMENTS], "default": service.args.long_documents},
        "num_beams": {"type": "integer", "minimum": 1, "maximum": service.args.max_beams, "default": own.num_beams},
        "max_length": {**length, "minimum": 2, "default": own.longest(service.positions)},
        "min_length": {**length, "default": own.min_length},
        "no_repeat_ngram_size": {**length, "default": own.no_repeat_ngram_size},
        "length_penalty": {
            "type": "number",
            "minimum": -MOST_LENGTH_PENALTY,
            "maximum": MOST_LENGTH_PENALTY,
            "default": own.length_penalty,
        },
        "early_stopping": {"enum": [True, False, "never"], "default": own.early_stopping},
    }
    schema = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "oneOf": [{"required": ["text"]}, {"required": ["texts"]}],
    }
    return {"required": True, "content": {"application/json": {"schema": schema}}}
