"""The application without a server: requests that are right, wrong, too many, too slow, or given up by the client."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from bart.errors import InputError
from tests.utils.long_texts import tokens
from tests.utils.serving.conftest import POSITIONS, service
from utils.app.cli import run_main
from utils.models.loading import load_for_evaluation
from utils.prediction.summarizing import summarize
from utils.serving.__main__ import main
from utils.serving.app import create_app

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client(export: Path) -> Iterator[TestClient]:
    """A client of an application with small limits and the real decoder."""
    limits = {"max_body_bytes": 20_000, "max_queue": 4, "max_beams": 4}
    app = create_app(service(export, batch_size=2, **limits, allowed_hosts=("*.example.com",)))
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize("options", [{"num_beams": 1, "max_length": 9}, {"long_documents": "cut"}])
def test_summaries_are_those_of_summarize(
    client: TestClient, export: Path, texts: list[str], options: dict[str, Any]
) -> None:
    texts = [texts[0], texts[38], texts[1]]  # the second is longer than the model
    expected = summarize(texts, *load_for_evaluation(export, None), **options)
    assert len(set(expected)) == 3
    answer = client.post("/summarize", json={"texts": texts, **options})
    is_cut = options.get("long_documents") == "cut"
    parts = {"cut_tokens": [0, tokens(texts[1]) - POSITIONS, 0]} if is_cut else {"windows": [1, 2, 1]}
    seconds = answer.json()["seconds"]
    assert answer.json() == {"summaries": expected, "articles": 3 if is_cut else 4, **parts, "seconds": seconds}
    for text, summary in zip(texts, expected, strict=True):
        assert client.post("/summarize", json={"text": text, **options}).json()["summary"] == summary
    assert client.post("/summarize", json={"text": texts[0]}).json().keys() == {"summary", "articles", "seconds"}


def test_a_model_from_random_weights_reads_as_many_tokens_as_in_training(
    export: Path, texts: list[str], tmp_path: Path
) -> None:
    folder = shutil.copytree(export, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_source_length": 40}))
    with TestClient(create_app(service(folder)), "http://localhost") as client:
        answer = client.post("/summarize", json={"text": texts[38]}).json()
    assert answer["windows"][0] > 2


def test_limits_of_requests_leave_the_models_own_options(export: Path, texts: list[str]) -> None:
    """It has 2 beams."""
    with TestClient(create_app(service(export, max_beams=1)), "http://localhost") as client:
        answer = client.post("/summarize", json={"text": texts[0]}).json()
        assert answer["summary"] == summarize(texts[0], *load_for_evaluation(export, None))
        assert client.post("/summarize", json={"text": texts[0], "num_beams": 2}).status_code == 422


BAD_REQUESTS = [
    (400, "the body is no UTF-8 text, or nested too deeply", b'{"text": "\xff"}'),
    (400, "the body is no UTF-8 text, or nested too deeply", b"[" * 15_000),
    (413, "the body has more than 20000 bytes", b" " * 20_001),
    (422, [["body", 1]], b"{text"),
    (422, [["body", "texts", 1]], b'{"texts": ["b", "a \\ud800"]}'),
    (422, [["body"]], {"texts": ["b"]}),
    (422, [["body", "text"], ["body", "num_beams"]], {"text": 3, "num_beams": "4"}),
    (422, [["body", "texts", 1]], {"text": None, "texts": ["a", " "]}),
    (422, [["body"]], {"text": "a cat " * 200, "long_documents": "refuse"}),
    (422, [["body", "num_beam"]], {"num_beam": 3}),
    (422, [["body", "num_beams"]], {"num_beams": 5}),
    (422, [["body", "max_length"]], {"max_length": POSITIONS + 1}),
    (422, [["body"]], {"min_length": 17}),
    (422, [["body", "length_penalty"]], {"length_penalty": float("nan")}),
]


@pytest.mark.parametrize(("status", "reason", "body"), BAD_REQUESTS)
def test_bad_requests_are_explained(client: TestClient, status: int, reason: str | list[list[Any]], body: Any) -> None:
    """By one line, or as FastAPI does, by the places of the errors in the body."""
    content = body if isinstance(body, bytes) else json.dumps({"text": "One.", **body})
    answer = client.post("/summarize", content=content, headers=JSON)
    assert answer.status_code == status, answer.text
    if status == 422:
        assert [error["loc"] for error in answer.json()["detail"]] == reason
    else:
        assert answer.json() == {"error": reason}


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_what_a_page_of_another_origin_can_send_is_refused(client: TestClient, content_type: str | None) -> None:
    """Browsers send these types without asking; before JSON they ask by OPTIONS, and no answer lets them."""
    headers = {"origin": "https://evil.example", **({"content-type": content_type} if content_type else {})}
    answer = client.post("/summarize", content=b'{"text": "A dog ran."}', headers=headers)
    asked = client.options("/summarize", headers={**headers, "access-control-request-method": "POST"})
    assert (answer.status_code, asked.status_code) == (422, 405) and "Content-Type: application/json" in answer.text
    for refused in (answer, asked):
        assert not [name for name in refused.headers if name.startswith("access-control")]


def test_hosts_that_are_not_allowed_are_refused(client: TestClient) -> None:
    """Otherwise a page could read answers by letting its own name point to this machine."""
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000", "192.168.1.5:80", "LOCALHOST", "a.example.com"):
        assert client.get("/healthz", headers={"host": host}).status_code == 200
    for host in ("evil.example", "localhost.evil.example", "example.com", "127.0.0.1.evil.example:8000", "a@127.0.0.1"):
        for path in ("/", "/summarize", "/no/such"):
            answer = client.post(path, json={"text": "A dog ran."}, headers={"host": host})
            assert answer.status_code == 400
            assert f"Host is '{host.split(':')[0]}'; allowed: IP addresses, *.example.com, " in answer.json()["error"]
    answer = client.post(
        "/summarize", content=b'{"text": "a"}', headers={"content-type": "Application/JSON; charset=x"}
    )
    assert answer.status_code == 200


def test_the_page_and_the_description(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    links = re.findall(r"""(?:src|href|action)=["'](?!data:)([^"']*)""", page.text)
    assert links == ["openapi.json"]  # nothing from elsewhere
    description = client.get("/openapi.json").json()
    fields = description["components"]["schemas"]["SummaryRequest"]["properties"]
    assert fields["max_length"]["anyOf"][0] == {"type": "integer", "minimum": 2, "maximum": POSITIONS}
    assert fields["texts"]["anyOf"][0]["maxItems"] == 4
    assert [fields[name]["default"] for name in ("long_documents", "num_beams", "max_length")] == ["join", 2, 16]


def test_the_page_begins_with_an_example_of_the_models_test_split(export: Path, tmp_path: Path) -> None:
    known = {"trained": "trained from <b> on data", "examples": [{"source": "</textarea><script>1</script>"}]}
    shutil.copytree(export, tmp_path / "model")
    (tmp_path / "model" / "examples.json").write_text(json.dumps(known))
    with TestClient(create_app(service(tmp_path / "model")), "http://localhost") as client:
        page = client.get("/").text
    assert "The model was trained from &lt;b&gt; on data; the text below is one that it was tested on." in page
    assert ">&lt;/textarea&gt;&lt;script&gt;1&lt;/script&gt;</textarea>" in page


def test_a_key_is_asked_for(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BART_API_KEY", "s3cret")
    with TestClient(create_app(service(export)), "http://localhost") as client:
        for given in (None, "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", b"Bearer \xff"):
            headers = {} if given is None else {"authorization": given}
            answers = [client.post("/summarize", json={"text": "A dog ran."}, headers=headers)]
            for answer in (*answers, client.get("/metrics", headers=headers)):
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        headers = {"authorization": "Bearer s3cret"}
        assert client.post("/summarize", json={"text": "A dog ran."}, headers=headers).status_code == 200
        for path in ("/", "/healthz", "/openapi.json"):
            assert client.get(path).status_code == 200
        description = client.get("/openapi.json").json()
        assert description["paths"]["/summarize"]["post"]["security"]
        assert "s3cret" not in json.dumps(description)


def test_metrics(client: TestClient) -> None:
    def value(name: str) -> float:
        match = re.search(rf"^{re.escape(name)} (\S+)$", client.get("/metrics").text, re.MULTILINE)
        return float(match[1]) if match else 0.0

    names = [
        'bart_requests_total{path="/summarize",status="200"}',
        'bart_requests_total{path="/summarize",status="422"}',
        'bart_requests_total{path="other",status="404"}',
        "bart_summarize_seconds_count",
    ]
    before = [value(name) for name in names]
    client.post("/summarize", json={"text": "A dog ran."})
    client.post("/summarize", json={"text": 5})
    client.get("/no/such")
    assert [value(name) - old for name, old in zip(names, before, strict=True)] == [1, 1, 1, 1]
    if sys.platform == "linux":
        assert value("process_resident_memory_bytes") > 1e7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max_source_length", "151"], "--max_source_length is 151; allowed: at most 150"),
        (["--host", "256.0.0.1"], "--host is 256.0.0.1, --port is 0: cannot listen there ("),
        (["--api_key", "my key"], "--api_key or BART_API_KEY has 6 characters; allowed: visible ASCII, no spaces"),
    ],
)
def test_bad_options_end_in_one_line(
    export: Path, options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["serve", str(export), "--port", "0", *options])
    with pytest.raises(SystemExit) as ended:
        run_main(main)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_port_in_use_is_refused_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = f"--host is 127.0.0.1, --port is {port}: cannot listen there .*in use"
        with pytest.raises(InputError, match=message):
            main(["no_such_model", "--port", str(port)])
