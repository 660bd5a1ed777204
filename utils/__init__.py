"""The recipe around the model: arguments, data, training, evaluation.

The project's programs import this package before anything that takes seconds to load or that may be missing. So this
module tells users of a terminal that something happens, names the command that installs a missing package, and sets
what torch reads from the environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

_ROOT = Path(__file__).resolve().parents[1]
# A process that multiprocessing starts has the arguments of its parent, but another main module, or one without a file.
_PROGRAM = Path(getattr(sys.modules["__main__"], "__file__", None) or "").name


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


# argv[0] is "-m" while Python looks for the module of `python -m utils.summarize`.
if sys.argv[:1] == ["-m"] or _PROGRAM.startswith(
    ("finetune.py", "run_eval.py", "run_pretraining.py", "bart-", "benchmark_", "gpu_checks.py")
):
    sys.excepthook = _in_one_line
    # Threads of GNU's OpenMP that wait for others spin for some milliseconds. Where another process is busy too, they
    # keep a core that work is waiting for. This is read when torch is loaded.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    # cuDNN's attention makes a plan for each shape, and batches have many; in torch 2.11 it may round the rate of
    # dropout to sixteenths. Flash and memory-efficient attention have neither fault.
    os.environ.setdefault("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"  # of the processes that torchrun or Lightning start
    if is_first and sys.stderr.isatty() and not {"-h", "--help"} & set(sys.argv):
        print("loading ...", file=sys.stderr, flush=True)
