"""The server: many clients at once, its end, and its page in a browser."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import httpx2
import pytest

from tests.utils.long_texts import tokens
from tests.utils.serving.conftest import POSITIONS, Decoder, service, until
from utils.models.loading import load_for_evaluation
from utils.prediction.options import InferenceOptions, LongDocumentOptions
from utils.prediction.summarizing import summarize
from utils.serving.__main__ import Config, answered, bound_socket, serve
from utils.serving.arguments import ServeArguments
from utils.serving.service import CLOSING_SECONDS

ROOT = Path(__file__).parents[3]
OPTIONS = [{}, {}, {"num_beams": 1}, {"max_length": 9, "length_penalty": 0.5}]
ARTICLE = {"text": "A dog ran."}
ENDING = (503, {"error": "the service is shutting down"})


@contextmanager
def service_process(model: Path, log: Path, *options: object) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The service as users start it, on a free port; its process and its address."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", "scripts/serve.sh", str(model), "--port", "0", "--gpus", "0", *map(str, options)]
    with log.open("wb") as stderr, subprocess.Popen(command, cwd=ROOT, env=environment, stderr=stderr) as process:
        try:
            until(lambda: "listening at" in log.read_text() or process.poll() is not None)
            listening = re.search(r"listening at (http://127\.0\.0\.1:\d+)", log.read_text())
            assert listening is not None, log.read_text()
            yield process, listening[1]
        finally:
            process.kill()


async def ask_all(address: str, requests: Sequence[dict[str, Any]], end: Callable[[], None] | None = None) -> list[Any]:
    """Let fifty clients ask the requests one after the other.

    Args:
        end: ends the service when the fiftieth answer is there. From then on a client asks until it is refused, or
            until it cannot connect any more; each request that was sent before is answered.

    Returns:
        Each summary; None for requests that the service did not take any more.
    """
    answers: list[Any] = [None] * len(requests)
    numbers = iter(range(len(requests)))

    async def ask() -> None:
        for number in numbers:
            is_late = bool(ended)
            try:
                answer = await client.post("/summarize", json=requests[number])
            except httpx2.TransportError:
                assert is_late
                return
            if ended and answer.status_code == 503:
                assert (answer.headers["connection"], answer.headers["retry-after"]) == ("close", "5")
                assert (answer.status_code, answer.json()) == ENDING
                return
            assert answer.status_code == 200, answer.text
            answers[number] = answer.json()["summary"]
            if end is not None and not ended and len(answers) - answers.count(None) >= 50:
                ended.append(end())

    ended: list[None] = []
    limits = httpx2.Limits(max_connections=50, max_keepalive_connections=50)
    async with httpx2.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
        await asyncio.gather(*(ask() for _ in range(50)))
    return answers


def memory(address: str) -> float:
    """Bytes in physical memory, as the service reports it."""
    return float(re.search(r"^process_resident_memory_bytes (\S+)", httpx2.get(f"{address}/metrics").text, re.M)[1])


@pytest.mark.slow
def test_fifty_clients_get_what_each_would_get_alone(export: Path, texts: list[str], tmp_path: Path) -> None:
    requests = [{"text": text, **OPTIONS[index % len(OPTIONS)]} for index, text in enumerate(texts)]
    loaded = load_for_evaluation(export, None)
    expected = [summarize(request["text"], *loaded, **OPTIONS[i % len(OPTIONS)]) for i, request in enumerate(requests)]
    assert len(set(expected)) > 30
    with service_process(export, tmp_path / "log", "--threads", 1) as (process, address):
        assert asyncio.run(ask_all(address, requests * 3)) == expected * 3
        answers = asyncio.run(ask_all(address, requests * 50, lambda: process.send_signal(signal.SIGTERM)))
        assert process.wait(60) == 128 + signal.SIGTERM
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert log.index("loading ") < log.index("listening at http://")
    answered = [answer == right for answer, right in zip(answers, expected * 50, strict=True) if answer is not None]
    assert all(answered)
    assert 50 <= len(answered) < len(answers)


@pytest.mark.slow
def test_memory_does_not_grow(export: Path, texts: list[str], tmp_path: Path) -> None:
    requests = [{"text": text, **OPTIONS[index % len(OPTIONS)]} for index, text in enumerate(texts)]
    with service_process(export, tmp_path / "log", "--threads", 1) as (_, address):
        asyncio.run(ask_all(address, requests * 160))  # until there are kernels for most shapes of batches
        before = memory(address)
        asyncio.run(ask_all(address, requests * 80))
        assert memory(address) < 1.05 * before


@contextmanager
def server_thread(export: Path, **options: Any) -> Iterator[tuple[Callable[[], None], str]]:
    """A server in a thread of this process: what ends it, and its address."""
    bound, ending = bound_socket("127.0.0.1", 0), threading.Event()
    address = "http://127.0.0.1:{1}".format(*bound.getsockname())
    thread = threading.Thread(target=asyncio.run, args=[serve(service(export, **options), bound, ending.is_set)])
    thread.start()
    try:
        yield ending.set, address
    finally:
        ending.set()
        thread.join(60)
        assert not thread.is_alive()


def sent(address: str, content: dict[str, Any], missing: int = 0) -> socket.socket:
    """A request whose answer nobody has read yet; `missing` bytes of its body do not arrive."""
    body = json.dumps(content).encode()
    connection = socket.create_connection(("127.0.0.1", httpx2.URL(address).port), timeout=60)
    head = "POST /summarize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body) + missing}\r\n\r\n".encode() + body)
    return connection


def answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and content of the last answer on a connection."""
    received = b"".join(iter(lambda: connection.recv(10_000), b"")).decode()
    connection.close()
    return int(received.split()[1]), json.loads(received.split("\r\n\r\n")[1])


