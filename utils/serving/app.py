"""The routes of the service, what is checked before them, and how a request becomes summaries."""

from __future__ import annotations

import asyncio
import ctypes
import ipaddress
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import prometheus_client as prometheus
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ValidationError

from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.serving.arguments import ServeArguments
from utils.serving.engine import Busy, DecodingFailed, Engine
from utils.serving.requests import Failure, Summaries, request_model, told
from utils.summarize import Rounds

Message = MutableMapping[str, Any]  # of ASGI
Send = Callable[[Message], Awaitable[None]]
# Threads that turn texts to ids and back. Most of that is Python, of which only one thread runs at a time; a second one
# lets short texts pass a long one.
TEXT_THREADS = 2
TRIM_SECONDS = 5
CLOSING_SECONDS = 3  # for the decoding thread to end its step
CLIENT_LEFT = 499  # nginx's status for a request whose client did not wait for the answer
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)
PATHS = ("/summarize", "/", "/healthz", "/metrics", "/openapi.json")
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)
# What is answered if summarising raises one of these: the status, and headers
ANSWERS = {InputError: (422, None), Busy: (503, {"Retry-After": "1"}), DecodingFailed: (500, None)}


class Service:
    """Answers requests with the summaries that `utils.summarize.summarize` gives.

    Args:
        model: ready for inference.
        args: limits, and how to decode.

    Raises:
        InputError: --max_source_length exceeds the model's positions.
    """

    def __init__(self, model: BartForConditionalGeneration, tokenizer: BartTokenizer, args: ServeArguments) -> None:
        self.args = args
        self.tokenizer = tokenizer
        self.positions = model.config.max_position_embeddings
        self.limit = args.max_source_length or self.positions
        if self.limit > self.positions:
            raise InputError(f"--max_source_length is {self.limit}; allowed: at most {self.positions}, the positions")
        self.defaults = model.generation_config.merged(num_return_sequences=1)
        self.request_model = request_model(self.defaults, args, args.max_summary_length or self.positions)
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)  # memory, processor time, open files; on Linux
        self.answers = prometheus.Counter(
            "bart_requests", f"Requests by path and status; {CLIENT_LEFT}: the client left", ["path", "status"],
            registry=self.registry,
        )  # fmt: skip
        self.seconds = prometheus.Histogram(
            "bart_summarize_seconds", "From a request to its summary", buckets=SECONDS, registry=self.registry
        )
        tokens = prometheus.Counter("bart_generated_tokens", "Tokens generated", registry=self.registry)
        self.engine = Engine(
            model, args.batch_size, args.max_queue, args.max_option_sets, args.threads, on_generated=tokens.inc
        )
        for name, text, count in (
            ("bart_queue_articles", "Articles that wait for a place in the batch", lambda: self.engine.waiting),
            ("bart_batch_articles", "Articles in the batch", lambda: self.engine.in_work),
        ):
            prometheus.Gauge(name, text, registry=self.registry).set_function(count)

    async def answer(self, request: Request) -> Summaries:
        """Summarise, unless the client leaves or time runs out.

        Raises:
            HTTPException, InputError, Busy, DecodingFailed: the request gets no summary.
        """
        wanted = await self._read(request)
        start = time.perf_counter()
        work = asyncio.ensure_future(self._summarize(wanted))
        left = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({work, left}, timeout=self.args.request_timeout, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                if left.done():
                    raise HTTPException(CLIENT_LEFT, "the client left")
                raise HTTPException(504, f"the summary was not done within {self.args.request_timeout:g} seconds")
            summaries, articles = work.result()
        finally:
            work.cancel()
            left.cancel()
        seconds = time.perf_counter() - start
        self.seconds.observe(seconds)
        content = {"summaries": summaries} if wanted.text is None else {"summary": summaries[0]}
        return Summaries(**content, articles=articles, seconds=round(seconds, 4))

    async def _read(self, request: Request) -> BaseModel:
        """What a request wants, read from its body within limits of time and size."""
        content_type = request.headers.get("content-type", "")
        # A web page of another origin cannot send JSON without asking this service first.
        if content_type.partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, f"Content-Type is {content_type[:80]!r}; allowed: application/json")
        limit, seconds = self.args.max_body_bytes, self.args.read_timeout
        body = bytearray()

        async def receive() -> None:
            message: Message = {"more_body": True}
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

    async def _summarize(self, wanted: BaseModel) -> tuple[list[str], int]:
        """The summaries, and the number of articles decoded for them."""
        texts = wanted.texts or [wanted.text]
        others = {"text", "texts", "long_documents", "drop_repeated_sentences"}
        given = wanted.model_dump(exclude=others, exclude_unset=True, exclude_none=True)
        # Without those that are the model's own, so that requests which mean the same are equal.
        options = {name: value for name, value in given.items() if value != getattr(self.defaults, name)}
        config = self.defaults.merged(**options)
        longest = config.longest(self.positions)
        if config.min_length > longest:
            raise InputError(f"min_length is {config.min_length}; allowed: at most max_length ({longest})")
        long_documents = wanted.long_documents or self.args.long_documents
        rounds = await asyncio.to_thread(self._first_round, texts, long_documents, bool(wanted.drop_repeated_sentences))
        articles = 0
        while rounds.windows:
            # A request is not refused in its second round.
            outputs = await self._decoded(rounds.windows, options, limited=articles == 0)
            articles += len(outputs)
            await asyncio.to_thread(rounds.proceed, outputs)
        return rounds.summaries, articles

    def _first_round(self, texts: list[str], long_documents: str, drop_repeated_sentences: bool) -> Rounds:
        most = self.args.max_articles_per_request
        # Splitting takes ten times as long as counting, so texts that are far too long are not split.
        if long_documents in ("join", "resummarize") and sum(map(len, texts)) > most * self.limit:
            # Windows do not hold the white space between them.
            tokens = sum(map(len, self.tokenizer([" ".join(text.split()) for text in texts])["input_ids"]))
            if tokens > most * self.limit:
                raise HTTPException(413, f"the request has {tokens} tokens; allowed: {most} windows of {self.limit}")
        rounds = Rounds(texts, self.tokenizer, self.positions, long_documents, self.limit, drop_repeated_sentences)
        if len(rounds.windows) > most:
            raise HTTPException(413, f"the request makes {len(rounds.windows)} windows; allowed: at most {most}")
        return rounds

    async def _decoded(
        self, windows: Sequence[Sequence[int]], options: dict[str, Any], limited: bool
    ) -> list[list[int]]:
        futures = self.engine.submit(windows, options, limited=limited)
        try:
            return await asyncio.gather(*map(asyncio.wrap_future, futures))
        finally:
            for future in futures:
                future.cancel()


