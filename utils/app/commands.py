"""The way into all programs, and the commands of pip."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import NoReturn

from utils.app.start import start_program


def run_program(name: str) -> NoReturn:
    """Run `main` of a module as a program; signals and errors end it as `utils.app.cli.run_main` describes.

    The file of the module calls this before its imports, and is then imported by its name.
    """
    start_program()
    from utils.app.cli import run_main  # which needs packages of others

    run_main(lambda argv: import_module(name).main(argv))


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