def in_work(address: str, queue: int, batch: int) -> None:
    """Wait until so many articles wait and are in work."""
    until(lambda: json.load(urlopen(f"{address}/healthz")) == {"status": "ok", "queue": queue, "batch": batch})


def test_a_long_document_takes_turns_with_other_requests(export: Path, decoder: Decoder) -> None:
    """It takes one place of two."""
    text = "The cat sat. " * 400
    windows = math.ceil(tokens(text) / (POSITIONS - 2))
    with server_thread(export, batch_size=1, max_queue=2) as (_, address):
        long = sent(address, {"text": text})
        in_work(address, queue=windows - 1, batch=1)
        short = sent(address, ARTICLE)
        in_work(address, queue=windows, batch=1)
        error = {"error": "2 inputs are in work and this request has 1; allowed: 2; try again"}
        assert answer(sent(address, ARTICLE)) == (503, error)
        decoder.steps.release(3)  # for two windows and the short text
        assert answer(short)[0] == 200
        in_work(address, queue=windows - 3, batch=1)
        decoder.run()
        assert answer(long)[1]["windows"] == [windows]


def test_a_busy_service_says_so_at_once(export: Path, decoder: Decoder) -> None:
    with server_thread(export, max_queue=4) as (_, address):
        work = [sent(address, ARTICLE)]
        in_work(address, queue=0, batch=1)
        work.append(sent(address, {"texts": ["A dog.", "A cat."], "num_beams": 1}))
        in_work(address, queue=2, batch=1)
        work.append(sent(address, {**ARTICLE, "num_beams": 2, "max_length": 16, "min_length": None}))  # the model's own
        in_work(address, queue=3, batch=1)
        refused = httpx2.post(f"{address}/summarize", json={"texts": ["A dog."] * 2})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        decoder.run()
        assert [answer(connection)[0] for connection in work] == [200] * 3


def test_a_client_that_leaves_leaves_no_work_behind(export: Path, decoder: Decoder) -> None:
    with server_thread(export, batch_size=1) as (_, address):
        working = sent(address, ARTICLE)
        in_work(address, queue=0, batch=1)
        leaving = sent(address, ARTICLE)
        in_work(address, queue=1, batch=1)
        leaving.close()
        in_work(address, queue=0, batch=1)
        assert 'path="/summarize",status="499"} 1.0' in httpx2.get(f"{address}/metrics").text
        decoder.run()
        assert answer(working)[0] == 200


