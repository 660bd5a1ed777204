"""What happens to a request before it reaches the application: limits, and counting."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from fnmatch import fnmatchcase
from typing import Any

from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse
from prometheus_client import Counter

from utils.serving.arguments import ServeArguments

# The types of ASGI
Message = Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
BUSY = {"Retry-After": "1"}
ENDING = {"Retry-After": "5"}
PATHS = ("/summarize", "/", "/healthz", "/metrics", "/openapi.json")


def failure(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The answer to a request that gets no summary."""
    return JSONResponse({"error": message}, status, headers)


class Gate:
    """ASGI middleware that refuses requests and counts answers by path and status.

    It refuses requests whose Host header is not allowed, because a web page whose own name was made to point to this
    machine could read the answers; requests to /summarize while too many are open; and bodies that are too large or
    arrive too slowly. A request that the server cancels at its end gets an answer that says so.
    """

    def __init__(self, app: ASGIApp, args: ServeArguments, answers: Counter) -> None:
        self.app = app
        self.args = args
        self.answers = answers
        self.names = {"localhost", socket.gethostname().lower(), args.host, *map(str.lower, args.allowed_hosts)}
        self.open = 0  # requests to /summarize

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in PATHS else "other"
        status = 500  # unless there is an answer

        async def counted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        self.open += path == "/summarize"
        try:
            request = Request(scope)
            header = request.headers.get("host", request.url.netloc)
            # Starlette ignores a header that is not the name of a host.
            host = (request.url.hostname or "") if header == request.url.netloc else header
            if not self._is_allowed(host):
                allowed = f"IP addresses, {', '.join(sorted(self.names))}; --allowed_hosts of the service adds names"
                await failure(400, f"Host is {host[:80]!r}; allowed: {allowed}")(scope, receive, counted)
            elif path == "/summarize" and self.open > self.args.max_clients:
                message = f"{self.open - 1} requests are open; allowed: {self.args.max_clients}; try again"
                await failure(503, message, BUSY)(scope, receive, counted)
            else:
                await self.app(scope, self._limited(receive), counted)
        except asyncio.CancelledError:
            await failure(503, "the service is shutting down", ENDING)(scope, receive, counted)
        finally:
            self.open -= path == "/summarize"
            self.answers.labels(path, str(status)).inc()

    def _is_allowed(self, host: str) -> bool:
        try:
            ipaddress.ip_address(host)  # no page can make an address its own
        except ValueError:
            return any(fnmatchcase(host, name) for name in self.names)
        return True

    def _limited(self, receive: Receive) -> Receive:
        """`receive`, but for a body that is too large or too slow it raises what FastAPI answers with."""
        limit, seconds = self.args.max_body_bytes, self.args.read_timeout
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        size = 0
        complete = False

        async def limited() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), end - clock())
            except asyncio.TimeoutError:
                late = f"the body did not arrive within {seconds:g} seconds"
                raise HTTPException(408, late, {"Connection": "close"}) from None
            size += len(message.get("body", b""))
            if size > limit:
                raise HTTPException(413, f"the body has more than {limit} bytes; allowed: {limit}")
            complete = not message.get("more_body", False)
            return message

        return limited
