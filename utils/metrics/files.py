"""Scores of plain files: the options and the output that the commands of all metrics share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from utils.app.cli import option
from utils.app.tables import plain_table
from utils.metrics.significance import ScoresOf, compare_scores, p_shown, scores_and_intervals
from utils.text.lines import check_counts, read_lines

LABELS = {"rouge": "ROUGE", "bleu": "BLEU", "chrf": "chrF2", "f1": "F1", "loss": "Loss"}
LABELS |= {"matthews": "Matthews correlation", "pearson": "Pearson correlation", "spearman": "Spearman correlation"}


@dataclass(frozen=True)
class FileOptions:
    """The files, and the options that the commands of all metrics have."""

    predictions: str = option(positional=True, help="file of predictions")
    references: str = option(positional=True, help="file of what is right, in the same order")
    compare: str | None = option(
        None,
        metavar="OTHER",
        help="another system's predictions: adds the difference (PREDICTIONS less OTHER), its 95 % bootstrap interval "
        "and the two-sided p value of approximate randomisation",
    )
    json: bool = option(False, help="print JSON with all digits in place of the table")

    @property
    def systems(self) -> list[str]:
        """The files of predictions: one, or two that are compared."""
        return [self.predictions, *filter(None, [self.compare])]

    def lines(self, examples: int) -> dict[str, list[str]]:
        """The lines of each file of predictions; some may be blank.

        Raises:
            InputError: a file has more or fewer lines than the references have examples.
        """
        texts = {path: read_lines(path, blank=True) for path in self.systems}
        for path, lines in texts.items():
            check_counts((path, self.references), len(lines), examples)
        return texts


def print_scores(
    files: FileOptions, title: str, counts: Sequence[np.ndarray], scores_of: ScoresOf, facts: Mapping[str, Any]
) -> None:
    """Print the scores of a file of predictions, and the comparison with another one, as a table or JSON.

    Args:
        title: the first line of the table.
        counts: of each file of predictions the counts (N, K) of each example.
        scores_of: the scores that the sums of these stand for.
        facts: what JSON tells besides. Signatures stand below the table; so do the `groups` of the first file: kind of
            group -> group -> its scores.
    """
    predicted, *others = counts
    report = {**scores_and_intervals(predicted, scores_of), **facts}
    for other in others:
        report["compare"] = compare_scores(predicted, other, scores_of)
    print(json.dumps(report, indent=2, ensure_ascii=False) if files.json else _report(report, files, title))


def _report(report: Mapping[str, Any], files: FileOptions, title: str) -> str:
    """The tables of a report, below the names of its files."""
    rows = []
    for name, interval in report["intervals"].items():
        rows.append([label_of(name), f"{report[name]:.2f}", "{:.2f} to {:.2f}".format(*interval)])
        if result := report.get("compare", {}).get(name):
            signed = f"{result['difference']:+.2f}", "{:+.2f} to {:+.2f}".format(*result["interval"])
            rows += [["  other", f"{result['other']:.2f}"], ["  difference", *signed, p_shown(result["p_value"])]]
    parts = [title, f"predictions  {files.predictions}", f"references   {files.references}"]
    header = ["", "score", "95 % interval"]
    if files.compare is not None:
        parts.insert(2, f"other        {files.compare}")
        header.append("p")
    tables = [plain_table(rows, header, words=1)]
    for kind, groups in report.get("groups", {}).items():
        columns = list(dict.fromkeys(name for scores in groups.values() for name in scores))
        cells = [[name, *(_cell(scores[column]) for column in columns)] for name, scores in groups.items()]
        tables.append(plain_table(cells, [kind, *map(label_of, columns)], words=1))
    signatures = [f"{label_of(name)}: {value}" for name, value in report.items() if name.endswith("_signature")]
    return "\n\n".join(["\n".join(parts), *tables, *filter(None, ["\n".join(signatures)])])


def _cell(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def label_of(score: str) -> str:
    """The name by which readers know a score, such as "ROUGE-1" for rouge1."""
    return " ".join(LABELS.get(word, word.replace("rouge", "ROUGE-")) for word in score.split("_"))
