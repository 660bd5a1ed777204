"""`resolve` against a stand-in for the Hub on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bart.errors import InputError
from bart.hub import resolve
from tests.hub_server import HubServer, hub_server

ROOT = Path(__file__).resolve().parents[2]
FILES = {"vocab.json": b'{"<s>": 0}', "merges.txt": b"#version: 0.2\n", "weights.bin": b"never asked for"}
SCRIPT = """
import sys
from bart.errors import InputError
from bart.hub import resolve
for name in sys.argv[1:]:
    try:
        print(resolve(name, ["vocab.json", "merges.txt"]))
    except InputError as error:
        print("InputError:", error)
"""


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as server:
        server.repositories |= {"models/org/name": {"main": FILES}, "models/org/other": {"main": {"README.md": b"?"}}}
        server.gated.add("models/org/gated")
        yield server


def ask(names: list[str], home: Path, hub: HubServer, **variables: str) -> list[str]:
    """The answers to each name by a fresh interpreter whose Hub is the stand-in."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "NO_PROXY": "*", **variables}
    command = [sys.executable, "-c", SCRIPT, *names]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_downloads_once_and_then_serves_from_the_cache(hub: HubServer, tmp_path: Path) -> None:
    cached, gated, missing, other = ask(["org/name", "org/gated", "org/missing", "org/other"], tmp_path, hub)
    folder = Path(cached)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        name: FILES[name] for name in ("vocab.json", "merges.txt")
    }
    for name, said in (("gated", gated), ("missing", missing)):
        assert said.startswith(f"InputError: org/{name}: ") and said.endswith("ask for access there and set HF_TOKEN")
    assert other.startswith("InputError: org/other: ") and "none of the files vocab.json, merges.txt" in other

    asked = len(hub.requests)
    assert ask(["org/name"], tmp_path, hub) == [cached]
    assert not [path for path in hub.requests[asked:] if "/resolve/" in path]

    hub.shutdown()
    hub.server_close()
    again, unknown = ask(["org/name", "org/unknown"], tmp_path, hub)
    assert again == cached
    assert unknown.startswith("InputError: org/unknown: ") and "cannot be reached" in unknown

    again, unknown = ask(["org/name", "org/unknown"], tmp_path, hub, HF_HUB_OFFLINE="1")
    assert again == cached
    assert unknown.startswith("InputError: org/unknown: ") and "HF_HUB_OFFLINE" in unknown


def test_an_incomplete_cache_serves_what_it_has(hub: HubServer, tmp_path: Path) -> None:
    (cached,) = ask(["org/name"], tmp_path, hub)
    (Path(cached) / "merges.txt").unlink()
    assert ask(["org/name"], tmp_path, hub, HF_HUB_OFFLINE="1") == [cached]


def test_the_directory_of_a_run_stands_for_its_export(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").touch()
    with pytest.raises(InputError, match=r"a run that has no export/; name one of its checkpoints: last\.ckpt$"):
        resolve(tmp_path, ["config.json"])
    (tmp_path / "export").mkdir()
    assert resolve(tmp_path, ["config.json"]) == tmp_path / "export"
    (tmp_path / "config.json").touch()  # a model of its own
    assert resolve(tmp_path, ["config.json"]) == tmp_path


@pytest.mark.parametrize(
    "path",
    ["./no", "../no", "/no", "~/no", "a/b/c", "a\\b", "results/last.ckpt", "model.pt", "x.bin", "y.safetensors"],
)
def test_what_looks_like_a_path_is_never_sent_to_the_hub(path: str) -> None:
    with pytest.raises(InputError, match=r"no such file or folder$"):
        resolve(path, [])


@pytest.mark.parametrize("name", ["a b", "org/na me", "a--b", "name.git", "-x", "org/", "café", "", " "])
def test_what_is_neither_path_nor_name(name: str) -> None:
    message = "neither a file or folder here nor a Hub name" if name.strip() else "names nothing"
    with pytest.raises(InputError, match=message):
        resolve(name, [])
