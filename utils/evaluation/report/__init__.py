"""A run as one page to open in a browser: `python -m utils.evaluation.report RUN_DIR [RUN_DIR ...]`.

The HTML, the style and the script beside this file go with the facts of the run into one file that needs no network.
Several runs are compared, the first being what the others are measured against.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from bart.errors import InputError
from bart.files import replacing
from utils.cli import unwritable
from utils.evaluation.report.charts import draw
from utils.evaluation.report.page import page_of
from utils.evaluation.report.runs import add_articles, read_run, scored_splits

logger = logging.getLogger(__name__)

REPORT, COMPARISON = "report.html", "comparison.html"


def build_report(
    folders: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] | None = None, split: str | None = None
) -> Path:
    """Write the page of a run, or one that compares several, and its charts as PNGs into a folder beside it.

    Args:
        folders: run directories.
        output: the page's file; by default `report.html` in the run's directory, or `comparison.html` beside the first
            run's. The charts go to a folder of its name with `_figures` at the end.
        split: whose articles are shown; by default the first of test, val and train that was scored.

    Returns:
        The page's path.

    Raises:
        InputError: a directory is not a run's, a file of it is damaged, or the output cannot be written.
    """
    runs = [read_run(folder) for folder in folders]
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise InputError(f"run directories {', '.join(map(str, folders))}: one is given twice")
    if len({run.name for run in runs}) < len(runs):
        for run in runs:
            run.name = str(run.folder)
    splits = scored_splits(runs)
    if split is not None and split not in splits:
        raise InputError(f"--split is {split}; scored in {', '.join(map(str, folders))}: {', '.join(splits) or 'none'}")
    split = split or (splits[0] if splits else None)
    for run in runs if split else ():
        add_articles(run, split)
    if output is None:
        output = runs[0].folder / REPORT if len(runs) == 1 else runs[0].folder.resolve().parent / COMPARISON
    output = Path(output)
    pictures = output.with_name(f"{output.stem}_figures")
    page, charts = page_of(runs, split)
    try:
        pictures.mkdir(parents=True, exist_ok=True)
        for chart in charts:
            draw(pictures / f"{chart.name}.png", chart)
        with replacing(output) as temporary:
            temporary.write_bytes(page.encode("utf-8", "replace"))
    except OSError as error:
        raise unwritable(f"{output}", error) from None
    return output


def write_report(folder: str | os.PathLike[str], split: str | None = None) -> None:
    """Write the report of a run that has just ended; what keeps it from being written is a warning, as the run is done.

    Args:
        split: as for `build_report`.
    """
    try:
        path = build_report([folder], split=split)
    except Exception as error:
        logger.warning("%s was not written: %s: %s", Path(folder) / REPORT, type(error).__name__, error)
    else:
        logger.info("report: %s", path)
