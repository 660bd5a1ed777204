"""A server on this machine that plays the Hub and a plain file server."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

Repository = dict[str, dict[str, bytes]]  # revision -> path -> bytes


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def commit_of(revision: str) -> str:
    """The commit that a revision names here; a commit names itself."""
    return revision if re.fullmatch(r"[0-9a-f]{40}", revision) else hashlib.sha1(revision.encode()).hexdigest()


class HubServer(ThreadingHTTPServer):
    """Lists and serves what is in `repositories`, and serves `files` by their path.

    Attributes:
        repositories: data sets by their names, and models by theirs behind "models/".
        requests: the paths that were asked for.
        status: answered to every request, if it is set.
        gated: names of repositories whose readers must ask first.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.status = 0
        self.gated: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is no error."""


@contextmanager
def hub_server() -> Iterator[HubServer]:
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask_only(server: HubServer, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make the Hub's client of this process ask `server`, with caches in `folder`."""
    import datasets
    import huggingface_hub

    from utils.data.places import load_from_hub

    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", server.url)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder / "datasets"))
    monkeypatch.setenv("NO_PROXY", "*")
    huggingface_hub.HfFileSystem.clear_instance_cache()
    load_from_hub.cache_clear()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(self.path.split("?")[0])
        self.server.requests.append(path)
        if self.server.status:
            return self.answer(self.server.status)
        if found := re.fullmatch(r"/api/(?:datasets/)?([\w/]+?)(?:/revision/(.+)|/tree/(\w+)(/.+)?)?", path):
            if found[1] in self.server.gated:
                return self.answer(403, headers={"X-Error-Code": "GatedRepo"})
            folder = f"{found[4] or ''}/".removeprefix("/") if found[3] else None
            return self.list_repository(found[1], found[2] or found[3] or "main", folder)
        if found := re.fullmatch(r"/(datasets/)?(\w+/\w+)/resolve/(\w+)/(.+)", path):
            name, commit, file = found[2] if found[1] else f"models/{found[2]}", found[3], found[4]
            for revision, files in self.server.repositories.get(name, {}).items():
                if commit_of(revision) == commit and file in files:
                    return self.send_file(file, files[file], {"X-Repo-Commit": commit})
            return self.answer(404, headers={"X-Error-Code": "EntryNotFound"})
        if path in self.server.files:
            return self.send_file(path, self.server.files[path], {})
        return self.answer(404)

    do_HEAD = do_POST = do_GET

    def list_repository(self, name: str, revision: str, folder: str | None) -> None:
        """Facts about a repository, or of a folder the files and folders in it."""
        revisions = {commit_of(revision): files for revision, files in self.server.repositories.get(name, {}).items()}
        commit = commit_of(revision)
        if commit not in revisions:
            return self.answer(404, headers={"X-Error-Code": "RevisionNotFound" if revisions else "RepoNotFound"})
        facts = {
            path: {
                "size": len(data),
                "lfs": {"size": len(data), "sha256": sha256(data), "oid": sha256(data), "pointerSize": 9},
            }
            for path, data in revisions[commit].items()
        }
        if folder is None:
            files = [{"rfilename": path, "blobId": "0", **of} for path, of in facts.items()]
            files.reverse()  # no order is promised
            return self.answer(200, json.dumps({"id": name, "sha": commit, "siblings": files}).encode())
        below = [path for path in facts if path.startswith(folder)]
        if not below:
            return self.answer(404, headers={"X-Error-Code": "EntryNotFound"})
        whole = "recursive=true" in self.path.lower()
        tree = [
            {"type": "file", "path": path, "oid": "0", **facts[path]}
            for path in below
            if whole or "/" not in path.removeprefix(folder)
        ]
        inner = {path.removeprefix(folder).rpartition("/")[0] for path in below} - {""}
        inner = inner if whole else {each.partition("/")[0] for each in inner}
        tree += [{"type": "directory", "path": folder + each, "oid": "0"} for each in sorted(inner)]
        return self.answer(200, json.dumps(tree).encode())

    def send_file(self, path: str, data: bytes, headers: dict[str, str]) -> None:
        headers["ETag"] = f'"{sha256(data)}"'
        headers["Accept-Ranges"] = "bytes"
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            return self.answer(206, data[first : last + 1], headers)
        return self.answer(200, data, headers)

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
