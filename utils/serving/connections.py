"""Connections of the service: how many there may be, and how long a client may take to send a header and to read."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

ACCEPTED_AT_ONCE = 16  # before any of them is counted
MOST_CONNECTIONS = 4096
SPARE_DESCRIPTORS = 32 + 3 * ACCEPTED_AT_ONCE  # for files, and for connections that are not counted yet


def most_connections() -> int:
    """Return how many connections this process may hold, so that descriptors are left for other uses."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    descriptors = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    return min(MOST_CONNECTIONS, max(1, allowed - len(os.listdir(descriptors)) - SPARE_DESCRIPTORS))


class Connection(H11Protocol):
    """A connection that is closed if a header does not arrive in time, or if what was sent is not read in time.

    If there are too many, the one that has been without a request for the longest time makes room; if all have one, the
    new connection is answered by 503.

    Args:
        free: the connections without a request, in the order in which they became so; one object for all of them.
        most: connections that there may be at once.
        seconds: the time from the beginning of a connection, or of a later request, to the end of the header, and from
            the moment in which the system takes no more bytes for the client to that in which it has taken all.
    """

    def __init__(self, *args: Any, free: dict[Connection, None], most: int, seconds: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.free, self.most, self.seconds = free, most, seconds
        self.deadline: asyncio.TimerHandle | None = None
        self.reading_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # writing is paused as long as any byte waits
        if len(self.connections) > self.most:
            if self.free:
                next(iter(self.free)).close()
            else:
                self.close(503, f"{self.most} connections have a request; allowed: {self.most}; try again")
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.reading_deadline = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.reading_deadline is not None:
            self.reading_deadline.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # Not if a further request was there already.
        if self.cycle.response_complete and not self.transport.is_closing():
            self.free[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Begin the time in which a header must arrive, or end it where a request is being answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self.deadline is None and not self.transport.is_closing():
            self.free[self] = None
            self.deadline = self.loop.call_later(self.seconds, self._end)

    def _forget(self) -> None:
        self.free.pop(self, None)
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def _end(self) -> None:
        has_begun, _ = self.conn.trailing_data
        if has_begun:
            self.close(408, f"the header did not arrive within {self.seconds:g} seconds")
        else:
            self.close()

    def close(self, status: int | None = None, error: str = "") -> None:
        """Close the connection, after an answer if there is a status and none was given before."""
        if self.transport.is_closing():
            return
        if status is not None and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": error}).encode()
            headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("retry-after", "1")]
            response = h11.Response(status_code=status, headers=[*headers, ("connection", "close")])
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self._forget()
        self.connections.discard(self)
        self.transport.close()
