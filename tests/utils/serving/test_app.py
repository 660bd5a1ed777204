"""The service over HTTP, its limits small: what is asked wrongly, too slowly, or by clients that leave."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.utils.serving.conftest import POSITIONS
from tests.utils.serving.service_process import ServiceProcess, service_process, until
from utils.cli import run_main
from utils.loading import load_for_evaluation
from utils.serving.__main__ import main
from utils.summarize import summarize

SLOW = {"max_length": POSITIONS, "min_length": POSITIONS, "num_beams": 4}  # more than a second for the tiny model
LIMITS = {
    "--max_body_bytes": 20_000,
    "--max_articles_per_request": 4,
    "--max_queue": 4,
    "--max_clients": 12,
    "--max_beams": 4,
    "--read_timeout": 1,
    "--request_timeout": 30,
    "--batch_size": 2,
    "--threads": 1,
}


@pytest.fixture(scope="module")
def service(export: Path) -> Iterator[ServiceProcess]:
    with service_process(export, *(word for pair in LIMITS.items() for word in pair)) as service:
        yield service


@pytest.fixture(autouse=True)
def idle(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test leaves the service without work, and alive."""
    yield
    if "service" in request.fixturenames:
        service = request.getfixturevalue("service")
        until(lambda: health(service) == {"status": "ok", "queue": 0, "batch": 0})


def health(service: ServiceProcess) -> dict[str, Any]:
    return service.ask("/healthz", method="GET")[1]


def connected(service: ServiceProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.port), timeout=20)


