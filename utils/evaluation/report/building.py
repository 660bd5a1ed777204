"""A run as one page to open in a browser: `python -m utils.evaluation.report RUN_DIR [RUN_DIR ...]`.

The template, the style and the script beside this file become, with the facts of the run, one file that needs no
network. Several runs are compared with the first of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from bart.errors import InputError
from bart.files import PathName, replacing
from utils.app.charts import COLOURS, DARK, GRID, INK, PAPER, Chart, Matrix, draw
from utils.app.errors import unwritable
from utils.app.pages import page_template
from utils.evaluation.report import articles, charts, tables
from utils.evaluation.report.runs import TARGETS, read_run, scored_splits

logger = logging.getLogger(__name__)

REPORT = "report.html"
LONGEST_NAME = 200  # bytes of a comparison's; file systems allow 255
# The page's style says what these colours are on light and on dark paper.
VARIABLES = {**{colour: f"var(--s{i})" for i, colour in enumerate(COLOURS)}, INK: "var(--soft)", GRID: "var(--hair)"}
VARIABLES |= {DARK: "var(--ink)", PAPER: "var(--paper)"}


def build_report(folders: Sequence[PathName], output: PathName | None = None, split: str | None = None) -> Path:
    """Write the page of a run, or one that compares several, and its charts as PNGs into a folder beside it.

    Args:
        output: the page's file; by default `report.html` in the run's directory, or `comparison_<runs>.html` beside the
            first run's directory. The charts go to a folder of the same name with `_figures` at the end.
        split: the split whose articles are shown; by default the first of test, val and train that was scored.

    Raises:
        InputError: a directory is not a run's or given twice, a file of it is damaged, or the output cannot be written.
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
    split = split or (splits[0] if splits else "test")
    for run in runs:
        articles.add_articles(run, split)
    if output is None:
        output = runs[0].folder / REPORT if len(runs) == 1 else _comparison([run.folder.resolve() for run in runs])
    output = Path(output)
    pictures = output.with_name(f"{output.stem}_figures")

    def picture(chart: Chart | Matrix) -> str:
        """Draw a chart as PNG; returns it as SVG whose colours follow the page's."""
        svg = draw(pictures / f"{chart.name}.png", chart)
        for colour, variable in VARIABLES.items():
            svg = svg.replace(colour, variable)
        return svg

    compared = articles.same_articles(runs)
    scores = [tables.score_table(runs, name, compared) for name in (splits if len(runs) == 1 else [split])]
    try:
        pictures.mkdir(parents=True, exist_ok=True)
        page = page_template(Path(__file__).with_name("page.html")).render(
            runs=runs,
            split=split,
            compared=compared,
            noun="example" if runs[0].task in TARGETS else "article",
            scores=[table for table in scores if table.rows],
            texts=articles.shown_texts(compared),
            columns=articles.columns_of(compared),
            sources=[articles.text_of(article, "source") for run in compared[:1] for article in run.articles],
            tables=tables,
            charts=charts,
            picture=picture,
        )
        with replacing(output) as temporary:
            temporary.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise unwritable(f"{output}", error) from None
    return output


def _comparison(folders: Sequence[Path]) -> Path:
    """The page of a comparison, whose name has those of the runs, from the first one's folder on."""
    beside = folders[0].parent
    names = [os.path.relpath(folder, beside).replace("../", "").replace(os.sep, "-") for folder in folders]
    name = "_".join(["comparison", *names])
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = f"{name[:40]}_{xxh3_64_hexdigest(name.encode())}"
    return beside / f"{name}.html"


def write_report(folder: PathName, split: str | None = None) -> None:
    """Write the report of a run that has just ended; since the run is done, whatever goes wrong here is a warning."""
    try:
        path = build_report([folder], split=split)
    except Exception as error:
        logger.warning("%s was not written: %s: %s", Path(folder) / REPORT, type(error).__name__, error)
    else:
        logger.info("report: %s", path)
