"""The routes of the service, and what is checked before them."""

import asyncio
import ctypes
import hmac
import inspect
import ipaddress
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import prometheus_client as prometheus
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

from bart.errors import InputError
from utils.app.pages import page_template
from utils.serving.service import Service

Message = MutableMapping[str, Any]  # of ASGI
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
TRIM_SECONDS = 5
ENDING = 503, "the service is shutting down", {"Retry-After": "5"}
PATHS = ("/", "/healthz", "/livez", "/readyz", "/metrics", "/openapi.json")  # of every service
BEARER = HTTPBearer(auto_error=False, description="The key that the service was started with.")
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)


def failure(error: HTTPException) -> JSONResponse:
    """The answer to a request that is refused."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


class Gate:
    """ASGI middleware that lets requests in, answers HEAD like GET, and counts answers by path and status.

    A Host header that is not allowed is refused, because a web page whose own name was made to point to this machine
    could read the answers. At the service's end connections are closed once they are answered.
    """

    def __init__(self, app: App, service: Service) -> None:
        self.app = app
        self.service = service
        allowed = map(str.lower, service.args.allowed_hosts)
        self.names = {"localhost", socket.gethostname().lower(), service.args.host, *allowed}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        service, status = self.service, 500  # unless there is an answer

        async def observe(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if service.is_ending and "status" in message:
                message["headers"].append((b"connection", b"close"))
            await send(message)

        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves the body out
        is_work = scope["method"] != "GET"
        service.in_work += is_work
        try:
            self._check(scope)
            await self.app(scope, await self._with_body(receive) if is_work else receive, observe)
        except HTTPException as error:
            await failure(error)(scope, receive, observe)
        finally:
            service.in_work -= is_work
            path = scope["path"] if scope["path"] in (service.path, *PATHS) else "other"
            service.answers.labels(path, str(status)).inc()

    def _check(self, scope: Message) -> None:
        """Raise HTTPException if a request is not let in."""
        if self.service.is_ending and scope["path"] != "/livez":
            raise HTTPException(*ENDING)
        most = self.service.args.max_clients
        if scope["method"] != "GET" and self.service.in_work > most:
            found = f"{most} requests are in work; allowed: {most}; try again"
            raise HTTPException(503, found, {"Retry-After": "1"})
        # Browsers always send the header, and old health checks do not.
        host = re.sub(r":\d*$", "", Request(scope).headers.get("host", "localhost")).lower()
        if not any(fnmatchcase(host, name) for name in self.names):
            try:
                ipaddress.ip_address(host.strip("[]"))  # no page can make an address its own
            except ValueError:
                allowed = f"IP addresses, {', '.join(sorted(self.names))}; --allowed_hosts of the service adds names"
                raise HTTPException(400, f"Host is {host[:80]!r}; allowed: {allowed}") from None

    async def _with_body(self, receive: Receive) -> Receive:
        """`receive` that gives the whole body at once; HTTPException if it is too long or arrives too late."""
        args = self.service.args

        async def read() -> Message:
            body, message = bytearray(), {"more_body": True}
            while message.get("more_body") and len(body) <= args.max_body_bytes:
                message = await receive()
                body += message.get("body", b"")
            return {**message, "body": bytes(body)}

        try:
            messages = [await asyncio.wait_for(read(), args.read_timeout)]
        except asyncio.TimeoutError:
            text = f"the body did not arrive within {args.read_timeout:g} seconds"
            raise HTTPException(408, text, {"Connection": "close"}) from None
        if len(messages[0]["body"]) > args.max_body_bytes:
            raise HTTPException(413, f"the body has more than {args.max_body_bytes} bytes")

        async def received() -> Message:
            return messages.pop() if messages else await receive()

        return received


async def _give_back_memory() -> None:
    """Return free memory to the system from time to time, if the C library can.

    Batches of many sizes leave gaps between memory in use, which glibc keeps: 100 MB in a minute.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(TRIM_SECONDS)
        await asyncio.to_thread(trim, 0)


