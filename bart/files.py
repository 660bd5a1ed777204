"""JSON read with errors that name the file, files that are there whole or not at all, and digests of them."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bart.errors import InputError

PathName = str | os.PathLike[str]


def is_device(path: Path) -> bool:
    """True if a path is there and neither a file nor a folder: a device, or a pipe."""
    return path.exists() and not (path.is_file() or path.is_dir())


def as_named(place: PathName) -> Path:
    """A path without links but for a file's own, whose name tells its kind: the Hub's cache links it to a hash."""
    path = Path(place).expanduser()
    return path.resolve() if path.is_dir() else path.parent.resolve() / path.name


def cache_home() -> Path:
    """The folder of this project in the user's cache, which XDG_CACHE_HOME moves."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bart-pytorch"


def temporary_beside(target: Path) -> Path:
    """The path to which this process writes the later content of `target`; machines may have equal process ids."""
    return target.with_name(f".{target.name}.{socket.gethostname()}.{os.getpid()}.tmp")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`, which replaces it on success; a device such as /dev/null itself."""
    temporary = target if is_device(target) else temporary_beside(target)
    try:
        yield temporary
        if temporary != target:
            os.replace(temporary, target)
    except OSError as error:
        if error.errno and error.filename is None:  # as of a full disk
            error.filename = str(target)
        raise
    finally:
        if temporary != target:
            temporary.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, as hexadecimal digits."""
    return digest_of(path, hashlib.sha256())


def digest_of(path: Path, digest: Any) -> str:
    """The hexadecimal digits of a digest that has `update`, such as hashlib's, of a file's bytes."""
    buffer = memoryview(bytearray(1 << 20))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
    return digest.hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; InputError where the file cannot be read, or holds something else."""
    if path.is_char_device():  # /dev/zero has no end
        raise InputError(f"{path}: a device; allowed: a file")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # ValueError: of JSON and of UTF-8
        raise InputError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a JSON {type(content).__name__}, not an object")
    return content


def write_json(path: Path, content: Mapping[str, Any], *, sort_keys: bool = False) -> None:
    """Write an object as indented JSON, whole or not at all."""
    with replacing(path) as temporary:
        text = json.dumps(content, indent=2, sort_keys=sort_keys, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8", newline="\n")
