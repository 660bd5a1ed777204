"""Work that was broken off: what is done of it stands in a file, so that the next run of the same work goes on."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from bart.errors import InputError
from bart.files import PathName, replacing
from bart.hub import resolve
from utils.app.errors import RunError, unwritable
from utils.app.output_files import difference, file_digest
from utils.app.run_directory import CARD, EXAMPLES

logger = logging.getLogger(__name__)


class Unfinished:
    """The finished part of some work, in a file of JSON lines that goes once all of the work is done.

    Its first line holds the identity of the work, all on which the values depend; each other one holds a value, and
    each its number and a digest of it all. Reading ends at the first line that differs from what was written; what
    stands from there on is done again. A file of other work is replaced, or refused with what to do `otherwise`.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], otherwise: str, replaces: bool = False) -> None:
        self.path, self.done = path, 0  # values
        self._identity = json.dumps(identity).encode()
        self._key = xxhash.xxh3_128_digest(json.dumps(identity, sort_keys=True).encode())
        self._file: BinaryIO | None = None  # is opened when there is something to note
        try:
            if not path.exists() or not path.stat().st_size:
                return
            lines = self._lines()
            end, stored = next(lines, (0, None))
            unread = "its first line cannot be read"
            changed = unread if stored is None else difference(stored, json.loads(self._identity))
            if changed is None:
                for end, _ in lines:  # noqa: B007 (the end is that of the last one)
                    self.done += 1
                os.truncate(path, end)
                return
        except OSError as error:
            raise unwritable(str(path), error) from None
        problem = f"{path} holds the progress of another run ({changed})"
        if not replaces:
            raise InputError(f"{problem}: go on with that one, {otherwise}")
        logger.warning("%s: all is done anew", problem)
        path.unlink()

    def _lines(self) -> Iterator[tuple[int, Any]]:
        """The identity and the values, each with the byte where its line ends."""
        end = 0
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            for number, line in enumerate(file):
                text = line.partition(b'", ')[2][:-2]
                if line != self._line(number, text):
                    return
                end += len(line)
                yield end, json.loads(text)

    def _line(self, number: int, text: bytes) -> bytes:
        key = self._key if number else b""
        digest = xxhash.xxh3_64_hexdigest(b"%d %b %b" % (number, key, text))
        return b'[%d, "%b", %b]\n' % (number, digest.encode(), text)

    def add(self, value: Any) -> None:
        """Note a further value, on the disk at once; RunError where that is full."""
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                if not self.done:
                    with replacing(self.path) as temporary:  # the first line is there whole or not at all
                        temporary.write_bytes(self._line(0, self._identity))
                self._file = self.path.open("ab")
            self._file.write(self._line(self.done + 1, json.dumps(value).encode()))
            self._file.flush()
        except OSError as error:
            raise unwritable(str(self.path), error) from None
        self.done += 1

    def values(self) -> Iterator[Any]:
        """Read the values, in the order in which they were added; RunError where the file has changed since."""
        number = 0
        for number, (_, value) in enumerate(self._lines() if self.done else ()):
            if number:
                yield value
        if number < self.done:
            raise RunError(f"{self.path}: its content changed meanwhile; the same command goes on")

    def close(self) -> None:
        """Leave the file for a later run."""
        if self._file is not None:
            with suppress(OSError):  # `add` has said what could not be written
                self._file.close()

    def finish(self) -> None:
        """Remove the file: nothing is left to go on with."""
        self.close()
        self.path.unlink(missing_ok=True)


def model_identity(name: PathName) -> dict[str, Any]:
    """The values that tell a model from others: its path and the digests of its files but for the card and examples."""
    path = Path(name)
    if path.is_dir():
        path = resolve(path, ["*.safetensors", "*.bin", "*.pt"])
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    digests = {file.name: file_digest(file) for file in files if file.is_file() and file.name not in (CARD, EXAMPLES)}
    return {"model": str(path.resolve()) if path.exists() else str(name), "model_files": digests}
