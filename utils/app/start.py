"""The start of a program, before it imports anything that takes seconds to load or that may be missing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

_ROOT = Path(__file__).resolve().parents[2]


def start_program() -> None:
    """Prepare a program, before packages of others are imported, so that a missing one or Ctrl-C is one line."""
    sys.excepthook = _in_one_line
    # Threads of GNU's OpenMP that wait for others spin for some milliseconds. Where another process is busy too, they
    # keep a core that work is waiting for.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    if is_first() and sys.stderr.isatty() and not {"-h", "--help"} & set(sys.argv):
        print("loading ...", file=sys.stderr, flush=True)


def is_first() -> bool:
    """Return true in the first of the processes that torchrun, Lightning or SLURM started together."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def _in_one_line(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Say how to install a package that is missing, or that Ctrl-C ended the program; leave all else to Python."""
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and package and not (_ROOT / package).exists():
        install = f"cd {_ROOT} && source scripts/setup_env.sh requirements.txt"
        print(f"error: the package {package} is missing for {sys.executable}; run: {install}", file=sys.stderr)
    elif kind is KeyboardInterrupt:  # while modules are loaded, before utils.app.signals handles it
        print("ended by Ctrl-C", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)
