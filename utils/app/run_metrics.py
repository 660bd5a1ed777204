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
    """The metrics of each session of a run, the first one first; half a line, as a kill leaves it, is left out."""
    sessions = []
    for path in of_sessions(folder, FILE):
        columns: Metrics = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            for row in csv.DictReader(line for line in lines if line.endswith("\n")):
                step = int(row.pop("step")) + 1  # Lightning counts steps from 0
                for name, cell in row.items():
                    values = columns.setdefault(name, {})
                    if math.isfinite(value := float(cell or "nan")):
                        values[step] = value
        except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
            raise InputError(f"{path}: cannot be read, or is damaged ({brief(error)})") from None
        sessions.append(columns)
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