async def _result(request: Request, content: BaseModel, service: Service) -> dict[str, Any]:
    """The result of a service's work; HTTPException if the client has left, or waits for too long."""
    seconds = service.args.request_timeout
    # The body was read; what comes next is that the client closes the connection.
    work, departure = map(asyncio.ensure_future, (service.compute(content), request.receive()))
    try:
        ends = {work, departure, service.has_ended}
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        if departure.done():
            raise HTTPException(499, "the client left")  # nginx's status for this
        if service.has_ended.done():
            raise HTTPException(*ENDING)
        raise HTTPException(504, f"the answer was not there within {seconds:g} seconds")
    finally:
        work.cancel()
        departure.cancel()


def create_app(service: Service) -> FastAPI:
    """The application of a service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        trimming = asyncio.ensure_future(_give_back_memory())
        service.has_ended = asyncio.get_running_loop().create_future()
        yield
        trimming.cancel()
        await service.stop()

    key = service.args.key

    async def with_key(sent: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]) -> None:
        if sent is None or not hmac.compare_digest(sent.credentials.encode(), key.encode()):
            message = "the API key is missing or wrong; allowed: the service's, as 'Authorization: Bearer KEY'"
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

    guards = [] if key is None else [Depends(with_key)]

    async def refused(_: Request, error: HTTPException) -> Response:
        return failure(error)

    async def unfit(request: Request, error: RequestValidationError | InputError) -> Response:
        """FastAPI's answer to a bad request, but for the input, which may be long, or nothing that JSON can hold."""
        errors = [{"type": "value_error", "loc": ["body"], "msg": str(error)}]
        if "json" not in request.headers.get("content-type", "").lower():
            errors[0]["msg"] = "not sent as JSON; allowed: the header 'Content-Type: application/json'"
        elif isinstance(error, RequestValidationError):
            errors = [{name: each[name] for name in ("type", "loc", "msg")} for each in error.errors()]
        return Response(json.dumps({"detail": errors}), 422, media_type="application/json")

    app = FastAPI(
        title=service.title,
        description=service.about,
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        exception_handlers={
            **dict.fromkeys((HTTPException, 404, 405), refused),
            **dict.fromkeys((RequestValidationError, InputError), unfit),
            400: lambda *_: failure(HTTPException(400, "the body is no UTF-8 text, or nested too deeply")),
            Exception: lambda *_: failure(HTTPException(500, "a fault of the service; its log says more")),
        },
    )
    app.add_middleware(Gate, service=service)

    @app.post(
        service.path,
        dependencies=guards,
        description=inspect.cleandoc(service.description),
        response_model=service.answer_model,
        response_model_exclude_none=True,
    )
    async def answer(request: Request, content: service.request_model) -> Any:
        start = time.perf_counter()
        with service.room(len(content.inputs)):
            fields = await _result(request, content, service)
        seconds = time.perf_counter() - start
        service.seconds.observe(seconds)
        return {**fields, "seconds": round(seconds, 4)}

    @app.get("/healthz")
    async def healthz() -> Response:
        """200 while requests are answered, 500 if none is any more."""
        engine = service.engine
        status, code = ("failed", 500) if engine.has_ended else ("ok", 200)
        return JSONResponse({"status": status, "queue": len(engine.waiting), "batch": len(engine.in_work)}, code)

    @app.get("/livez")
    async def livez() -> dict[str, str]:
        """200 unless only a new process can answer requests."""
        if service.engine.has_ended and not service.is_ending:
            raise HTTPException(503, "decoding has ended; the service's log says why")
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        """200 while there is room for requests."""
        await livez()
        with service.room(1):
            return {"status": "ok"}

    @app.get("/metrics", dependencies=guards)
    async def metrics() -> Response:
        """Prometheus's text format."""
        return Response(prometheus.generate_latest(service.registry), media_type=prometheus.CONTENT_TYPE_LATEST)

    @app.get("/")
    async def index() -> Response:
        """A page to try the service."""
        page = page_template(Path(__file__).with_name(service.page_file)).render(service=service)
        return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})

    return app
