"""The page: the template, the style and the script beside this file, with a run's facts, in one file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bart.files import PathName, replacing
from utils.app.cli import option, parse_dataclass
from utils.app.errors import unwritable
from utils.app.pages import page_template
from utils.evaluation.report import articles, charts, tables
from utils.evaluation.report.runs import ReportedRun
from utils.tasks.options import TOKEN

logger = logging.getLogger(__name__)

REPORT = "report.html"


@dataclass(frozen=True)
class ReportArguments:
    run_dir: str = option(positional=True, help="folder that finetune.py or run_eval.py wrote")


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(ReportArguments, argv, f"Write a run's report, RUN_DIR/{REPORT}.")
    print(build_report(args.run_dir))


def build_report(folder: PathName, split: str | None = None) -> Path:
    """Write the page of a run, with the articles of a split, by default the first scored of test, val, train."""
    run = ReportedRun(folder)
    split = split or next(iter(run.scores), "test")
    articles.add_articles(run, split)
    output = run.folder / REPORT
    try:
        page = page_template(Path(__file__).with_name("page.html")).render(
            run=run,
            split=split,
            noun="article" if run.target == TOKEN else "example",
            scores=[table for name in run.scores if (table := tables.score_table(run, name)).rows],
            texts=articles.shown_texts(run),
            columns=articles.columns_of(run),
            tables=tables,
            charts=charts,
        )
        with replacing(output) as temporary:
            temporary.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise unwritable(f"{output}", error) from None
    return output


def write_report(folder: PathName, split: str | None = None) -> None:
    """Write the report of a run that has just ended; since the run is done, whatever goes wrong here is a warning."""
    try:
        path = build_report(folder, split=split)
    except Exception as error:
        logger.warning("%s was not written: %s: %s", Path(folder) / REPORT, type(error).__name__, error)
    else:
        logger.info("report: %s", path)
