"""The service as a whole, in its own process: many clients at once, and its end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.utils.serving.conftest import POSITIONS
from tests.utils.serving.service_process import ROOT, Load, ServiceProcess, load, service_process, until
from utils.loading import load_for_evaluation
from utils.summarize import summarize

SLOW = {"text": "A dog ran.", "max_length": POSITIONS, "min_length": POSITIONS, "num_beams": 4}
OPTIONS = [{}, {}, {"num_beams": 1}, {"max_length": 9, "length_penalty": 0.5}]


def offline(model: Path, requests: list[dict[str, object]]) -> list[str]:
    """What `summarize` gives for each request."""
    loaded = load_for_evaluation(model, None)
    return [
        summarize(str(request["text"]), *loaded, **{k: v for k, v in request.items() if k != "text"})
        for request in requests
    ]


def check(found: Load, expected: list[str]) -> None:
    """No answer is lost or wrong, and none is another's."""
    wrong = [
        (number, status, content)
        for number, status, content, _ in found.answers
        if status != 200 or content["summary"] != expected[number]
    ]
    assert wrong == []


def test_fifty_clients_get_what_each_would_get_alone(export: Path, texts: list[str]) -> None:
    requests = [{"text": text, **OPTIONS[index % len(OPTIONS)]} for index, text in enumerate(texts)]
    expected = offline(export, requests)
    assert len(set(expected)) > 30
    with service_process(export, "--threads", 1) as service:
        found = load(service.port, requests, clients=50, seconds=3)
        assert service.stop() == 0
    check(found, expected)
    assert len(found.answers) > 100
    assert {number for number, *_ in found.answers} == set(range(len(texts)))
    assert max(found.health) < 1


@pytest.mark.slow
def test_fifty_clients_for_a_minute(export: Path, texts: list[str]) -> None:
    """They get three times the summaries of a single one, and memory does not grow."""
    requests = [{"text": text} for text in texts[:38]]
    expected = offline(export, requests)
    with service_process(export, "--threads", 1) as service:
        alone = load(service.port, requests, clients=1, seconds=10)
        # Until there are kernels for most shapes of batches.
        warm = load(service.port, requests, clients=50, seconds=40)
        before = service.memory()
        found = load(service.port, requests, clients=50, seconds=60)
        after = service.memory()
        assert service.stop() == 0
    for part in (warm, alone, found):
        check(part, expected)
    assert found.per_second > 3 * alone.per_second
    assert after < 1.05 * before
    assert max(found.health) < 1


@pytest.fixture
def service(export: Path) -> Iterator[ServiceProcess]:
    with service_process(export, "--batch_size", 2, "--threads", 1, "--read_timeout", 30) as service:
        yield service


