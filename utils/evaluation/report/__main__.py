"""The command: `python -m utils.evaluation.report RUN_DIR`."""

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
    run_dirs: tuple[str, ...] = option((), positional=True, help="one folder, which finetune.py or run_eval.py wrote")
    output: str | None = option(None, metavar="FILE", help=f"the page; by default RUN_DIR/{REPORT}")
    split: str | None = option(
        None, choices=REPORT_ORDER, help="whose articles are shown; by default the first scored of test, val, train"
    )

    def __post_init__(self) -> None:
        if len(self.run_dirs) != 1:
            what = f"{len(self.run_dirs)} run directories; a report is of one run"
            raise InputError(f"{what}: --compare of utils.metrics compares two systems")


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(ReportArguments, argv, "Write a run's report as one HTML page.")
    print(build_report(args.run_dirs[0], args.output, args.split))
