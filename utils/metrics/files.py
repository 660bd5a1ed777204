"""Scores of plain files: the options and the output that the commands of all metrics share."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, NamedTuple, NoReturn

import numpy as np

from bart.errors import InputError
from utils.app.cli import option, part
from utils.app.formatting import plain_table
from utils.data.columns import TableOptions, value_in
from utils.data.places import TABLES, suffix_of
from utils.data.tables import column_in, one_line
from utils.metrics.significance import ScoresOf, compare_scores, scores_and_intervals
from utils.text.lines import check_counts, iter_lines, references_of

LABELS = {"rouge": "ROUGE", "bleu": "BLEU", "chrf": "chrF2", "f1": "F1", "loss": "Loss"}
LABELS |= {"matthews": "Matthews correlation", "pearson": "Pearson correlation", "spearman": "Spearman correlation"}
TEXTS, TARGETS = ("prediction", "summary"), ("references", "reference", "target", "highlights", "summary", "abstract")


@dataclass(frozen=True)
class FileOptions:
    """The files, and the options that the commands of all metrics have."""

    predictions: str = option(positional=True, help="file of predictions")
    references: str = option(positional=True, help="file of the references, in the same order")
    compare: str | None = option(
        None,
        metavar="OTHER",
        help="another system's predictions; adds the difference (PREDICTIONS minus OTHER), its interval and p value",
    )
    prediction_field: str | None = option(
        None,
        section="columns",
        help="column of predictions; by default a usual name, such as prediction; in a CoNLL file a number or a name",
    )
    json: bool = option(False, help="print JSON with all digits instead of the table")
    tables: TableOptions = part(TableOptions)

    @property
    def systems(self) -> list[str]:
        """The files of predictions: one, or two that are compared."""
        return [self.predictions, *filter(None, [self.compare])]

    def usual(self, path: str, names: Sequence[str], taken: str | None) -> list[str]:
        """The usual columns of predictions in a file, but for one that its references take, unless it is the first."""
        return [name for name in names if name == names[0] or (path, name) != (self.references, taken)]

    def values(
        self, option_name: str, field: str | None, right: Sequence[str], predicted: Sequence[str], blank: bool = True
    ) -> tuple[list[Value], list[list[Value]]]:
        """The references, and the values of each file of predictions; `right` and `predicted` are usual columns."""
        references, systems = self._read(self.references, option_name, field, right, blank), []
        for path in self.systems:
            usual = self.usual(path, predicted, references[0].column)
            rows = self._read(path, "prediction_field", self.prediction_field, usual)
            check_counts((path, self.references), len(rows), len(references))
            for row, other in zip(rows, references, strict=True):
                if None not in (row.id, other.id) and str(row.id) != str(other.id):
                    raise InputError(f"{row.place}: the id is {row.id!r}; allowed: {other.id!r}, as in {other.place}")
            systems.append(rows)
        return references, systems

    def _read(self, path: str, name: str, field: str | None, usual: Sequence[str], blank: bool = True) -> list[Value]:
        """The lines of a file, or the values in a column of a table: `field` or, where that is None, a usual one."""
        if suffix_of(Path(path)) in TABLES:
            records, chosen = column_in(path, name, field, usual, self.tables)
            single = chosen.removesuffix("s")  # rows of scored runs have `references` only where there are several
            return [
                Value(where, value_in(row, chosen, row.get(single)), row.get("id"), chosen) for where, row in records
            ]
        if field is not None:
            raise InputError(f"--{name} is {field}, but {path} has no columns; allowed: {', '.join(TABLES)}")
        lines = list(iter_lines(path, blank))
        if re.match(r'\{"[^"]*" ?:', lines[0]):
            raise InputError(f"{path}, line 1: {lines[0][:60]} is a row of JSON; allowed: texts, or a .jsonl file")
        return [Value(f"{path}, line {number}", line) for number, line in enumerate(lines, 1)]


@dataclass(frozen=True)
class TextFileOptions(FileOptions):
    """Files of texts, which stand one a line or in a column of a table."""

    target_field: str | None = option(
        None, section="columns", help=f"column of references in a table; by default {', '.join(TARGETS)}"
    )

    def read(self, line_break: str = " ") -> tuple[list[str], list[list[str]]]:
        """The references, each as `references_of` takes it, and the texts of each file of predictions."""
        given, systems = self.values("target_field", self.target_field, TARGETS, TEXTS, blank=False)
        references = []
        for where, value, *_ in given:
            line = json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value
            if not isinstance(line, str) or not one_line(line):
                raise InputError(f"{where}: the reference is {shortened(value)}; allowed: a text or a list of texts")
            references_of(line, f"{where}: ")
            references.append(line_break.join(filter(None, map(one_line, line.split("\n")))))
        for where, value, *_ in chain.from_iterable(systems):
            if not isinstance(value, str):
                raise InputError(f"{where}: the prediction is {shortened(value)}; allowed: a text, which may be blank")
        return references, [[row.value.replace("\n", line_break) for row in rows] for rows in systems]


class Value(NamedTuple):
    """A line or, with its column and the id of its row if that has one, a value of a table; and the place of either."""

    place: str
    value: Any
    id: Any = None
    column: str | None = None


def refuse_module() -> NoReturn:
    """End `python -m utils.metrics.NAME`, which only defines functions, and name the command."""
    print(f"error: use python -m utils.metrics {Path(sys.argv[0]).stem} PREDICTIONS REFERENCES", file=sys.stderr)
    sys.exit(2)


def print_scores(
    files: FileOptions, title: str, counts: Sequence[np.ndarray], scores_of: ScoresOf, facts: Mapping[str, Any]
) -> None:
    """Print the scores of a file of predictions, and the comparison with another one, as a table or JSON.

    Of each file `counts` has those (N, K) of each example, from whose sums `scores_of` computes. `facts` are for JSON;
    below the table stand signatures and `groups`: kind -> group -> its scores.
    """
    predicted, *others = counts
    report = {**scores_and_intervals(predicted, scores_of), "examples": len(predicted), **facts}
    for other in others:
        report["compare"] = compare_scores(predicted, other, scores_of)
    print(json.dumps(report, indent=2, ensure_ascii=False) if files.json else _report(report, files, title))


def _report(report: Mapping[str, Any], files: FileOptions, title: str) -> str:
    rows = []
    for name, interval in report["intervals"].items():
        rows.append([label_of(name), f"{report[name]:.2f}", "{:.2f} to {:.2f}".format(*interval)])
        if result := report.get("compare", {}).get(name):
            signed = f"{result['difference']:+.2f}", "{:+.2f} to {:+.2f}".format(*result["interval"])
            p_value = "< 0.001" if result["p_value"] < 0.001 else f"{result['p_value']:.3f}"
            rows += [["  other", f"{result['other']:.2f}"], ["  difference", *signed, p_value]]
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
