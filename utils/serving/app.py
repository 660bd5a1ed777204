"""The routes of the service, what is checked before them, and how a request becomes summaries."""

from __future__ import annotations

import asyncio
import ctypes
import hmac
import inspect
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, Any

import prometheus_client as prometheus
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.models.generation_options import with_lengths
from utils.serving.arguments import ServeArguments
from utils.serving.endpoint import Endpoint
from utils.serving.engine import Busy, DecodingFailed, Engine
from utils.serving.requests import Failure, Summaries, request_model
from utils.summarize import Rounds

Message = MutableMapping[str, Any]  # of ASGI
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
LONG_TEXT = 1 << 16  # characters, of all texts of a request; a megabyte takes seconds to split
DISCARD_SECONDS = 1
TRIM_SECONDS = 5
CLOSING_SECONDS = 3  # for the decoding thread to end its step
PATHS = ("/summarize", "/classify", "/tag", "/answer", "/", "/healthz", "/metrics", "/openapi.json")
BEARER = HTTPBearer(auto_error=False, description="The key that the service was started with.")
ENDING = ("the service is shutting down", {"Retry-After": "5"})
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)
# What is answered if summarising raises one of these: the status, and headers
ANSWERS = {InputError: (422, None), Busy: (503, {"Retry-After": "1"}), DecodingFailed: (500, None)}


class Service(Endpoint):
    """Answers requests with the summaries that `utils.summarize.summarize` gives.

    Args:
        model: ready for inference.
        args: limits, and how to decode.

    Raises:
        InputError: --max_source_length exceeds the model's positions.
    """

    path, title, answer_model = "/summarize", "BART summaries", Summaries
    doc = """Summarise a text, or several; documents longer than the model are split into windows.

        Every field but the text is optional: null stands for the model's or the service's own.
        """

    def __init__(self, model: BartForConditionalGeneration, tokenizer: BartTokenizer, args: ServeArguments) -> None:
        self.tokenizer = tokenizer
        self.positions = model.config.max_position_embeddings
        self.limit = args.max_source_length or self.positions
        if self.limit > self.positions:
            raise InputError(f"--max_source_length is {self.limit}; allowed: at most {self.positions}, the positions")
        self.defaults = model.generation_config.merged(num_return_sequences=1)
        wanted = request_model(self.defaults, args, args.max_summary_length or self.positions)
        super().__init__(args, wanted, self.limit, model.config.vocab_size)
        # Only one thread runs Python at a time; threads of their own let short texts pass long ones.
        self.text_threads = [ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("short", "long")]
        tokens = prometheus.Counter("bart_generated_tokens", "Tokens generated", registry=self.registry)
        self.engine = Engine(
            model, args.batch_size, args.max_queue, args.max_option_sets, args.threads, on_generated=tokens.inc
        )
        for name, text, count in (
            ("bart_queue_articles", "Articles that wait for a place in the batch", lambda: self.engine.waiting),
            ("bart_batch_articles", "Articles in the batch", lambda: self.engine.in_work),
        ):
            prometheus.Gauge(name, text, registry=self.registry).set_function(count)

    @property
    def executor(self) -> ThreadPoolExecutor:
        return self.text_threads[0]

    def start(self) -> None:
        self.engine.thread.start()

    async def stop(self) -> None:
        self.engine.stop()
        await asyncio.to_thread(self.engine.thread.join, CLOSING_SECONDS)

    @property
    def health(self) -> tuple[bool, int, int]:
        return not self.engine.ended, self.engine.waiting, self.engine.in_work

    async def fields(self, wanted: BaseModel) -> dict[str, Any]:
        texts = wanted.texts or [wanted.text]
        others = {"text", "texts", "long_documents", "drop_repeated_sentences"}
        given = with_lengths(wanted.model_dump(exclude=others, exclude_unset=True, exclude_none=True))
        # Without those that are the model's own, so that requests which mean the same are equal.
        options = {name: value for name, value in given.items() if value != getattr(self.defaults, name)}
        config = self.defaults.merged(**options)
        longest = config.longest(self.positions)
        if config.min_length > longest:
            raise InputError(f"min_length is {config.min_length}; allowed: at most max_length ({longest})")
        long_documents = wanted.long_documents or self.args.long_documents
        thread = self.text_threads[sum(map(len, texts)) > LONG_TEXT]
        in_thread = partial(asyncio.get_running_loop().run_in_executor, thread)
        drop = bool(wanted.drop_repeated_sentences)
        rounds = await in_thread(Rounds, texts, self.tokenizer, self.positions, long_documents, self.limit, drop)
        tokens, windows = zip(*rounds.parts.values(), strict=True)
        cut_tokens = [max(0, count - self.limit) for count in tokens] if long_documents == "cut" else []
        articles = 0
        while rounds.windows:
            # A document needs room in the queue for one of its windows: they take turns with other requests. A request
            # is not refused in its second round.
            outputs = await self._decoded(rounds.windows, options, counted=0 if articles else len(texts))
            articles += len(outputs)
            await in_thread(rounds.proceed, outputs)
        return {
            **({"summaries": rounds.summaries} if wanted.text is None else {"summary": rounds.summaries[0]}),
            "articles": articles,
            "windows": windows if max(windows) > 1 else None,
            "cut_tokens": cut_tokens if any(cut_tokens) else None,
        }

    async def _decoded(
        self, windows: Sequence[Sequence[int]], options: dict[str, Any], counted: int
    ) -> list[list[int]]:
        futures = self.engine.submit(windows, options, counted=counted)
        try:
            return await asyncio.gather(*map(asyncio.wrap_future, futures))
        finally:
            for future in futures:
                future.cancel()


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


