"""The command: `python -m utils.evaluation.report RUN_DIR [RUN_DIR ...]`."""

from __future__ import annotations

from collections.abc import Sequence

from utils.cli import ArgumentParser, run_main
from utils.data.line_files import SPLITS
from utils.evaluation.report import COMPARISON, REPORT, build_report


def main(argv: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(
        prog="python -m utils.evaluation.report",
        description="Write a run's report as one HTML page, its charts as PNGs beside it; several runs are compared.",
    )
    parser.add_argument("run_dirs", metavar="RUN_DIR", nargs="+", help="what finetune.py or run_eval.py wrote")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help=f"the page (default: RUN_DIR/{REPORT}; of several runs {COMPARISON} beside the first run's directory)",
    )
    parser.add_argument(
        "--split", choices=SPLITS, help="whose articles are shown (default: the first scored of test, val, train)"
    )
    args = parser.parse_args(argv)
    print(build_report(args.run_dirs, args.output, args.split))


if __name__ == "__main__":
    run_main(main)
