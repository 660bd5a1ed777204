"""A server on this machine that plays the Hub and a plain file server, and fails in the ways that servers do."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class FlakyServer(ThreadingHTTPServer):
    """Serves `files`, and lists and serves `repositories`.

    Attributes:
        files: path -> bytes.
        repositories: data set on the Hub -> revision -> path -> bytes.
        faults: what goes wrong with the next requests, one after the other; "" nothing. See `Handler.fail`.
        requests: (path, Range or "") of each so far.
        tokens: Authorization or "" of each so far.
        honour_if_range: whether a range of another file than the client has is refused.
        seconds_per_block: wait before every block of 32 KiB.
        blocks: how many of those were sent so far.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.faults: list[str] = []
        self.requests: list[tuple[str, str]] = []
        self.tokens: list[str] = []
        self.honour_if_range = True
        self.seconds_per_block = 0.0
        self.blocks = 0
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        pass  # clients hang up, and are killed


@contextmanager
def flaky_server() -> Iterator[FlakyServer]:
    server = FlakyServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    server: FlakyServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(self.path.split("?")[0])
        self.server.requests.append((path, self.headers.get("Range", "")))
        self.server.tokens.append(self.headers.get("Authorization", ""))
        fault = self.server.faults.pop(0) if self.server.faults else ""
        if found := re.fullmatch(r"/api/datasets/(\w+/\w+)/revision/(.+)", path):
            self.list_repository(found[1], found[2], fault)
        elif found := re.fullmatch(r"/datasets/(\w+/\w+)/resolve/(\w+)/(.+)", path):
            self.redirect_to_storage(found[1], found[2], found[3])
        else:
            self.send_file(path, fault)

    def list_repository(self, repository: str, revision: str, fault: str) -> None:
        revisions = self.server.repositories.get(repository)
        if fault == "wrong":
            return self.answer(200, b'["no", "such"]')
        if fault.isdigit():
            return self.answer(int(fault))
        if revisions is None or revision not in revisions:
            missing = "RepoNotFound" if revisions is None else "RevisionNotFound"
            return self.answer(404, headers={"X-Error-Code": missing})
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": "0",
                "lfs": {"size": len(data), "sha256": sha256(data), "pointerSize": 134},
            }
            for name, data in sorted(revisions[revision].items(), reverse=True)  # no order is promised
        ]
        listing = {"id": repository, "sha": commit_of(revision), "siblings": siblings}
        self.answer(200, json.dumps(listing).encode(), {"Content-Type": "application/json"})

    def redirect_to_storage(self, repository: str, commit: str, name: str) -> None:
        """As the Hub does: to another host, where the bytes have their SHA-256 as name."""
        for revision, files in self.server.repositories.get(repository, {}).items():
            if commit_of(revision) == commit and name in files:
                digest = sha256(files[name])
                self.server.files[f"/storage/{digest}"] = files[name]
                place = f"http://localhost:{self.server.server_address[1]}/storage/{digest}"
                return self.answer(302, headers={"Location": place})
        self.answer(404)

    def send_file(self, path: str, fault: str) -> None:
        """Serve a file, or fail:

        "503", "404", ...: that status; "429+": with Retry-After. "silent": no answer. "loop": a redirect to itself.
        "drop": reset in mid-body. "short": the end comes early. "stall": nothing more comes in mid-body.
        "cut": half the file, and headers that fit it. "wrong": other bytes. "unranged": Range is ignored.
        "shifted": another range than asked for, "less": the first half of it.
        "chunked", "endless": no Content-Length, with and without chunks; with " short", half of that.
        "untagged", "weak": no ETag, a weak one.
        """
        data = self.server.files.get(path)
        if fault.rstrip("+").isdigit():
            return self.answer(int(fault.rstrip("+")), headers={"Retry-After": "0"} if "+" in fault else {})
        if fault == "silent":
            self.server.closing.wait(10)
            self.close_connection = True
            return None
        if fault == "loop":
            return self.answer(302, headers={"Location": path})
        if data is None:
            return self.answer(404)
        tag = f'"{hashlib.sha1(data).hexdigest()}"'
        if fault == "wrong":
            data = data[:-1] + bytes([data[-1] ^ 1])
        if fault == "cut":
            data = data[: len(data) // 2]
        start, status, headers = 0, 200, {"ETag": tag}
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        same = self.headers.get("If-Range", tag) == tag or not self.server.honour_if_range
        if wanted and fault != "unranged" and same:
            start = int(wanted[1])
            if start >= len(data):
                return self.answer(416, headers={"Content-Range": f"bytes */{len(data)}"})
            end = len(data)
            if fault == "shifted":
                start, end = start - 1, end - 1
            if fault == "less":
                end = (start + end) // 2
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            data = data[:end]
        if fault in ("untagged", "untagged short"):
            del headers["ETag"]
        if fault in ("weak", "weak short"):
            headers["ETag"] = f"W/{tag}"
        body = data[start:]
        if "chunked" in fault:
            headers["Transfer-Encoding"] = "chunked"
        elif "endless" in fault:
            self.close_connection = True
        else:
            headers["Content-Length"] = str(len(body))
        self.begin(status, headers)
        if fault == "drop" or fault == "stall" or "short" in fault:
            body = body[: len(body) // 2]
        for place in range(0, len(body), 1 << 15):
            if self.server.seconds_per_block:
                self.server.closing.wait(self.server.seconds_per_block)
            block = body[place : place + (1 << 15)]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(block), block) if "chunked" in fault else block)
            self.server.blocks += 1
        if fault == "chunked":
            self.wfile.write(b"0\r\n\r\n")
        if fault == "stall":
            self.server.closing.wait(10)
        if fault == "drop":
            time.sleep(0.02)  # a reset overtakes what has not been read
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if fault in ("drop", "stall") or "short" in fault:
            self.close_connection = True
        return None

    def begin(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.begin(status, {**(headers or {}), "Content-Length": str(len(body))})
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def commit_of(revision: str) -> str:
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    return COMMIT if revision == "main" else hashlib.sha1(revision.encode()).hexdigest()