async def _left(request: Request) -> None:
    """Return when the client of a request whose body was read closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _give_back_memory() -> None:
    """Return free memory to the system from time to time, if the C library can.

    Batches of many sizes leave gaps between memory in use, which glibc keeps: 100 MB in a minute.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(TRIM_SECONDS)
        await asyncio.to_thread(trim, 0)


def failure(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The answer to a request that gets no summary."""
    return JSONResponse({"error": message}, status, headers)


class Gate:
    """ASGI middleware that checks the Host header, and counts answers by path and status.

    A Host header that is not allowed is refused, because a web page whose own name was made to point to this machine
    could read the answers. A request that the server cancels at its end gets an answer that says so.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], service: Service) -> None:
        self.app = app
        self.answers = service.answers
        allowed = map(str.lower, service.args.allowed_hosts)
        self.names = {"localhost", socket.gethostname().lower(), service.args.host, *allowed}

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 500  # unless there is an answer

        async def counted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        # Browsers always send the header, and old health checks do not.
        host = re.sub(r":\d*$", "", Request(scope).headers.get("host", "localhost")).lower()
        try:
            if self._is_allowed(host):
                await self.app(scope, receive, counted)
            else:
                allowed = f"IP addresses, {', '.join(sorted(self.names))}; --allowed_hosts of the service adds names"
                await failure(400, f"Host is {host[:80]!r}; allowed: {allowed}")(scope, receive, counted)
        except asyncio.CancelledError:
            await failure(503, "the service is shutting down", {"Retry-After": "5"})(scope, receive, counted)
        finally:
            self.answers.labels(scope["path"] if scope["path"] in PATHS else "other", str(status)).inc()

    def _is_allowed(self, host: str) -> bool:
        try:
            ipaddress.ip_address(host.strip("[]"))  # no page can make an address its own
        except ValueError:
            return any(fnmatchcase(host, name) for name in self.names)
        return True


def create_app(service: Service) -> FastAPI:
    """The application of a service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text"))
        trimming = asyncio.ensure_future(_give_back_memory())
        service.engine.thread.start()
        yield
        service.engine.stop()
        trimming.cancel()
        await asyncio.to_thread(service.engine.thread.join, CLOSING_SECONDS)

    async def refused(request: Request, error: Any) -> Response:
        if isinstance(error, tuple(ANSWERS)):
            status, headers = ANSWERS[type(error)]
            return failure(status, str(error), headers)
        return failure(error.status_code, error.detail, error.headers)

    async def fault(request: Request, error: Exception) -> Response:
        return failure(500, "a fault of the service; its log says more")

    app = FastAPI(
        title="BART summaries",
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        exception_handlers={**dict.fromkeys((HTTPException, 404, 405, *ANSWERS), refused), Exception: fault},
    )
    app.add_middleware(Gate, service=service)
    schema = service.request_model.model_json_schema()

    @app.post(
        "/summarize",
        response_model_exclude_none=True,
        responses={"default": {"model": Failure, "description": "No summary; the error says why."}},
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
    )
    async def summarize(request: Request) -> Summaries:
        """Summarise a text, or several; documents longer than the model are split into windows.

        Every field but the text is optional: null stands for the model's or the service's own.
        """
        return await service.answer(request)

    @app.get("/healthz")
    async def healthz() -> Response:
        """200 while articles are decoded, 500 if nothing is decoded any more."""
        engine = service.engine
        content = {"status": "failed" if engine.ended else "ok", "queue": engine.waiting, "batch": engine.in_work}
        return JSONResponse(content, 500 if engine.ended else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus's text format."""
        return Response(prometheus.generate_latest(service.registry), media_type=prometheus.CONTENT_TYPE_LATEST)

    @app.get("/")
    async def index() -> Response:
        """A page to try the service."""
        page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})

    return app
