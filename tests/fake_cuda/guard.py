"""The compiled guard of a CUDA device that is not there. It must be loaded before torch, which takes its hooks once."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(__file__).with_name("guard.cpp")
COMPILER = os.environ.get("CXX", "g++")
TORCH = Path(find_spec("torch").origin).parent
# Builds with CUDA or ROCm have hooks of their own, and a second one under their name ends the process.
IS_POSSIBLE = (
    platform.system() == "Linux" and shutil.which(COMPILER) is not None and not any((TORCH / "lib").glob("libc10_*"))
)


def compiled() -> Path:
    """The library, which is kept for the next time."""
    name = hashlib.sha256(SOURCE.read_bytes() + version("torch").encode()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"bart-fake-cuda-{os.getuid()}" / f"{name}.so"
    if not library.exists():
        library.parent.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            words = [COMPILER, "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{TORCH / 'include'}", str(SOURCE)]
            words += [f"-L{TORCH / 'lib'}", "-ltorch_cpu", "-lc10", "-o", f"{folder}/guard.so"]
            subprocess.run(words, check=True)
            os.replace(f"{folder}/guard.so", library)
    return library


def load() -> ctypes.CDLL:
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(TORCH / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(compiled()))


library: ctypes.CDLL | None = None
if IS_POSSIBLE and "torch" not in sys.modules:
    # A failure must not end the process, which serves other tests too.
    with suppress(OSError, subprocess.CalledProcessError):
        library = load()
