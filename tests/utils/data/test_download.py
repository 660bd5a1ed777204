"""`fetch` against a server that fails in every way it knows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bart.errors import InputError
from tests.flaky_server import FlakyServer, flaky_server, sha256
from utils.cli import RunError
from utils.data.download import RetryPolicy, fetch

DATA = random.Random(0).randbytes(300_000)
OTHER = random.Random(1).randbytes(300_000)
POLICY = RetryPolicy(tries=4, timeout=0.3, first_wait=0.01)


@pytest.fixture
def server() -> Iterator[FlakyServer]:
    with flaky_server() as server:
        server.files["/big.bin"] = DATA
        yield server


def get(server: FlakyServer, folder: Path, *, known: bool = True, retries: RetryPolicy = POLICY) -> str:
    size, digest = (len(DATA), sha256(DATA)) if known else (None, None)
    return fetch(f"{server.url}/big.bin", folder / "big.bin", retries, size, digest)


def ranges(server: FlakyServer) -> list[str]:
    return [asked for _, asked in server.requests]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "faults",
    [
        [],
        ["drop"],
        ["short"],
        ["stall"],
        ["503"],
        ["500", "429+", "408"],
        ["silent"],
        ["drop", "drop", "drop"],
        ["drop", "unranged"],
        ["short", "shifted"],
        ["short", "less"],
        ["short", "503", "stall"],
        ["chunked"],
        ["chunked short"],
        ["untagged short"],
        ["weak short"],
    ],
)
def test_a_failing_server_only_delays(server: FlakyServer, tmp_path: Path, faults: list[str], known: bool) -> None:
    tries = len(faults) + 1
    server.faults = list(faults)
    assert get(server, tmp_path, known=known) == sha256(DATA)
    assert (tmp_path / "big.bin").read_bytes() == DATA
    assert [path.name for path in tmp_path.iterdir()] == ["big.bin"]
    assert len(server.requests) <= tries + 1
    asked = len(server.requests)
    assert get(server, tmp_path, known=known) == sha256(DATA)  # and it is there
    assert len(server.requests) == asked


@pytest.mark.parametrize("faults", [["wrong"], ["cut"], ["short", "wrong"], ["cut", "wrong"]])
def test_wrong_bytes_are_not_kept(server: FlakyServer, tmp_path: Path, faults: list[str]) -> None:
    server.faults = list(faults)
    assert get(server, tmp_path) == sha256(DATA)
    assert (tmp_path / "big.bin").read_bytes() == DATA


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("wrong", "wrong bytes: 300000 bytes with SHA-256"),
        ("cut", "the server has a file of 150000 bytes, 300000 expected"),
        ("503", "the server answers 503"),
        ("stall", "the server sends nothing"),
        ("silent", "the server sends nothing"),
        ("untagged short", ""),
    ],
)
def test_it_gives_up_at_last_without_a_file(server: FlakyServer, tmp_path: Path, fault: str, said: str) -> None:
    server.faults = [fault] * 9
    known = fault != "untagged short"
    with pytest.raises(RunError) as caught:
        get(server, tmp_path, known=known, retries=RetryPolicy(tries=3, timeout=0.1, first_wait=0.01))
    assert str(caught.value).startswith(f"{server.url}/big.bin: ")
    assert said in str(caught.value)
    assert "gave up after 3 failures in a row" in str(caught.value)
    assert not (tmp_path / "big.bin").exists()
    server.faults = []
    assert get(server, tmp_path, known=known) == sha256(DATA)


@pytest.mark.parametrize(
    ("fault", "said"),
    [("404", "404"), ("403", "403"), ("401", "401"), ("410", "410"), ("loop", "redirect"), ("204", "204")],
)
def test_a_refusal_is_final(server: FlakyServer, tmp_path: Path, fault: str, said: str) -> None:
    server.faults = [fault] * 99
    with pytest.raises(InputError, match=said) as caught:
        get(server, tmp_path)
    assert f"{server.url}/big.bin" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert fault == "loop" or len(server.requests) == 1


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "nowhere", "http://", "http://[::bad/x", "file:///etc/passwd"])
def test_what_is_no_url_is_an_error_at_once(tmp_path: Path, url: str) -> None:
    with pytest.raises(InputError) as caught:
        fetch(url, tmp_path / "x", RetryPolicy(tries=2, first_wait=0.01))
    assert str(caught.value).startswith(f"{url}: cannot be downloaded")


def test_nobody_there(tmp_path: Path) -> None:
    with flaky_server() as server:
        url = f"{server.url}/x"
    with pytest.raises(RunError, match="gave up after 2 failures"):
        fetch(url, tmp_path / "x", RetryPolicy(tries=2, first_wait=0.01))


@pytest.mark.parametrize("known", [True, False])
def test_it_goes_on_where_it_stopped(server: FlakyServer, tmp_path: Path, known: bool) -> None:
    server.faults = ["short"]
    with pytest.raises(RunError):
        get(server, tmp_path, known=known, retries=RetryPolicy(tries=1))
    assert (tmp_path / "big.bin.part").read_bytes() == DATA[:150_000]
    assert get(server, tmp_path, known=known) == sha256(DATA)
    assert ranges(server) == ["", "bytes=150000-"]


@pytest.mark.parametrize("known", [True, False])
def test_a_file_that_changes_between_tries_is_not_mixed(server: FlakyServer, tmp_path: Path, known: bool) -> None:
    """Known: the first half that came is not of the file that is known."""
    server.files["/big.bin"] = OTHER
    server.faults = ["short"]
    with pytest.raises(RunError):
        get(server, tmp_path, known=known, retries=RetryPolicy(tries=1))
    server.files["/big.bin"] = DATA
    assert get(server, tmp_path, known=known) == sha256(DATA)
    assert ranges(server) == ["", "bytes=150000-", *[""] * known]  # If-Range spares a request


def test_a_changed_file_is_noticed_where_the_server_ignores_if_range(server: FlakyServer, tmp_path: Path) -> None:
    server.files["/big.bin"] = OTHER
    server.faults = ["short"]
    with pytest.raises(RunError):
        get(server, tmp_path, known=False, retries=RetryPolicy(tries=1))
    server.files["/big.bin"] = DATA
    server.honour_if_range = False
    assert get(server, tmp_path, known=False) == sha256(DATA)
    assert ranges(server) == ["", "bytes=150000-", ""]


def test_a_weak_tag_does_not_promise_the_same_bytes(server: FlakyServer, tmp_path: Path) -> None:
    server.faults = ["weak short", "weak"]
    assert get(server, tmp_path, known=False) == sha256(DATA)
    assert ranges(server) == ["", ""]


def test_a_size_alone_is_checked_too(server: FlakyServer, tmp_path: Path) -> None:
    (tmp_path / "big.bin").write_bytes(DATA[:-1])
    server.faults = ["endless short", "cut"]
    assert fetch(f"{server.url}/big.bin", tmp_path / "big.bin", POLICY, len(DATA)) == sha256(DATA)


@pytest.mark.parametrize("known", [True, False])
def test_killed_between_the_last_byte_and_the_name(server: FlakyServer, tmp_path: Path, known: bool) -> None:
    server.faults = ["short"]
    with pytest.raises(RunError):
        get(server, tmp_path, known=known, retries=RetryPolicy(tries=1))
    (tmp_path / "big.bin.part").write_bytes(DATA)
    assert get(server, tmp_path, known=known) == sha256(DATA)
    assert ranges(server) == ([""] if known else ["", "bytes=300000-"])


def test_more_than_the_whole_file_starts_over(server: FlakyServer, tmp_path: Path) -> None:
    (tmp_path / "big.bin.part").write_bytes(DATA + b"?")
    assert get(server, tmp_path) == sha256(DATA)


def test_a_file_that_is_there_but_wrong_is_replaced(server: FlakyServer, tmp_path: Path) -> None:
    (tmp_path / "big.bin").write_bytes(OTHER)
    assert get(server, tmp_path) == sha256(DATA)
    assert (tmp_path / "big.bin").read_bytes() == DATA


def test_a_length_that_nobody_knows_is_refused(server: FlakyServer, tmp_path: Path) -> None:
    server.faults = ["endless"]
    with pytest.raises(InputError, match="does not say how long the file is"):
        get(server, tmp_path, known=False)
    server.faults = ["endless"]
    assert get(server, tmp_path) == sha256(DATA)


def test_headway_is_rewarded_with_patience(server: FlakyServer, tmp_path: Path) -> None:
    """Each failure brings half of what is missing, and more than a MiB of it."""
    data = random.Random(2).randbytes(20 << 20)
    server.files["/huge.bin"] = data
    server.faults = ["short"] * 4
    digest = fetch(f"{server.url}/huge.bin", tmp_path / "huge.bin", RetryPolicy(2, 1, 0.01), len(data), sha256(data))
    assert digest == sha256(data)
    assert len(server.requests) == 5


def test_an_empty_file(server: FlakyServer, tmp_path: Path) -> None:
    server.files["/empty"] = b""
    assert fetch(f"{server.url}/empty", tmp_path / "empty", POLICY) == sha256(b"")
    assert (tmp_path / "empty").read_bytes() == b""


def test_a_folder_that_cannot_be_written(server: FlakyServer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="big.bin.part: cannot be written"):
        get(server, tmp_path / "missing")