def test_what_comes_too_late(export: Path, decoder: Decoder) -> None:
    """A body, and an answer, whose articles then leave the queue."""
    with server_thread(export, batch_size=1, read_timeout=0.3, request_timeout=0.5) as (_, address):
        error = {"error": "the body did not arrive within 0.3 seconds"}
        assert answer(sent(address, ARTICLE, missing=10)) == (408, error)
        error = {"error": "the answer was not there within 0.5 seconds"}
        assert answer(sent(address, {"texts": ["A dog ran."] * 20})) == (504, error)
        in_work(address, queue=0, batch=1)
        decoder.run()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_faults_are_answered(export: Path, decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder.bad_options = {"num_beams": 1}
    decoder.run()
    failed = (500, {"error": "decoding failed; the service's log says why"})
    with server_thread(export) as (_, address):
        assert answer(sent(address, {**ARTICLE, "num_beams": 1})) == failed
        assert answer(sent(address, ARTICLE))[0] == 200
        decoder.fault = SystemExit()  # ends the thread
        assert [answer(sent(address, ARTICLE)) for _ in range(2)] == [failed] * 2
        health = httpx2.get(f"{address}/healthz")
        assert (health.status_code, health.json()) == (500, {"status": "failed", "queue": 0, "batch": 0})
        for path in ("livez", "readyz"):
            found = httpx2.get(f"{address}/{path}")
            assert (found.status_code, found.json()) == (
                503,
                {"error": "decoding has ended; the service's log says why"},
            )
        monkeypatch.setattr("utils.serving.summaries.Documents", lambda *_: 1 / 0)
        assert answer(sent(address, ARTICLE)) == (500, {"error": "a fault of the service; its log says more"})


def test_what_is_in_work_is_finished(export: Path, decoder: Decoder) -> None:
    with server_thread(export, batch_size=1) as (end, address):
        kept = httpx2.Client(base_url=address)
        kept.get("/healthz")
        idle = socket.create_connection(("127.0.0.1", httpx2.URL(address).port), timeout=60)
        work = [sent(address, ARTICLE) for _ in range(5)]
        in_work(address, queue=4, batch=1)
        end()
        until(lambda: httpx2.get(f"{address}/healthz").status_code == 503)
        answers = [kept.post("/summarize", json={"text": "A cat sat." * 5000}), httpx2.get(f"{address}/metrics")]
        for refused in answers:
            assert (refused.status_code, refused.json()) == ENDING
            assert (refused.headers["connection"], refused.headers["retry-after"]) == ("close", "5")
        decoder.run()
        assert [answer(connection)[0] for connection in work] == [200] * 5
        assert idle.recv(10) == b""


def test_work_that_takes_too_long_is_given_up_at_the_end(export: Path, decoder: Decoder) -> None:
    """The process is alive while it finishes its work."""
    with server_thread(export, batch_size=1, drain_seconds=0.5) as (end, address):
        work = [sent(address, ARTICLE) for _ in range(2)]
        in_work(address, queue=1, batch=1)
        end()
        until(lambda: httpx2.get(f"{address}/readyz").status_code == 503)
        assert httpx2.get(f"{address}/livez").json() == {"status": "ok"}
        assert [answer(connection) for connection in work] == [ENDING] * 2
        decoder.run()


def test_kubernetes_kills_only_what_its_default_grace_leaves() -> None:
    args = ServeArguments(inference=InferenceOptions(model="a", gpus=0), documents=LongDocumentOptions())
    closing = Config(bound_socket("127.0.0.1", 0), args.read_timeout).graceful_timeout
    assert args.drain_seconds + closing + CLOSING_SECONDS < 30


def test_readiness_and_what_waits(export: Path, decoder: Decoder) -> None:
    def gauges() -> list[float]:
        text = httpx2.get(f"{address}/metrics").text
        return [
            float(re.search(rf"^bart_{name} (\S+)$", text, re.M)[1]) for name in ("requests_waiting", "queue_seconds")
        ]

    def ready() -> tuple[int, dict[str, str]]:
        answer = httpx2.get(f"{address}/readyz")
        return answer.status_code, answer.json()

    with server_thread(export, batch_size=1, max_queue=4) as (_, address):
        assert (ready(), gauges()) == ((200, {"status": "ok"}), [0, 0])
        work = [sent(address, ARTICLE)]
        in_work(address, queue=0, batch=1)
        work.append(sent(address, {"texts": ["A dog.", "A cat."]}))
        in_work(address, queue=2, batch=1)
        assert (ready(), gauges()[0]) == ((200, {"status": "ok"}), 1)
        work.append(sent(address, ARTICLE))
        in_work(address, queue=3, batch=1)
        full = "4 inputs are in work and this request has 1; allowed: 4; try again"
        assert ready() == (503, {"error": full})
        time.sleep(0.1)
        assert gauges()[0] == 2 and 0.1 < gauges()[1] < 60
        decoder.run()
        assert [answer(connection)[0] for connection in work] == [200] * 3
        assert (ready(), gauges()) == ((200, {"status": "ok"}), [0, 0])


def test_a_service_that_loads_is_alive_and_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        address = "http://127.0.0.1:{1}".format(*bound.getsockname())
        with answered(bound, 10):
            assert httpx2.get(f"{address}/livez").status_code == 200
            for ask in (httpx2.get(f"{address}/readyz"), httpx2.post(f"{address}/summarize", json=ARTICLE)):
                assert (ask.status_code, ask.json()) == (503, {"error": "the model is being loaded"})
        with pytest.raises(httpx2.TimeoutException):  # it waits for the service itself
            httpx2.get(f"{address}/livez", timeout=0.2)


def received(connection: socket.socket) -> bytes:
    """All that the service sends before it closes a connection."""
    return b"".join(iter(lambda: connection.recv(10_000), b""))


def test_a_header_must_arrive_in_time(export: Path) -> None:
    with server_thread(export, read_timeout=0.5) as (_, address):
        silent, half, second = (socket.create_connection(("127.0.0.1", httpx2.URL(address).port), 30) for _ in range(3))
        half.sendall(b"POST /summarize HTT")
        second.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.2)
        second.sendall(b"GET /healthz HT")
        assert [received(connection) for connection in (silent, half)] == [b""] * 2
        assert received(second).count(b"HTTP/1.1 ") == 1
        assert httpx2.get(f"{address}/healthz").status_code == 200


