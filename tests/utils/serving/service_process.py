"""A service in a process of its own, and clients for it that need no HTTP library."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


@dataclass
class ServiceProcess:
    """A running service; `log` grows as it writes."""

    process: subprocess.Popen[str]
    port: int
    log: list[str]

    def ask(
        self, path: str = "/summarize", content: Any = None, method: str = "POST", **headers: str
    ) -> tuple[int, Any]:
        """Status and content of an answer; content is sent as JSON unless it is bytes."""
        return ask(self.port, path, content, method, **headers)

    def memory(self) -> int:
        """Bytes in physical memory, by the service's own account."""
        return int(float(re.search(r"^process_resident_memory_bytes (\S+)", self.metrics(), re.MULTILINE)[1]))

    def metrics(self) -> str:
        return self.ask("/metrics", method="GET")[1]

    def stop(self, sig: int = signal.SIGTERM) -> int:
        self.process.send_signal(sig)
        return self.process.wait(60)


def ask(port: int, path: str, content: Any = None, method: str = "POST", **headers: str) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        body = content if content is None or isinstance(content, bytes) else json.dumps(content).encode()
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(text) if is_json else text
    finally:
        connection.close()


@contextmanager
def service_process(
    model: Path, *options: object, command: Sequence[str] = ("bash", "scripts/serve.sh")
) -> Iterator[ServiceProcess]:
    """A service on a free port."""
    command = [*command, str(model), "--port", "0", "--gpus", "0", *map(str, options)]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    log: list[str] = []
    listening = threading.Event()

    def read() -> None:
        for line in process.stderr:
            log.append(line)
            if "listening at" in line:
                listening.set()
        listening.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        listening.wait(60)
        found = re.search(r"listening at http://127\.0\.0\.1:(\d+)", "".join(log))
        assert found is not None, "".join(log)
        service = ServiceProcess(process, int(found[1]), log)
        until(lambda: answers(service))
        yield service
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()


def answers(service: ServiceProcess) -> bool:
    try:
        return service.ask("/healthz", method="GET")[0] == 200
    except ConnectionRefusedError:
        return False


def until(condition: Any, seconds: float = 30) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come to be"
        time.sleep(0.01)


@dataclass
class Load:
    """What came back: per answer the text's number, status, content and seconds; and how long healthz took."""

    answers: list[tuple[int, int, Any, float]] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.answers) / self.seconds

    def percentile(self, percent: float) -> float:
        latencies = sorted(latency for *_, latency in self.answers)
        return latencies[min(len(latencies) - 1, int(len(latencies) * percent / 100))]


def load(port: int, requests: Sequence[dict[str, Any]], clients: int, seconds: float) -> Load:
    """Let so many clients ask one request after the other for so many seconds, each on its own connection."""
    return asyncio.run(_load(port, [json.dumps(request).encode() for request in requests], clients, seconds))


async def _load(port: int, bodies: Sequence[bytes], clients: int, seconds: float) -> Load:
    found = Load()
    start = time.monotonic()
    turn = iter(range(1 << 60))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() - start < seconds:
            number = next(turn) % len(bodies)
            began = time.monotonic()
            status, content = await exchange(reader, writer, "POST /summarize", bodies[number])
            found.answers.append((number, status, json.loads(content), time.monotonic() - began))
        writer.close()

    async def health() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() - start < seconds:
            began = time.monotonic()
            await exchange(reader, writer, "GET /healthz")
            found.health.append(time.monotonic() - began)
            await asyncio.sleep(0.1)
        writer.close()

    await asyncio.gather(health(), *(client() for _ in range(clients)))
    found.seconds = time.monotonic() - start
    return found


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: str, body: bytes = b""
) -> tuple[int, bytes]:
    """A request on an open connection; status and body of its answer."""
    writer.write(f"{line} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(re.search(r"content-length: (\d+)", head)[1])
    return int(head.split()[1]), await reader.readexactly(length)