async def _refuse_at_the_end(scope: Message, receive: Receive, send: Send) -> None:
    async def discard_body() -> None:
        while (await receive()).get("more_body"):
            pass

    # A connection that is closed while a body arrives is reset, and the answer may be lost.
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(discard_body(), DISCARD_SECONDS)
    await failure(503, *ENDING)(scope, receive, send)


class Gate:
    """ASGI middleware that lets requests in, answers HEAD like GET, and counts answers by path and status.

    A Host header that is not allowed is refused, because a web page whose own name was made to point to this machine
    could read the answers. At the service's end new requests are refused, connections are closed once they are
    answered, and a request that the server cancels gets an answer that says so.
    """

    def __init__(self, app: App, service: Endpoint) -> None:
        self.app = app
        self.service = service
        allowed = map(str.lower, service.args.allowed_hosts)
        self.names = {"localhost", socket.gethostname().lower(), service.args.host, *allowed}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 500  # unless there is an answer

        async def counted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if service.ending and "status" in message:
                message["headers"].append((b"connection", b"close"))
            await send(message)

        service, app = self.service, self._app_for(scope)
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves the body out
        service.in_work += app is self.app
        try:
            await app(scope, receive, counted)
        except asyncio.CancelledError:
            await failure(503, *ENDING)(scope, receive, counted)
        finally:
            service.in_work -= app is self.app
            service.answers.labels(scope["path"] if scope["path"] in PATHS else "other", str(status)).inc()

    def _app_for(self, scope: Message) -> App:
        """What answers a request: the application, or a refusal."""
        if self.service.ending:
            return _refuse_at_the_end
        most = self.service.args.max_clients
        if self.service.in_work >= most and scope["path"] != "/healthz":
            return failure(503, f"{most} requests are in work; allowed: {most}; try again", {"Retry-After": "1"})
        # Browsers always send the header, and old health checks do not.
        host = re.sub(r":\d*$", "", Request(scope).headers.get("host", "localhost")).lower()
        if self._is_allowed(host):
            return self.app
        allowed = f"IP addresses, {', '.join(sorted(self.names))}; --allowed_hosts of the service adds names"
        return failure(400, f"Host is {host[:80]!r}; allowed: {allowed}")

    def _is_allowed(self, host: str) -> bool:
        try:
            ipaddress.ip_address(host.strip("[]"))  # no page can make an address its own
        except ValueError:
            return any(fnmatchcase(host, name) for name in self.names)
        return True


def create_app(service: Endpoint) -> FastAPI:
    """The application of a service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Every thread that allocates has an arena of its own, so memory is returned in a thread that is there anyway.
        asyncio.get_running_loop().set_default_executor(service.executor)
        trimming = asyncio.ensure_future(_give_back_memory())
        service.start()
        yield
        trimming.cancel()
        await service.stop()

    key = service.args.key

    async def with_key(sent: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]) -> None:
        if sent is None or not hmac.compare_digest(sent.credentials.encode(), key.encode()):
            message = "the API key is missing or wrong; allowed: the service's, as 'Authorization: Bearer KEY'"
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

    guards = [] if key is None else [Depends(with_key)]

    async def refused(request: Request, error: Any) -> Response:
        if isinstance(error, tuple(ANSWERS)):
            status, headers = ANSWERS[type(error)]
            return failure(status, str(error), headers)
        return failure(error.status_code, error.detail, error.headers)

    async def fault(request: Request, error: Exception) -> Response:
        return failure(500, "a fault of the service; its log says more")

    app = FastAPI(
        title=service.title,
        description=service.about,
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        exception_handlers={**dict.fromkeys((HTTPException, 404, 405, *ANSWERS), refused), Exception: fault},
    )
    app.add_middleware(Gate, service=service)
    schema = service.request_model.model_json_schema()

    @app.post(
        service.path,
        dependencies=guards,
        description=inspect.cleandoc(service.doc),
        response_model=service.answer_model,
        response_model_exclude_none=True,
        responses={"default": {"model": Failure, "description": "No answer; the error says why."}},
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
    )
    async def answer(request: Request) -> Any:
        return await service.answer(request)

    @app.get("/healthz")
    async def healthz() -> Response:
        """200 while requests are answered, 500 if none is any more."""
        works, waiting, in_work = service.health
        content = {"status": "ok" if works else "failed", "queue": waiting, "batch": in_work}
        return JSONResponse(content, 200 if works else 500)

    @app.get("/metrics", dependencies=guards)
    async def metrics() -> Response:
        """Prometheus's text format."""
        return Response(prometheus.generate_latest(service.registry), media_type=prometheus.CONTENT_TYPE_LATEST)

    @app.get("/")
    async def index() -> Response:
        """A page to try the service."""
        page = service.page()
        return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})

    return app
