"""The routes of the service, and how a request becomes summaries."""

# Without postponed annotations: FastAPI reads those of the routes, and one of them names a class made for the service.
import asyncio
import ctypes
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import prometheus_client as prometheus
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse

from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.errors import brief
from utils.serving.arguments import ServeArguments
from utils.serving.engine import Busy, DecodingFailed, Engine
from utils.serving.gate import BUSY, PATHS, Gate, failure
from utils.serving.requests import Failure, Summaries, SummaryRequest, request_model, told
from utils.summarize import Rounds

# Threads that turn texts to ids and back. Most of that is Python, of which only one thread runs at a time; a second one
# lets short texts pass a long one.
TEXT_THREADS = 2
TRIM_SECONDS = 5
SPLITTING = ("join", "resummarize")
SLACK = 8  # tokens that a window may have more as a part of its text than alone
CLIENT_LEFT = 499  # nginx's status for a request whose client did not wait for the answer
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)


class Service:
    """Answers requests with the summaries that `utils.summarize.summarize` gives.

    Args:
        model: ready for inference.
        tokenizer: its vocabulary.
        args: limits, and how to decode.

    Raises:
        InputError: the model's own decoding options exceed the limits, or a limit exceeds its positions.
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

    async def answer(self, wanted: SummaryRequest, request: Request) -> Summaries:
        """Summarise, unless the client leaves or time runs out.

        Raises:
            HTTPException, InputError, Busy, DecodingFailed: the request gets no summary.
        """
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

    async def _summarize(self, wanted: SummaryRequest) -> tuple[list[str], int]:
        """The summaries, and the number of articles decoded for them."""
        texts = [wanted.text] if wanted.texts is None else wanted.texts
        options = wanted.options(self.defaults)
        config = self.defaults.merged(**options)
        if config.min_length > (longest := config.longest(self.positions)):
            raise InputError(f"min_length is {config.min_length}; allowed: at most max_length ({longest})")
        most = self.args.max_articles_per_request
        long_documents = wanted.long_documents or self.args.long_documents
        limit = self.args.max_source_length or self.positions
        # Splitting takes ten times as long as counting, so a text that is far too long is not split.
        if long_documents in SPLITTING and sum(map(len, texts)) > most * limit:
            windows = await asyncio.to_thread(self._fewest_windows, texts, limit)
            if windows > most:
                raise HTTPException(413, f"the request makes at least {windows} windows; allowed: at most {most}")
        rounds = await asyncio.to_thread(Rounds, texts, self.tokenizer, self.positions, long_documents, limit)
        articles = 0
        while rounds.windows:
            if len(rounds.windows) > most:
                raise HTTPException(413, f"the request makes {len(rounds.windows)} windows; allowed: at most {most}")
            # A request is not refused in its second round.
            outputs = await self._decoded(rounds.windows, options, limited=articles == 0)
            articles += len(outputs)
            await asyncio.to_thread(rounds.proceed, outputs)
        return rounds.summaries, articles

    def _fewest_windows(self, texts: list[str], limit: int) -> int:
        """A lower bound of the number of windows of at most `limit` tokens that the texts make."""
        ids = self.tokenizer([" ".join(text.split()) for text in texts])["input_ids"]  # splitting drops white space
        return sum(-(-len(row) // (limit + SLACK)) for row in ids)

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


async def _check_content_type(request: Request) -> None:
    """Accept JSON only, which a web page of another origin cannot send without asking this service first."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, f"Content-Type is {content_type[:80]!r}; allowed: application/json")


def create_app(service: Service) -> FastAPI:
    """The application of a service."""
    args = service.args

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text"))
        trimming = asyncio.ensure_future(_give_back_memory())
        service.engine.start()
        yield
        service.engine.stop()
        trimming.cancel()

    page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    Wanted = request_model(
        service.defaults, args.long_documents, args.max_articles_per_request, args.max_beams, service.max_length
    )

    async def refused(request: Request, error: HTTPException) -> Response:
        why = f" ({brief(error.__cause__)})" if error.__cause__ else ""  # FastAPI could not read the body
        return failure(error.status_code, f"{error.detail}{why}", error.headers)

    async def no_route(request: Request, error: Any) -> Response:
        what = f"{request.method} {request.url.path[:80]}"
        return failure(error.status_code, f"no {what} here; allowed: POST {', GET '.join(PATHS)}", error.headers)

    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return failure(*told(error))

    async def fault(request: Request, error: Exception) -> Response:
        return failure(500, "a fault of the service; its log says more")

    def answered(status: int, headers: dict[str, str] | None = None) -> Callable[..., Awaitable[Response]]:
        async def answer(request: Request, error: Exception) -> Response:
            return failure(status, str(error), headers)

        return answer

    app = FastAPI(
        title="BART summaries",
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        exception_handlers={
            HTTPException: refused,
            400: refused,  # FastAPI raises a class of Starlette's
            404: no_route,
            405: no_route,
            RequestValidationError: invalid,
            InputError: answered(422),
            Busy: answered(503, BUSY),
            DecodingFailed: answered(500),
            Exception: fault,
        },
    )
    app.add_middleware(Gate, args=args, answers=service.answers)

    @app.post(
        "/summarize",
        dependencies=[Depends(_check_content_type)],
        response_model_exclude_none=True,
        responses={"default": {"model": Failure, "description": "No summary; the error says why."}},
    )
    async def summarize(wanted: Wanted, request: Request) -> Summaries:
        """Summarise a text, or several; documents longer than the model are split into windows.

        Every field but the text is optional: null stands for the model's or the service's own.
        """
        return await service.answer(wanted, request)

    @app.get("/healthz")
    async def healthz() -> Response:
        """200 while articles are decoded, 500 if nothing is decoded any more."""
        status = "ok" if service.engine.alive else "failed"
        content = {"status": status, "queue": service.engine.waiting, "batch": service.engine.in_work}
        return JSONResponse(content, 200 if service.engine.alive else 500)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus's text format."""
        return Response(prometheus.generate_latest(service.registry), media_type=prometheus.CONTENT_TYPE_LATEST)

    @app.get("/")
    async def index() -> Response:
        """A page to try the service."""
        return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})

    return app
