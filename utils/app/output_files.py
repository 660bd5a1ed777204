"""Files and folders that a command writes: refused before the work starts, written whole, locked, compared."""

from __future__ import annotations

import atexit
import errno
import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import xxhash

from bart.errors import InputError
from bart.files import PathName, digest_of, is_device, replacing, temporary_beside
from utils.app.errors import unwritable

logger = logging.getLogger(__name__)
LOCK = ".lock"  # of a folder


def check_output(option: str, path: PathName | None, *inputs: PathName | None) -> None:
    """Raise InputError when an option's path is no file that could be written, or an input; RunError on a full disk."""
    if path is None:
        return
    target = Path(path)
    try:
        if target.is_dir() or not target.absolute().parent.is_dir():
            raise InputError(f"--{option} is {os.fspath(path)!r}; allowed: a file in a directory that exists")
        for source in (Path(name).expanduser() for name in inputs if name is not None):
            if source.exists() and target.exists() and target.samefile(source) and not is_device(target):
                raise InputError(f"--{option} is {path}, the file that is read; allowed: another one")
        if not is_device(target):
            temporary = temporary_beside(target)
            temporary.touch()
            temporary.unlink()
    except OSError as error:
        raise unwritable(f"--{option} {path}", error) from None


def writable_folder(name: str, path: PathName, log: str = "") -> Path:
    """The folder, made if need be, and removed at the end of the program if nothing was written to it but the log."""
    folder = Path(path)
    places = (folder.absolute(), *folder.absolute().parents)
    atexit.register(_remove_unused, [place for place in places if not place.exists()], log)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise unwritable(f"{name} {folder}", error) from None
    return folder


def _remove_unused(folders: Sequence[Path], log: str) -> None:
    with suppress(OSError, InputError):  # it is not empty, not there, or another process holds its lock
        for folder in folders:
            if {*os.listdir(folder)} <= {log, LOCK}:
                with held(folder / LOCK, "in use"):
                    for path in folder.iterdir():
                        path.unlink()
            folder.rmdir()


@contextmanager
def held(path: Path, message: str, *, waits: bool = False, stays: bool = True) -> Iterator[None]:
    """Hold a lock file; where another process holds it, raise InputError with this message or, with `waits`, log it.

    The system frees it when the process ends. A file system without locks holds nobody up. The file stays, or only its
    holder removes it, alone or with its folder. A process that had opened it before tries the new file then.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)  # which the process that held it may have removed
        try:
            opened = path.open("a+")
        except FileNotFoundError:  # it removes it now
            raise InputError(message) from None
        with opened as file:
            os.register_at_fork(after_in_child=file.close)  # or loader workers would hold it seconds after a kill
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waits:
                    raise InputError(message) from None
                logger.info(message)
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
            if _is_at(path, file.fileno()):
                try:
                    yield
                finally:
                    if not stays:
                        path.unlink(missing_ok=True)
                return


def _is_at(path: Path, file: int) -> bool:
    """True if the path still leads to the open file of this number; NFS keeps one that is removed, by another name."""
    try:
        return os.path.samefile(path, file)
    except FileNotFoundError:
        return False


def write_whole(path: Path, text: str) -> None:
    """Write a text file that is there whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def file_digest(path: Path) -> str:
    """A digest of a file, as fast as memory is read."""
    return digest_of(path, xxhash.xxh3_128())


def difference(stored: Mapping[str, Any], current: Mapping[str, Any], within: str = "") -> str | None:
    """The first difference between the stored record of a run and this run's; None where there is none."""
    for name in (*current, *stored):
        theirs, ours = stored.get(name), current.get(name)
        if theirs != ours:
            if not (isinstance(theirs, Mapping) and isinstance(ours, Mapping)):
                return f"its {within}{name} is {theirs!r}, this run's is {ours!r}"
            if inside := difference(theirs, ours, f"{within}{name} "):  # none where one of them alone has a None
                return inside
    return None
