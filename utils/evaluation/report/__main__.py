"""The command: `python -m utils.evaluation.report RUN_DIR [RUN_DIR ...]`."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.evaluation.report.__main__")

from collections.abc import Sequence
from dataclasses import dataclass

from bart.errors import InputError
from utils.app.cli import option, parse_dataclass
from utils.app.run_directory import REPORT_ORDER
from utils.evaluation.report.building import REPORT, build_report


@dataclass(frozen=True)
class ReportArguments:
    """The options of the command."""

    run_dirs: tuple[str, ...] = option((), positional=True, help="what finetune.py or run_eval.py wrote")
    output: str | None = option(
        None,
        metavar="FILE",
        help=f"the page; by default RUN_DIR/{REPORT}, or of several runs comparison_RUN_RUN.html beside the first one",
    )
    split: str | None = option(
        None, choices=REPORT_ORDER, help="whose articles are shown; by default the first scored of test, val, train"
    )

    def __post_init__(self) -> None:
        if not self.run_dirs:
            raise InputError("run_dirs: at least one run directory is expected")


def main(argv: Sequence[str] | None = None) -> None:
    description = "Write a run's report as one HTML page, its charts as PNGs beside it; several runs are compared."
    args = parse_dataclass(ReportArguments, argv, description)
    print(build_report(args.run_dirs, args.output, args.split))
