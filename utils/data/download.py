"""Downloads that end with the right file in its place, or with an error and none.

What has come so far lies in `NAME.part`, so that a try, or a run, goes on where the last one stopped. The file takes
its name only when it is whole and, where they are known beforehand, its size and SHA-256 are right.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx

from bart.errors import InputError
from utils.cli import RunError, unwritable
from utils.data.provenance import sha256_of
from utils.progress import Progress

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

_LONGEST_WAIT = 60.0  # seconds, also where a server asks for more
_HEADWAY = 1 << 20  # bytes by which a download must get on for its earlier failures to be forgotten
_MB = 1_000_000
_TRANSIENT_STATUSES = {408, 425, 429}  # and all from 500


class TransientError(Exception):
    """What another try may mend.

    Args:
        wait: seconds after which the server wants to be asked again.
    """

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


@dataclass(frozen=True)
class RetryPolicy:
    """How long to go on with a server that fails.

    Attributes:
        tries: how many may fail in a row.
        timeout: seconds without an answer, or without a byte, after which a try has failed.
        first_wait: seconds before the second try; they double from try to try.
    """

    tries: int = 6
    timeout: float = 60.0
    first_wait: float = 1.0

    def call(self, what: str, attempt: Callable[[], Result], progressed: Callable[[], bool] = lambda: False) -> Result:
        """Try until it works.

        Args:
            what: is tried, for messages.
            attempt: raises `TransientError` where another try may help.
            progressed: whether the last try, though it failed, was worth it; failures are then counted anew.

        Raises:
            RunError: too many tries in a row failed.
        """
        failures = 0
        while True:
            try:
                return attempt()
            except TransientError as failure:
                failures = 1 if progressed() else failures + 1
                if failures >= self.tries:
                    raise RunError(
                        f"{what}: {failure}; gave up after {failures} failures in a row; what has come is kept, and "
                        "another run goes on from there"
                    ) from None
                wait = self.first_wait * 2 ** (failures - 1) if failure.wait is None else failure.wait
                wait = min(wait, _LONGEST_WAIT)
                logger.warning("%s: %s; trying again in %.0f s", what, failure, wait)
                time.sleep(wait)


def is_transient(status: int) -> bool:
    """Whether an HTTP status may be another one soon."""
    return status in _TRANSIENT_STATUSES or status >= 500


def fetch(
    url: str,
    target: Path,
    retries: RetryPolicy,
    size: int | None = None,
    sha256: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> str:
    """Download a file, unless it is there.

    A file that is there is trusted only as far as `size` and `sha256` tell: without them, that it has its name.

    Args:
        target: the file's path; its folder must exist.
        size, sha256: bytes and hexadecimal digits that the file must have; None where nobody knows.
        headers: of the request. Credentials among them go to the URL's own host only.

    Returns:
        The file's SHA-256.

    Raises:
        InputError: the URL is none, or the server says that it will not give such a file.
        RunError: it could not be had for now.
    """
    download = _Download(url, target, size, sha256, headers or {})
    if target.exists():
        digest = download.digest_if_right(target)
        if digest is not None:
            return digest
        logger.warning("%s: not the bytes of %s; downloading it again", target, url)
        target.unlink()
    with httpx.Client(follow_redirects=True, timeout=retries.timeout) as client:
        return retries.call(url, lambda: download.attempt(client), download.progressed)


class _Download:
    """One file on its way from `url` to `target`, with what several tries share."""

    def __init__(
        self, url: str, target: Path, size: int | None, sha256: str | None, headers: Mapping[str, str]
    ) -> None:
        self.url, self.target, self.size, self.sha256, self.headers = url, target, size, sha256, headers
        self.part = target.with_name(f"{target.name}.part")
        # The ETag of the file whose beginning `part` is. Where a SHA-256 will tell, it is not needed.
        self.part_tag = target.with_name(f"{target.name}.part.etag")
        self.most = self._received()

    def progressed(self) -> bool:
        """Whether notably more has come than when this was last so."""
        if self._received() < self.most + _HEADWAY:
            return False
        self.most = self._received()
        return True

    def digest_if_right(self, path: Path) -> str | None:
        """A file's SHA-256, or None if size or SHA-256 are not as expected."""
        if self.size not in (None, path.stat().st_size):
            return None
        digest = sha256_of(path)
        return digest if self.sha256 in (None, digest) else None

    def attempt(self, client: httpx.Client) -> str:
        """Get what is missing and put the file in place; returns its SHA-256.

        Raises:
            TransientError, InputError: as the names say; the bytes that came stay, unless they are wrong.
        """
        if self.size is None or self._received() != self.size:
            try:
                self._receive(client)
            except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.TooManyRedirects) as error:
                raise InputError(f"{self.url}: cannot be downloaded ({error})") from None
            except httpx.TimeoutException:
                raise TransientError("the server sends nothing") from None
            except httpx.HTTPError as error:
                raise TransientError(str(error) or type(error).__name__) from None
        digest = self.digest_if_right(self.part)
        if digest is None:
            came = f"{self._received()} bytes with SHA-256 {sha256_of(self.part)}"
            self._discard()
            expected = [f"{self.size} bytes"] * (self.size is not None) + [f"SHA-256 {self.sha256}"] * bool(self.sha256)
            raise TransientError(f"the server sent wrong bytes: {came}; expected are {' and '.join(expected)}")
        with self.part.open("rb") as file:
            os.fsync(file.fileno())
        self.part.replace(self.target)
        self.part_tag.unlink(missing_ok=True)
        return digest

    def _received(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.part_tag.unlink(missing_ok=True)

    def _receive(self, client: httpx.Client) -> None:
        """Ask for what is missing, from the start where it is not certain that the rest would fit."""
        received = self._received()
        # Compressed on the way, a file would have another length than announced.
        headers = {**self.headers, "Accept-Encoding": "identity"}
        tag = self.part_tag.read_text() if self.part_tag.exists() else None
        if received and (self.sha256 or tag):
            headers["Range"] = f"bytes={received}-"
            if not self.sha256:
                headers["If-Range"] = tag
        with client.stream("GET", self.url, headers=headers) as answer:
            length = self._length(answer, received, tag)
            if answer.status_code == 416:
                return  # nothing was missing
            if self.size not in (None, length) and length is not None:
                raise TransientError(f"the server has a file of {length} bytes, {self.size} expected")
            start = received if answer.status_code == 206 else 0
            if not start:
                self._begin(answer)
            self._store(answer, start, length)
        if length is not None and self._received() != length:
            raise TransientError(f"the answer ended after {self._received()} of {length} bytes")

    def _length(self, answer: httpx.Response, received: int, tag: str | None) -> int | None:
        """The length that the whole file will have, None if only the answer's end tells."""
        status = answer.status_code
        content_range = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+)", answer.headers.get("Content-Range", ""))
        if status == 416 and content_range and int(content_range[2]) == received:
            return received
        if status == 416 or (status == 206 and not self._fits(answer, content_range, received, tag)):
            self._discard()
            raise TransientError("the file has changed since its beginning came")
        if status == 206:
            return int(content_range[2])
        if status == 200:
            length = answer.headers.get("Content-Length", "")
            if length.isdecimal():
                return int(length)
            chunked = "chunked" in answer.headers.get("Transfer-Encoding", "").lower()
            if not chunked and self.size is None and self.sha256 is None:
                raise InputError(
                    f"{self.url}: the server does not say how long the file is; download it by other means"
                )
            return None
        if is_transient(status):
            wait = answer.headers.get("Retry-After", "")
            raise TransientError(
                f"the server answers {status} {answer.reason_phrase}", float(wait) if wait.isdecimal() else None
            )
        raise InputError(f"{self.url}: the server answers {status} {answer.reason_phrase}")

    def _fits(
        self, answer: httpx.Response, content_range: re.Match[str] | None, received: int, tag: str | None
    ) -> bool:
        same_file = bool(self.sha256) or answer.headers.get("ETag") == tag
        return same_file and content_range is not None and content_range[1] == str(received)

    def _begin(self, answer: httpx.Response) -> None:
        """An empty `part`, with the tag of what will come. A weak tag does not promise the same bytes."""
        self._discard()
        tag = answer.headers.get("ETag", "")
        try:
            if tag.startswith('"'):
                self.part_tag.write_text(tag)
            self.part.touch()
        except OSError as error:
            raise unwritable(str(self.part), error) from None

    def _store(self, answer: httpx.Response, start: int, length: int | None) -> None:
        total = -(-((length or 0) - start) // _MB)
        progress = Progress(self.target.name, total, "MB")
        with self.part.open("ab") as file:
            for block in answer.iter_raw():
                try:
                    file.write(block)
                except OSError as error:
                    raise unwritable(str(self.part), error) from None
                progress.reach(-(-(file.tell() - start) // _MB))