def sent(service: ServiceProcess, content: dict[str, object]) -> socket.socket:
    body = json.dumps(content).encode()
    connection = socket.create_connection(("127.0.0.1", service.port), timeout=30)
    connection.sendall(b"POST /summarize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return connection


def answer(connection: socket.socket) -> tuple[int, dict[str, object]]:
    """Status and content of an answer, behind which the connection is closed."""
    received = b"".join(iter(lambda: connection.recv(10_000), b"")).decode()
    return int(received.split()[1]), json.loads(received.split("\r\n\r\n")[1])


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_what_is_in_work_is_finished(service: ServiceProcess, export: Path, sig: int) -> None:
    [expected] = offline(export, [SLOW])
    half = socket.create_connection(("127.0.0.1", service.port), timeout=30)
    half.sendall(b"POST /summarize HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    idle = socket.create_connection(("127.0.0.1", service.port), timeout=30)
    work = [sent(service, SLOW) for _ in range(5)]  # some in the batch, some in the queue
    until(lambda: service.ask("/healthz", method="GET")[1] == {"status": "ok", "queue": 3, "batch": 2})
    service.process.send_signal(sig)
    until(lambda: service.ask("/healthz", method="GET")[0] == 503)
    assert service.ask("/healthz", method="GET")[1]["status"] == "draining"
    refused = (503, {"error": "the service is shutting down"})
    assert service.ask(content={"text": "A cat sat."}) == refused
    assert answer(half) == refused
    for connection in work:
        status, content = answer(connection)
        assert (status, content["summary"]) == (200, expected)
    assert service.process.wait(10) == 0
    assert idle.recv(10) == b""
    assert "Traceback" not in "".join(service.log)


def test_what_is_not_done_in_time_is_answered(export: Path) -> None:
    with service_process(export, "--batch_size", 1, "--threads", 1, "--drain_seconds", 0.3) as service:
        work = [sent(service, SLOW) for _ in range(20)]
        until(lambda: service.ask("/healthz", method="GET")[1]["queue"] == 19)
        start = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        answers = [answer(connection) for connection in work]
        assert (503, {"error": "the service is shutting down"}) in answers
        assert {status for status, _ in answers} <= {200, 503}
        assert service.process.wait(10) == 0
        assert time.monotonic() - start < 6


def test_a_second_signal_ends_at_once(service: ServiceProcess) -> None:
    work = [sent(service, SLOW) for _ in range(6)]
    until(lambda: service.ask("/healthz", method="GET")[1]["batch"] == 2)
    service.process.send_signal(signal.SIGTERM)
    until(lambda: service.ask("/healthz", method="GET")[0] == 503)
    start = time.monotonic()
    assert service.stop(signal.SIGINT) == 128 + signal.SIGINT
    assert time.monotonic() - start < 1
    assert all(connection.recv(10) == b"" for connection in work[-2:])


def test_a_fault_in_decoding_is_answered_and_the_service_goes_on(export: Path) -> None:
    """Faults are put in place by a program that starts the service as its main function does."""
    program = """
import sys
import utils.serving.engine as engine
from utils.serving.__main__ import main

generate_live = engine.generate_live

def faulty(*args, **options):
    if options.get("max_length") == 7:
        raise ValueError("a fault")
    if options.get("max_length") == 8:
        raise SystemExit
    return generate_live(*args, **options)

engine.generate_live = faulty
main()
"""
    with service_process(export, command=[sys.executable, "-c", program]) as service:
        failed = (500, {"error": "decoding failed; the service's log says why"})
        assert service.ask(content={"text": "A dog ran.", "max_length": 7}) == failed
        assert "ValueError: a fault" in "".join(service.log)
        assert service.ask(content={"text": "A dog ran."})[0] == 200
        assert service.ask("/healthz", method="GET")[0] == 200
        assert service.ask(content={"text": "A dog ran.", "max_length": 8}) == failed  # its thread ends
        assert service.ask(content={"text": "A dog ran."}) == failed
        assert service.ask("/healthz", method="GET") == (500, {"status": "failed", "queue": 0, "batch": 0})
        assert service.stop() == 0


def test_a_request_whose_text_is_being_read_is_answered_at_the_end(export: Path) -> None:
    program = """
import time
import utils.serving.app as app
from utils.serving.__main__ import main

def slow(*args):
    app.Service.health = lambda service: app.JSONResponse("begun")
    time.sleep(30)

app.Rounds = slow
main()
"""
    command = [sys.executable, "-c", program]
    with service_process(export, "--drain_seconds", 0.5, command=command) as service:
        connection = sent(service, {"text": "A dog ran."})
        until(lambda: service.ask("/healthz", method="GET")[1] == "begun")
        start = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        assert answer(connection) == (503, {"error": "the service is shutting down"})
        assert service.process.wait(20) == 0
        assert time.monotonic() - start < 10
        assert "1 requests in work" in "".join(service.log) and "Exception" not in "".join(service.log)


def test_a_port_in_use_is_one_line(service: ServiceProcess, export: Path) -> None:
    command = [sys.executable, "-m", "utils.serving", str(export), "--port", str(service.port)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"--host is 127.0.0.1, --port is {service.port}; cannot listen there: Address already in use" in done.stderr
    assert done.stderr.count("\n") == 1
