"""Places in object stores, which fsspec reaches: each has a copy on this machine, and programs read and write that."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import xxhash

from bart.errors import InputError, brief
from bart.files import read_json, write_json
from utils.app.errors import RunError
from utils.app.machine import is_first, is_first_here
from utils.app.output_files import held
from utils.app.run_directory import LAST_FILE, PREVIOUS_FILE

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub"}  # by the scheme of a URL
STORES = "URL of " + ", ".join(f"{scheme}://" for scheme in PACKAGES)  # for --help
_UPLOADING = "?"  # stands for what the store tells of a file


def in_store(place: str) -> bool:
    """True for the URL of one place in an object store; ArgumentTypeError where the package is missing for it."""
    scheme, separator, path = place.partition("://")
    package = PACKAGES.get(scheme) if separator and path.strip("/") and "{" not in path else None
    if package is not None and find_spec(package) is None:
        raise ArgumentTypeError(f"{place!r} needs the package {package}: pip install {package}")
    return package is not None


def cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bart-pytorch"


def local_path(place: str) -> str:
    """The place itself or, for a URL, the path of its copy."""
    if not in_store(place):
        return place
    place = place.rstrip("/")
    return str(cache_home() / "stores" / xxhash.xxh3_64_hexdigest(place.encode()) / place.rpartition("/")[2])


class _Copy:
    """The file or folder on this machine that stands for a URL. A record beside it holds the last states alike.

    The state of a file is what the store tells of it, and its size and time here; each is None where it is missing.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self.url, self.path = url, Path(local_path(url))
        self.store, self.root = url_to_fs(url.rstrip("/"))
        self._record = self.path.parent / "record.json"
        self._record.parent.mkdir(parents=True, exist_ok=True)
        self.recorded: dict[str, Any] = read_json(self._record) if self._record.exists() else {}

    def states(self) -> dict[str, Any]:
        """Name -> state, of all files but hidden ones, which are of this machine alone; '' names a single file."""
        self.store.invalidate_cache()
        found = self.store.find(self.root, detail=True).items()
        there = {path[len(self.root) + 1 :]: str(info) for path, info in found if not path.endswith("/")}
        files = [self.path] if self.path.is_file() else [path for path in self.path.rglob("*") if path.is_file()]
        stats = {str(path)[len(str(self.path)) + 1 :]: path.stat() for path in files}
        here = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items() if "/." not in f"/{name}"}
        return {name: [there.get(name), here.get(name)] for name in {**there, **here, **self.recorded}}

    def fetch(self) -> bool:
        """Fetch what has changed; false where the store has nothing."""
        changed = {name: state for name, state in self.states().items() if self.recorded.get(name) != state}
        for name, (there, _) in changed.items():
            path = self.path / name
            path.unlink(missing_ok=True)  # a process that reads it keeps what it has opened
            if there is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                self.store.get_file(self._url(name), str(path))
        self.recorded = {name: state for name, state in self.states().items() if state[0] is not None}
        write_json(self._record, self.recorded)
        return bool(self.recorded)

    def publish(self) -> None:
        states = {name: state for name, state in self.states().items() if name != PREVIOUS_FILE}
        before = {name: self.recorded.get(name, [None, None]) for name in states}
        if others := [name for name in states if states[name][0] != before[name][0] != _UPLOADING]:
            why = f"another run has written or removed {others[0]} since this one began"
            raise InputError(f"{self.url}: {why}; allowed: a place for each run")
        changed = {name: here for name, (_, here) in states.items() if here != before[name][1]}
        write_json(self._record, {**self.recorded, **{name: [_UPLOADING, None] for name in changed}})
        # A checkpoint names the best ones, so these are there before it, and go after it.
        for name in sorted(changed, key=lambda name: (changed[name] is None, name == LAST_FILE)):
            if changed[name] is not None:
                self.store.put_file(str(self.path / name), self._url(name))
            elif states[name][0] is not None:
                self.store.rm_file(self._url(name))
        there = {name: there for name, (there, _) in self.states().items()}
        write_json(self._record, {name: [there[name], here] for name, (_, here) in states.items() if here is not None})

    def _url(self, name: str) -> str:
        return f"{self.root}/{name}".rstrip("/")


def fetch(place: str, may_be_missing: bool = False) -> str:
    """The local path of a place; a copy is made to be as the store has it now, by the first process of a machine.

    Files that the store has not are removed, but for hidden ones.
    """
    if not in_store(place):
        return place
    from utils.app.distributed import meeting  # here, because --help needs no torch

    path, done = local_path(place), f"{place} is on machine {os.environ.get('GROUP_RANK')}"
    with _reaching(place, InputError):
        if is_first_here():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with held(Path(path).with_name(".lock"), f"another process fetches {place}", waits=True):
                if not _Copy(place).fetch() and not may_be_missing:
                    raise InputError(f"{place}: no such file or folder")
            if (store := meeting()) is not None:
                store.set(done, "")
        elif (store := meeting()) is not None:  # otherwise the process that started this one has fetched it
            store.wait([done], timedelta(days=1))
    return path


def publish(place: str) -> None:
    """Let the first process bring a URL to the state of its copy; RunError where that fails."""
    if in_store(place) and is_first():
        with _reaching(place, RunError):
            _Copy(place).publish()


def names_at(place: str) -> set[str]:
    """The names of files and folders in a folder, which may be missing."""
    if not in_store(place):
        return {path.name for path in Path(place).glob("*")}
    copy = _Copy(place)
    with _reaching(place, InputError), suppress(FileNotFoundError):
        copy.store.invalidate_cache()
        return {Path(path).name for path in copy.store.ls(copy.root, detail=False)}
    return set()


@contextmanager
def _reaching(place: str, kind: type[InputError | RunError]) -> Iterator[None]:
    """Make one error of whatever a store's client raises."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise kind(f"{place} cannot be reached or written ({type(error).__name__}: {brief(error)})") from error