@pytest.mark.slow
def test_a_thousand_idle_connections(export: Path, texts: list[str], tmp_path: Path) -> None:
    """Forty clients get the right answers meanwhile, and /healthz its own soon; it took ten seconds and more."""
    loaded = load_for_evaluation(export, None)
    expected = {text: summarize(text, *loaded) for text in texts}
    are_right, waits = [], []

    async def hold(number: int, port: int) -> None:
        while (left := end - time.monotonic()) > 0:
            with suppress(OSError, asyncio.TimeoutError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                with closing(writer):
                    writer.write(b"POST /summ" * (number % 2))
                    await asyncio.wait_for(reader.read(), left)
            await asyncio.sleep(0.1)

    async def ask(number: int, client: httpx2.AsyncClient) -> None:
        while time.monotonic() < end:
            for text in texts[number % 5 :: 5]:
                answer = await client.post("/summarize", json={"text": text})
                are_right.append(answer.json().get("summary") == expected[text])

    async def check(client: httpx2.AsyncClient) -> None:
        while time.monotonic() < end:
            began = time.monotonic()
            assert (await client.get("/healthz")).status_code == 200
            waits.append(time.monotonic() - began)

    async def load(address: str) -> None:
        limits, headers = httpx2.Limits(max_connections=50), {"Connection": "close"}
        async with httpx2.AsyncClient(base_url=address, timeout=120, limits=limits, headers=headers) as client:
            idle = [hold(number, httpx2.URL(address).port) for number in range(1000)]
            await asyncio.gather(*idle, *(ask(number, client) for number in range(40)), check(client))

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))  # which the service inherits
    try:
        with service_process(export, tmp_path / "log", "--threads", 1, "--read_timeout", 5) as (_, address):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            end = time.monotonic() + 20
            asyncio.run(load(address))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(are_right) and len(are_right) > 100
    # On two cores of their own none waits for a second; on busy ones the first do, while all clients connect.
    assert statistics.median(waits) < 1 and max(waits) < 5, sorted(waits)
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_requests_in_work_have_a_limit(export: Path) -> None:
    """Those with GET neither count nor are refused."""
    with server_thread(export, max_clients=1) as (_, address):
        held = sent(address, ARTICLE, missing=10)
        until(lambda: httpx2.post(f"{address}/summarize").status_code == 503)
        refused = httpx2.post(f"{address}/summarize").json()
        assert refused == {"error": "1 requests are in work; allowed: 1; try again"}
        assert [httpx2.get(f"{address}/{path}").status_code for path in ("healthz", "metrics", "")] == [200] * 3
        held.close()
        until(lambda: httpx2.post(f"{address}/summarize").status_code == 422)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux alone has this option")
