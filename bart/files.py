"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yields a temporary name beside `target` that takes its place on success and is removed on failure.

    The name is this process's own, also where machines or containers, whose process ids may be equal, share the folder.
    """
    temporary = target.with_name(f".{target.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
