"""The measurements of a run: metrics.csv, and metrics.1.csv and so on of the sessions before a resumption."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from bart.errors import InputError
from utils.app.errors import brief
from utils.app.run_directory import of_sessions

Metrics = dict[str, dict[int, float]]  # the finite values of each column, by the number of optimizer steps done
FILE, SECONDS = "metrics.csv", "wall_seconds"  # SECONDS: the column of the time since the run's first session began


def metrics_of_sessions(folder: Path) -> list[Metrics]:
    """The metrics of each session of a run, the first one first.

    Raises:
        InputError: a file cannot be read, a row is cut, or holds something else than numbers. A session that was killed
            may have left half a line at the end of its file, which counts for nothing once the run has gone on.
    """
    sessions = []
    for path in of_sessions(folder, FILE):
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            if path.name != FILE and lines and not lines[-1].endswith("\n"):
                lines.pop()
            sessions.append(_columns(lines))
        except (OSError, ValueError, csv.Error) as error:
            raise InputError(f"{path}: cannot be read, or is damaged ({brief(error)})") from None
    return sessions


def joined(sessions: list[Metrics]) -> Metrics:
    """The metrics of a run. Of a step that a later session has done again, that session's values count."""
    metrics: Metrics = {}
    for session in sessions:
        begin = min((step for values in session.values() for step in values), default=math.inf)
        for name in {**metrics, **session}:
            before = {step: value for step, value in metrics.get(name, {}).items() if step <= begin}
            metrics[name] = before | session.get(name, {})
    return metrics


def seconds_of_sessions(folder: Path) -> float:
    """The wall clock of the sessions that a run has had, as far as their files tell it."""
    try:
        columns = [session.get(SECONDS, {}) for session in metrics_of_sessions(folder)]
    except InputError:
        return 0.0
    return max((seconds for column in columns for seconds in column.values()), default=0.0)


def _columns(lines: list[str]) -> Metrics:
    rows = csv.reader(lines)
    header = next(rows, [])
    columns: Metrics = {name: {} for name in header}
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"line {rows.line_num}: {len(row)} cells; the header has {len(header)}")
        cells = {}
        for name, cell in zip(header, row, strict=True):
            try:
                cells[name] = float(cell or "nan")
            except ValueError:
                raise ValueError(f"line {rows.line_num}: {name} is {cell!r}; a number is expected") from None
        step = cells.pop("step", math.nan)
        for name, value in cells.items():
            if math.isfinite(value) and math.isfinite(step):
                columns[name][int(step) + 1] = value  # Lightning counts steps from 0
    columns.pop("step", None)
    return columns
