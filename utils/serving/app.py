"""The routes of the service, and what is checked before them."""

from __future__ import annotations

import asyncio
import ctypes
import hmac
import inspect
import ipaddress
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from fnmatch import fnmatchcase
from typing import Annotated, Any

import prometheus_client as prometheus
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from bart.errors import InputError
from utils.serving.arguments import HEAD_PATHS
from utils.serving.engine import Busy
from utils.serving.requests import Failure
from utils.serving.service import Service

Message = MutableMapping[str, Any]  # of ASGI
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
DISCARD_SECONDS = 1
TRIM_SECONDS = 5
PATHS = ("/summarize", *HEAD_PATHS.values(), "/", "/healthz", "/metrics", "/openapi.json")
BEARER = HTTPBearer(auto_error=False, description="The key that the service was started with.")
ENDING = HTTPException(503, "the service is shutting down", {"Retry-After": "5"})
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)


async def _give_back_memory() -> None:
    """Return free memory to the system from time to time, if the C library can.

    Batches of many sizes leave gaps between memory in use, which glibc keeps: 100 MB in a minute.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(TRIM_SECONDS)
        await asyncio.to_thread(trim, 0)


def failure(error: HTTPException) -> JSONResponse:
    """The answer to a request that is refused."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _refuse_at_the_end(scope: Message, receive: Receive, send: Send) -> None:
    async def discard_body() -> None:
        while (await receive()).get("more_body"):
            pass

    # A connection that is closed while a body arrives is reset, and the answer may be lost.
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(discard_body(), DISCARD_SECONDS)
    await failure(ENDING)(scope, receive, send)


class Gate:
    """ASGI middleware that lets requests in, answers HEAD like GET, and counts answers by path and status.

    A Host header that is not allowed is refused, because a web page whose own name was made to point to this machine
    could read the answers. At the service's end new requests are refused, connections are closed once they are
    answered, and a request that the server cancels gets an answer that says so.
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
        status = 500  # unless there is an answer

        async def observe(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if service.is_ending and "status" in message:
                message["headers"].append((b"connection", b"close"))
            await send(message)

        service = self.service
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves the body out
        try:
            await self._app_for(scope)(scope, receive, observe)
        except asyncio.CancelledError:
            await failure(ENDING)(scope, receive, observe)
        finally:
            service.answers.labels(scope["path"] if scope["path"] in PATHS else "other", str(status)).inc()

    def _app_for(self, scope: Message) -> App:
        """The application that answers a request: the service's own, or one that refuses it."""
        if self.service.is_ending:
            return _refuse_at_the_end
        most, is_work = self.service.args.max_clients, scope["method"] != "GET"
        if is_work and self.service.in_work >= most:
            return failure(Busy(f"{most} requests are in work; allowed: {most}; try again"))
        # Browsers always send the header, and old health checks do not.
        host = re.sub(r":\d*$", "", Request(scope).headers.get("host", "localhost")).lower()
        if self._is_allowed(host):
            return self._let_in if is_work else self.app
        allowed = f"IP addresses, {', '.join(sorted(self.names))}; --allowed_hosts of the service adds names"
        return failure(HTTPException(400, f"Host is {host[:80]!r}; allowed: {allowed}"))

    async def _let_in(self, scope: Message, receive: Receive, send: Send) -> None:
        self.service.in_work += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.service.in_work -= 1

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
        # Every thread that allocates has an arena of its own, so memory is returned in a thread that is there anyway.
        asyncio.get_running_loop().set_default_executor(service.executor)
        trimming = asyncio.ensure_future(_give_back_memory())
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

    async def lost(request: Request, error: HTTPException) -> Response:
        body = json.dumps(service.request_model.example)
        error.detail = (
            f"{request.method} {request.url.path[:80]}: {error.detail.lower()}; allowed: POST {service.path} with JSON "
            f"such as {body}, or GET /, /healthz, /metrics and /openapi.json"
        )
        return failure(error)

    async def unfit(_: Request, error: InputError) -> Response:
        return failure(HTTPException(422, str(error)))

    async def fault(_: Request, error: Exception) -> Response:
        return failure(HTTPException(500, "a fault of the service; its log says more"))

    app = FastAPI(
        title=service.title,
        description=service.about,
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        exception_handlers={HTTPException: refused, 404: lost, 405: lost, InputError: unfit, Exception: fault},
    )
    app.add_middleware(Gate, service=service)
    schema = service.request_model.model_json_schema()

    @app.post(
        service.path,
        dependencies=guards,
        description=inspect.cleandoc(service.description),
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
        return HTMLResponse(service.page(), headers={"Content-Security-Policy": PAGE_POLICY})

    return app