def test_clients_that_do_not_read_are_closed(export: Path) -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with server_thread(export, read_timeout=1) as (_, address), socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        in_work(address, queue=0, batch=0)  # it has begun
        time.sleep(0.2)
        before = files()
        client.connect(("127.0.0.1", httpx2.URL(address).port))
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.send(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000)
        until(lambda: files() > before)
        until(lambda: files() <= before)


def test_head_is_get_without_a_body(export: Path) -> None:
    with server_thread(export) as (_, address):
        for path in ("/", "/healthz", "/openapi.json", "/metrics", "/summarize", "/no"):
            head, get = httpx2.head(f"{address}{path}"), httpx2.get(f"{address}{path}")
            assert (head.status_code, head.headers["content-type"]) == (get.status_code, get.headers["content-type"])
            assert head.content == b"" != get.content


def test_the_page_in_a_browser(export: Path, texts: list[str]) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium is installed")
    expect = playwright.expect
    options = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's own sandbox does not run as root
    with server_thread(export, api_key="s3cret") as (_, address), playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=options)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address)
        expect(page.locator("body")).to_contain_text(f"{export.parent.name}/{export.name}, fp32 on the CPU")
        for folded in ("[name=num_beams]", "a"):
            expect(page.locator(folded)).to_be_hidden()
        text_box, button = (page.locator(name).bounding_box() for name in ("#text", "#send"))
        assert 0 <= button["y"] - text_box["y"] - text_box["height"] < 30
        page.fill("#text", text := "The cat sat on the mat. " * 40)
        page.fill("#key", "s3cret")
        page.click("#send")
        headers = {"Authorization": "Bearer s3cret"}
        answer = httpx2.post(f"{address}/summarize", json={"text": text}, headers=headers, timeout=60).json()
        expect(page.locator("#summary")).to_have_text(answer["summary"])
        expect(page.locator("#figures")).to_contain_text(f"; the text was split into {answer['windows'][0]} windows")
        assert problems == []

        page.click("summary")
        page.fill("[name=max_length]", "12")
        page.click("#send")
        asked = {"text": text, "max_length": 12}
        answer = httpx2.post(f"{address}/summarize", json=asked, headers=headers, timeout=60).json()
        expect(page.locator("#summary")).to_have_text(answer["summary"])
        page.fill("[name=num_beams]", "999")
        page.click("#send")
        expect(page.locator("#error")).to_contain_text("num_beams: Input should be less than")
        page.fill("[name=num_beams]", "")
        page.fill("#text", " ")
        page.click("#send")
        expect(page.locator("#error")).to_contain_text("a text that is not blank is expected")
        expect(page.locator("#figures")).to_be_hidden()
        page.fill("#key", "")
        page.click("#send")
        expect(page.locator("#error")).to_contain_text("the API key is missing or wrong")
        browser.close()
