"""The way into all programs, and the commands of pip."""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import NoReturn

from utils.app.machine import ROOT, is_first


def run_program(name: str) -> NoReturn:
    """Run `main` of a module as a program; signals and errors end it as `utils.app.cli.run_main` describes.

    The file of the module calls this before its imports, and is then imported by its name.
    """
    sys.excepthook = _in_one_line
    # Threads of GNU's OpenMP that wait for others spin for some milliseconds. Where another process is busy too, they
    # keep a core that work is waiting for.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    if is_first() and sys.stderr.isatty() and not {"-h", "--help"} & set(sys.argv):
        print("loading ...", file=sys.stderr, flush=True)
    from utils.app.cli import run_main  # which needs packages of others

    run_main(lambda argv: import_module(name).main(argv))


def _in_one_line(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Say how to install a package that is missing, or that Ctrl-C ended the program; leave all else to Python."""
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and package and not (ROOT / package).exists():
        install = "python -m pip install 'bart-pytorch[serve,shards]'"
        if (ROOT / "requirements.txt").exists():  # not where pip installed the code
            install = f"cd {ROOT} && source scripts/setup_env.sh requirements.txt"
        print(f"error: the package {package} is missing for {sys.executable}; run: {install}", file=sys.stderr)
    elif kind is KeyboardInterrupt:  # while modules are loaded, before utils.app.signals handles it
        print("ended by Ctrl-C", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


finetune = partial(run_program, "finetune")
pretrain = partial(run_program, "run_pretraining")
evaluate = partial(run_program, "run_eval")
summarize = partial(run_program, "utils.summarize")
predict = partial(run_program, "utils.predict")
serve = partial(run_program, "utils.serving.__main__")
rouge = partial(run_program, "utils.metrics.rouge")
report = partial(run_program, "utils.evaluation.report.building")
prepare = partial(run_program, "utils.corpora.prepare")
make_shards = partial(run_program, "utils.corpora.make_shards")
train_tokenizer = partial(run_program, "utils.corpora.train_tokenizer")
