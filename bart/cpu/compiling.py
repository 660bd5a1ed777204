"""kernels.c compiled to a library, which is kept in the user's cache, and the types of its functions' arguments."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bart.files import cache_home, sha256_of

SOURCE = Path(__file__).with_name("kernels.c")
# Sums may only be reordered where the source says so, and masks need infinity: no -ffast-math.
FLAGS = "-O3 -march=native -fno-math-errno -fno-trapping-math -fno-strict-aliasing -fvisibility=hidden -fopenmp -fPIC"
COMPILE_SECONDS = 120
_TYPES = {"int": ctypes.c_int, "int64_t": ctypes.c_int64, "float": ctypes.c_float}


def argument_types(source: str) -> dict[str, list[type]]:
    """The types of the arguments of each function that a source exports."""
    signatures = re.findall(r"^EXPORT int (\w+)\((.*?)\)$", source, re.MULTILINE | re.DOTALL)
    return {
        name: [
            ctypes.c_void_p if "*" in argument else _TYPES[argument.split()[-2]] for argument in arguments.split(",")
        ]
        for name, arguments in signatures
    }


def _is_private(path: Path) -> bool:
    """True if this user owns a file or folder and nobody else may write to it."""
    status = path.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def compile_library(*options: str) -> Path:
    """Compile kernels.c, with further options of the compiler, unless that has been done before.

    Raises:
        OSError, RuntimeError, subprocess.SubprocessError: it cannot be compiled, or kept where others cannot change it.
    """
    if sys.platform != "linux":
        raise OSError(f"they are not made for {sys.platform}")
    # GCC's code calls GOMP_parallel of the OpenMP library that torch has loaded for all to see. Threads of another one
    # would compete for the cores.
    if not hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        raise OSError("torch has no OpenMP library that GCC can use")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = [*FLAGS.split(), *options]
    run = functools.partial(subprocess.run, check=True, capture_output=True, timeout=COMPILE_SECONDS)
    # The compiler's description of itself and, because of -march=native, of this processor.
    macros = run([*compiler, *flags, "-dM", "-E", "-x", "c", os.devnull]).stdout
    origin: list[Any] = [SOURCE.read_bytes(), macros, repr((compiler, flags)).encode()]
    cache = cache_home() / "kernels"
    name = hashlib.sha256(b"".join(origin)).hexdigest()[:32]
    for folder in (cache.parent, cache):
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)  # whatever the umask
    if not _is_private(cache):
        raise OSError(f"{cache} is not owned by this user, or others may write to it")
    for library in cache.glob(f"{name}-*.so"):  # of the digest in its name, unless it is damaged
        if _is_private(library) and library.stem == f"{name}-{sha256_of(library)[:32]}":
            return library
        library.unlink(missing_ok=True)
    # Renamed once it is whole, because other processes may compile it at the same time.
    with tempfile.TemporaryDirectory(dir=cache) as new:
        unlinked, linked = Path(new, "kernels.o"), Path(new, "kernels.so")
        run([*compiler, *flags, "-c", SOURCE, "-o", unlinked])
        # Without -fopenmp, which would link the compiler's own library.
        run([*compiler, "-shared", unlinked, "-lm", "-o", linked])
        linked.chmod(0o700)
        with linked.open("rb") as file:
            os.fsync(file.fileno())
        return linked.replace(cache / f"{name}-{sha256_of(linked)[:32]}.so")