def sent(service: ServiceProcess, content: dict[str, Any]) -> socket.socket:
    """A request whose answer nobody has read yet."""
    body = json.dumps(content).encode()
    connection = connected(service)
    connection.sendall(b"POST /summarize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return connection


def status(connection: socket.socket) -> int:
    """That of an answer; 0 where the connection ends without one."""
    head = connection.recv(1000)
    return int(head.split()[1]) if head else 0


def count(service: ServiceProcess, path: str, code: int) -> float:
    found = re.search(rf'bart_requests_total{{path="{path}",status="{code}"}} (\S+)', service.metrics())
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize("options", [{}, {"num_beams": 1, "max_length": 9}, {"long_documents": "cut"}])
def test_summaries_are_those_of_summarize(
    service: ServiceProcess, export: Path, texts: list[str], options: dict[str, Any]
) -> None:
    texts = [texts[0], texts[38], texts[1]]  # the second is longer than the model
    expected = summarize(texts, *load_for_evaluation(export, None), **options)
    assert len(set(expected)) == 3
    code, content = service.ask(content={"texts": texts, **options})
    assert (code, content["summaries"]) == (200, expected)
    windows = 1 if options.get("long_documents") == "cut" else 2
    assert content["articles"] == 2 + windows
    assert 0 < content["seconds"] < 20
    for text, summary in zip(texts, expected, strict=True):
        code, content = service.ask(content={"text": text, **options})
        assert (code, content["summary"]) == (200, summary)


def test_windows_summaries_are_summarised_again(service: ServiceProcess, export: Path, texts: list[str]) -> None:
    options = {"long_documents": "resummarize", "max_length": 30, "min_length": 29}
    code, content = service.ask(content={"text": texts[38], **options})
    assert (code, content["summary"]) == (200, summarize(texts[38], *load_for_evaluation(export, None), **options))
    assert content["articles"] == 3


def test_bad_requests_get_one_line(service: ServiceProcess, texts: list[str]) -> None:
    for expected, message, body in (
        (400, "the body is empty", b""),
        (400, "not JSON", b"text"),
        (400, "not UTF-8", b'{"text": "\xff"}'),
        (422, "text is 5;", {"text": 5}),
        (422, "num_beams is 5; allowed: an integer from 1 to 4", {"text": "a", "num_beams": 5}),
        (422, f"max_length is {POSITIONS + 1}; ", {"text": "a", "max_length": POSITIONS + 1}),
        (422, "long_documents is 'refuse'", {"text": texts[38], "long_documents": "refuse"}),
        (413, "texts has 5 entries; allowed: at most 4", {"texts": ["a"] * 5}),
        (413, "makes 5 windows; allowed: at most 4", {"texts": ["a", "a", "a", texts[38]]}),
        (413, "makes at least 20 windows; allowed: at most 4", {"text": "cat " * 4000}),
    ):
        code, content = service.ask(content=body)
        assert (code, list(content)) == (expected, ["error"])
        assert message in content["error"]


def test_white_space_makes_no_windows(service: ServiceProcess, texts: list[str]) -> None:
    code, content = service.ask(content={"text": f"{texts[0]}{' ' * 15_000}{texts[1]}"})
    assert (code, content["articles"]) == (200, 2)


def test_wrong_paths_and_methods_have_the_same_form(service: ServiceProcess) -> None:
    for method, path, expected in (("GET", "/summarize", 405), ("POST", "/healthz", 405), ("PUT", "/no/such", 404)):
        code, content = service.ask(path, method=method)
        assert (code, list(content)) == (expected, ["error"])
        assert content["error"].startswith(f"no {method} {path} here; allowed: POST /summarize")
    assert count(service, "other", 404) > 0


def test_bodies_that_are_too_large(service: ServiceProcess) -> None:
    code, content = service.ask(content=b"x" * 5_000_000)  # more than the sockets hold
    assert (code, content) == (413, {"error": "the body has more than 20000 bytes; allowed: 20000"})
    with connected(service) as connection:  # without saying how large it is
        connection.sendall(b"POST /summarize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall((b"1000\r\n" + b"x" * 0x1000 + b"\r\n") * 5)
        assert status(connection) == 413
    with connected(service) as connection:  # before it is sent
        connection.sendall(
            b"POST /summarize HTTP/1.1\r\nHost: x\r\nContent-Length: 20001\r\nExpect: 100-continue\r\n\r\n"
        )
        assert status(connection) == 413


def test_a_head_that_is_too_large(service: ServiceProcess) -> None:
    with connected(service) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000)
        assert status(connection) == 400


@pytest.mark.parametrize("parts", [b"", b"POST /summarize HTT", b"GET / HTTP/1.1\r\nHost: x\r\nX: "])
def test_slow_heads_are_cut(service: ServiceProcess, parts: bytes) -> None:
    start = time.monotonic()
    with connected(service) as connection:
        connection.sendall(parts)
        assert status(connection) == 0
    assert 0.9 < time.monotonic() - start < 5


def test_slow_bodies_are_cut_and_hold_nobody_up(service: ServiceProcess) -> None:
    start = time.monotonic()
    dribbling = [connected(service) for _ in range(8)]
    for connection in dribbling:
        connection.sendall(b"POST /summarize HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    assert service.ask(content={"text": "A dog ran."})[0] == 200
    assert time.monotonic() - start < 1
    for _ in range(4):
        time.sleep(0.2)
        for connection in dribbling:
            connection.sendall(b" ")
    for connection in dribbling:
        assert status(connection) == 408
        connection.close()
    assert 0.9 < time.monotonic() - start < 5


def test_clients_that_vanish_leave_no_work_behind(service: ServiceProcess) -> None:
    gone = count(service, "/summarize", 499)
    work = [sent(service, {"text": "A dog ran.", **SLOW}) for _ in range(2)]
    until(lambda: health(service)["batch"] == 2)
    waiting = [sent(service, {"texts": ["A cat sat."] * 2, **SLOW}) for _ in range(2)]
    until(lambda: health(service)["queue"] == 4)
    for connection in waiting:
        connection.close()
    until(lambda: health(service)["queue"] == 0, 1)
    assert health(service)["batch"] == 2, "they were done before: shows nothing"
    work.pop().close()  # its result goes nowhere
    assert status(work.pop()) == 200
    half = connected(service)
    half.sendall(b"POST /summarize HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    half.close()
    until(lambda: count(service, "/summarize", 499) == gone + 4)


def test_a_full_queue_is_said_at_once(service: ServiceProcess) -> None:
    work = [sent(service, {"text": "A dog ran.", **SLOW}) for _ in range(2)]
    until(lambda: health(service)["batch"] == 2)
    waiting = sent(service, {"texts": ["A cat sat."] * 3, **SLOW})
    until(lambda: health(service)["queue"] == 3)
    error = "3 articles wait and this request has 2; allowed: 4; try again"
    assert service.ask(content={"texts": ["A cat sat."] * 2, **SLOW}) == (503, {"error": error})
    with sent(service, {"texts": ["A cat sat."] * 2, **SLOW}) as refused:
        assert b"\r\nretry-after: 1\r\n" in refused.recv(1000)
    assert [status(connection) for connection in [*work, waiting]] == [200] * 3


def test_too_many_clients(service: ServiceProcess) -> None:
    held = [sent(service, {"text": "A dog ran.", **SLOW}) for _ in range(2)]
    until(lambda: health(service)["batch"] == 2)
    for _ in range(10):
        held.append(connected(service))
        held[-1].sendall(b"POST /summarize HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
    until(lambda: service.ask(content={"text": "A dog ran."}) == (
        503, {"error": "12 requests are open; allowed: 12; try again"}
    ))  # fmt: skip
    for connection in held:
        connection.close()


def test_other_options_do_not_wait_for_ever(service: ServiceProcess) -> None:
    """While more articles with the same options come than the batch holds."""
    busy = [sent(service, {"text": "A dog ran.", **SLOW}) for _ in range(4)]
    until(lambda: health(service) == {"status": "ok", "queue": 2, "batch": 2})
    start = time.monotonic()
    assert service.ask(content={"text": "A dog ran.", "max_length": 9})[0] == 200
    now = health(service)
    assert now["queue"] + now["batch"] == 2, "they were all done: shows nothing"
    assert [status(connection) for connection in busy] == [200] * 4
    assert time.monotonic() - start < 20


def test_metrics_and_health(service: ServiceProcess) -> None:
    before = service.metrics()
    with sent(service, {"text": "A dog ran.", **SLOW}) as working:
        until(lambda: re.search(r"^bart_batch_articles 1\.0$", service.metrics(), re.MULTILINE))
        assert health(service) == {"status": "ok", "queue": 0, "batch": 1}
        assert status(working) == 200
    after = service.metrics()

    def value(name: str, text: str) -> float:
        return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])

    assert value("bart_generated_tokens_total", after) == value("bart_generated_tokens_total", before) + POSITIONS - 1
    assert value("bart_summarize_seconds_count", after) == value("bart_summarize_seconds_count", before) + 1
    assert value("bart_queue_articles", after) == 0
    if sys.platform == "linux":
        assert value("process_resident_memory_bytes", after) > 1e7


def test_the_page_and_the_description(service: ServiceProcess) -> None:
    code, page = service.ask("/", method="GET")
    assert code == 200
    assert re.findall(r"""(?:src|href|action)=["'](?!data:)[^"']*""", page) == []  # it needs nothing from elsewhere
    code, description = service.ask("/openapi.json", method="GET")
    body = description["paths"]["/summarize"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["num_beams"] == {"type": "integer", "minimum": 1, "maximum": 4, "default": 2}
    assert body["properties"]["max_length"] == {"type": "integer", "minimum": 2, "maximum": POSITIONS, "default": 16}


def test_a_request_that_takes_too_long(export: Path) -> None:
    with service_process(export, "--request_timeout", 0.2, "--threads", 1) as service:
        error = {"error": "the summary was not done within 0.2 seconds"}
        assert service.ask(content={"texts": ["A dog ran."] * 20, **SLOW}) == (504, error)
        assert health(service)["queue"] == 0
        until(lambda: health(service)["batch"] == 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "70000"], "argument --port: '70000' is not allowed: it takes an integer at least 0, at most 65535"),
        (["--max_bodybytes", "1"], "unknown argument --max_bodybytes; did you mean --max_body_bytes?"),
        (["--max_queue", "3"], "--max_queue is 3; allowed: at least --max_articles_per_request (64)"),
        (["--max_beams", "1"], "--max_beams is 1; allowed: at least 2, the model's own default"),
        (["--max_summary_length", "9"], "--max_summary_length is 9; allowed: at least 16, the model's own default"),
        (["--max_summary_length", "402"], "--max_summary_length is 402; the model has 400 positions"),
        (["--max_source_length", "401"], "--max_source_length is 401; the model has 400 positions"),
        (["--host", "256.0.0.1"], "--host is 256.0.0.1, --port is 8000; cannot listen there"),
    ],
)
def test_bad_options_end_in_one_line(
    export: Path, options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["serve", str(export), *options])
    with pytest.raises(SystemExit) as ended:
        run_main(main)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
