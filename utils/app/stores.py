"""Places in object stores, which fsspec reaches: each has a copy on this machine, and programs read and write that."""

from __future__ import annotations

import logging
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import xxhash

from bart.errors import InputError, brief
from bart.files import cache_home, read_json, write_json
from utils.app.errors import RunError
from utils.app.machine import is_first
from utils.app.output_files import held
from utils.app.run_directory import LAST_FILE, PREVIOUS_FILE

logger = logging.getLogger(__name__)
PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub"}  # by the scheme of a URL
STORES = "URL of " + ", ".join(f"{scheme}://" for scheme in PACKAGES)  # for --help


def in_store(place: str) -> bool:
    """True for the URL of one place in an object store; ArgumentTypeError where the package is missing for it."""
    package = _package(place)
    if package is not None and find_spec(package) is None:
        raise ArgumentTypeError(f"{place!r} needs the package {package}: pip install {package}")
    return package is not None


def _package(place: str) -> str | None:
    scheme, separator, path = place.partition("://")
    return PACKAGES.get(scheme) if separator and path.strip("/") and "{" not in path else None


def local_path(place: str) -> str:
    """The place itself or, for a URL, the path of its copy."""
    if _package(place) is None:
        return place
    place = place.rstrip("/")
    return str(cache_home() / "stores" / xxhash.xxh3_64_hexdigest(place.encode()) / place.rpartition("/")[2])


class _Copy:
    """The file or folder on this machine that stands for a URL.

    A record beside it has the state of each file when both were alike: what the store told of it, and its size and time
    here. '' is the name of a single file. Hidden files are of this machine alone.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self.url, self.path = url, Path(local_path(url))
        self.store, self.root = url_to_fs(url.rstrip("/"))
        self.record = self.path.with_name(".record.json")
        self.recorded: dict[str, list[Any]] = read_json(self.record) if self.record.exists() else {}

    def there(self) -> dict[str, str]:
        self.store.invalidate_cache()
        found = self.store.find(self.root, detail=True)
        return {name: str(found[path]) for name, path in _names(found, self.root).items()}

    def here(self) -> dict[str, list[int]]:
        files = [str(path) for path in (self.path, *self.path.rglob("*")) if path.is_file()]
        stats = {name: os.stat(path) for name, path in _names(files, str(self.path)).items()}
        return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}

    def fetch(self) -> bool:
        """Make the copy as the store has it; false where the store has nothing."""
        there, here = self.there(), self.here()
        states = {name: [there.get(name), here.get(name)] for name in {**there, **here}}
        changed = [name for name, state in states.items() if state != self.recorded.get(name)]
        logger.info("%s: files to fetch: %d", self.url, sum(name in there for name in changed))
        for name in changed:
            path = self.path / name
            path.unlink(missing_ok=True)  # a process that reads it keeps what it has opened
            if name in there:
                path.parent.mkdir(parents=True, exist_ok=True)
                self.store.get_file(self._url(name), str(path))
        here = self.here()
        write_json(self.record, {name: [state, here[name]] for name, state in there.items()})
        return bool(there)

    def publish(self) -> None:
        """Bring what has changed here to the store; all of it again where an upload failed."""
        here = self.here()
        here.pop(PREVIOUS_FILE, None)
        before = {name: self.recorded.get(name, [None, None])[1] for name in {**self.recorded, **here}}
        changed = [name for name in before if here.get(name) != before[name]]
        # A checkpoint names the best ones, so these are there before it, and go after it.
        for name in sorted(changed, key=lambda name: (name not in here, name == LAST_FILE)):
            if name in here:
                self.store.put_file(str(self.path / name), self._url(name))
            elif self.store.exists(self._url(name)):
                self.store.rm_file(self._url(name))
        there = self.there()
        write_json(self.record, {name: [there.get(name), state] for name, state in here.items()})

    def _url(self, name: str) -> str:
        return f"{self.root}/{name}".rstrip("/")


def _names(paths: Iterable[str], root: str) -> dict[str, str]:
    """Name -> path of files that are not hidden. Names such as /a and ../a, which stores have, would lead elsewhere."""
    names = {path[len(root) + 1 :]: path for path in paths if not path.endswith("/")}
    return {name: path for name, path in names.items() if not re.search("/[./]", f"/{name}")}


def fetch(place: str, may_be_missing: bool = False) -> str:
    """The local path of a place; the first process of a machine makes the copy as the store has it now."""
    if not in_store(place):
        return place
    from utils.app.distributed import told_by_first  # here, because --help needs no torch

    path = local_path(place)

    def copy() -> None:
        with held(Path(path).with_name(".lock"), f"another process fetches {place}", waits=True), _reaching(place):
            found = _Copy(place).fetch()
        if not (found or may_be_missing):
            raise InputError(f"{place}: no such file or folder")

    told_by_first(f"fetch {place}", copy)
    return path


def publish(place: str) -> None:
    """Let the first process bring a URL to the state of its copy; RunError where that fails."""
    if in_store(place) and is_first():
        with _reaching(place):
            _Copy(place).publish()


@contextmanager
def _reaching(place: str) -> Iterator[None]:
    """Raise RunError for whatever a store's client raises."""
    try:
        yield
    except Exception as error:
        reason, copy = f"{type(error).__name__}: {brief(error)}", local_path(place)
        rest = f"; its copy is {copy}" if os.path.exists(copy) else ""
        raise RunError(f"{place} cannot be reached or written ({reason}){rest}") from error
