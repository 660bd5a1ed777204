"""What a run wrote: its files, read and checked."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bart.errors import InputError
from utils.data.line_files import SPLITS
from utils.evaluation.text_statistics import NOVEL_ORDERS, length_ratio, text_statistics, words
from utils.progress import Progress

SCORE_NAMES = {
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
    "bleu": "BLEU",
    "loss": "Loss",
}
STATISTICS = {
    "words": ("Length", "words", 1),
    "length_ratio": ("Length ÷ reference", "ratio", 2),
    "compression": ("Compression: source ÷ summary", "ratio", 1),
    **{f"novel{n}": (f"Novel {n}-grams", "% not in the source", 1) for n in NOVEL_ORDERS},
    "coverage": ("Coverage", "% of words copied", 1),
    "density": ("Density", "words in the copied run of a word", 1),
    "repeated3": ("Repeated 3-grams", "% said before", 1),
}
# Statistics that relate a summary to its source; a translation has another language's words.
OF_THE_SOURCE = {"compression", "coverage", "density", *(f"novel{n}" for n in NOVEL_ORDERS)}
SOON_DONE = 1000  # articles whose words are counted in about a second


@dataclass
class Run:
    """What a run's directory holds; a part that is not there is empty."""

    folder: Path
    name: str
    metrics: dict[str, list[float | None]]
    arguments: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any]
    scores: dict[str, dict[str, Any]]
    speeds: dict[str, dict[str, Any]]
    articles: list[dict[str, Any]] = field(default_factory=list)
    statistics: list[dict[str, float | None]] = field(default_factory=list)


def read_mapping(path: Path, parse: Callable[[str], Any] = json.loads) -> dict[str, Any]:
    """A file's mapping of names to values; empty where there is no such file.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    if not path.exists():
        return {}
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path}: damaged ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}; a mapping of names to values is expected")
    return content


def read_metrics(path: Path) -> dict[str, list[float | None]]:
    """Columns of metrics.csv by name, None where a cell is empty or not finite; empty where there is no such file.

    Raises:
        InputError: the file cannot be read, or a row is not of numbers; it names the line.
    """
    if not path.exists():
        return {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = list(csv.reader(file)) or [[]]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}: damaged ({error})") from None
    if "step" not in header:
        raise InputError(f"{path}: has no column 'step'; its first line is {','.join(header)!r}")
    columns: dict[str, list[float | None]] = {name: [] for name in header}
    for line, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise InputError(f"{path}, line {line}: {len(row)} cells; the header has {len(header)}")
        for name, cell in zip(header, row, strict=True):
            try:
                value = float(cell) if cell else None
            except ValueError:
                raise InputError(f"{path}, line {line}: {name} is {cell!r}; a number is expected") from None
            columns[name].append(value if value is None or math.isfinite(value) else None)
        if columns["step"][-1] is None:
            raise InputError(f"{path}, line {line}: step is empty")
    return columns


def read_articles(path: Path) -> list[dict[str, Any]]:
    """Articles of `<split>_articles.jsonl`; none where there is no such file.

    Raises:
        InputError: the file cannot be read, or a line is not an article; it names the line.
    """
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    articles = []
    for number, line in enumerate(lines, 1):
        try:
            article = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}, line {number}: damaged ({error})") from None
        if not isinstance(article, dict):
            raise InputError(f"{path}, line {number}: a JSON object is expected")
        for name in ("source", "reference", "summary"):
            if not isinstance(article.get(name), str):
                raise InputError(f"{path}, line {number}: {name} is {article.get(name)!r}; a string is expected")
        for name in SCORE_NAMES:
            if name in articles[0] if articles else name in article:
                number_of(article, name, f"{path}, line {number}", needed=True)
        articles.append(article)
    return articles


def number_of(record: Mapping[str, Any], name: str, place: object, needed: bool = False) -> float | None:
    """A record's number; None where it has none or it is not finite.

    Args:
        place: the file, for the message.
        needed: whether it must be there.

    Raises:
        InputError: it is something else, or needed and not there.
    """
    value = record.get(name)
    if (value is None and not needed) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{place}: {name} is {value!r}; a number is expected")
    return value


def check_scores(path: Path, scores: Mapping[str, Any]) -> None:
    """Raise InputError for scores or intervals of another shape than expected."""
    for name in (*SCORE_NAMES, "examples"):
        number_of(scores, name, path)
    intervals = scores.get("intervals", {})
    if not isinstance(intervals, dict):
        raise InputError(f"{path}: intervals is {intervals!r}; a mapping of scores to [low, high] is expected")
    for name, interval in intervals.items():
        if not isinstance(interval, list) or len(interval) != 2:
            raise InputError(f"{path}: the interval of {name} is {interval!r}; [low, high] is expected")
        for end, value in zip(("low", "high"), interval, strict=True):
            number_of({end: value}, end, f"{path}, interval of {name}", needed=True)


def check_speed(path: Path, speed: Mapping[str, Any]) -> None:
    """Raise InputError for latencies of another shape than expected."""
    for name in ("latency_ms", "latency_histogram"):
        if not isinstance(speed.get(name, {}), dict):
            raise InputError(f"{path}: {name} is {speed[name]!r}; a mapping is expected")
    for name in speed.get("latency_ms", {}):
        number_of(speed["latency_ms"], name, f"{path}, latency_ms")
    histogram = speed.get("latency_histogram")
    if histogram:
        edges, counts = histogram.get("edges_ms"), histogram.get("counts")
        if not isinstance(edges, list) or not isinstance(counts, list) or len(edges) != len(counts) + 1:
            raise InputError(f"{path}: latency_histogram needs edges_ms, one more than its counts")
        for value in (*edges, *counts):
            number_of({"value": value}, "value", f"{path}, latency_histogram", needed=True)


def read_run(folder: str | os.PathLike[str]) -> Run:
    """All of a run but its articles.

    Raises:
        InputError: the directory is missing, holds nothing of a run, or a file of it is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"run directory {folder}: no such directory")
    run = Run(
        folder=folder,
        name=folder.resolve().name,
        metrics=read_metrics(folder / "metrics.csv"),
        arguments=read_mapping(folder / "arguments.yaml", yaml.safe_load),
        environment=read_mapping(folder / "environment.json"),
        summary=read_mapping(folder / "train_summary.json"),
        scores={},
        speeds={},
    )
    for split in SPLITS:
        for kind, check, parts in (("scores", check_scores, run.scores), ("speed", check_speed, run.speeds)):
            path = folder / f"{split}_{kind}.json"
            content = read_mapping(path)
            check(path, content)
            if content:
                parts[split] = content
    if not (run.metrics or run.summary or scored_splits([run])):
        raise InputError(
            f"run directory {folder}: holds no metrics.csv, train_summary.json, <split>_scores.json, "
            "<split>_speed.json or <split>_articles.jsonl; what finetune.py or run_eval.py wrote is expected"
        )
    return run


def scored_splits(runs: Sequence[Run]) -> list[str]:
    """Splits of which some run holds anything, the test split first."""
    return [
        split
        for split in ("test", "val", "train")
        if any(
            split in run.scores or split in run.speeds or (run.folder / f"{split}_articles.jsonl").exists()
            for run in runs
        )
    ]


def add_articles(run: Run, split: str) -> None:
    """Read a run's articles of one split, and count their words.

    Raises:
        InputError: the file is damaged, or its articles are not as many as were scored.
    """
    path = run.folder / f"{split}_articles.jsonl"
    run.articles = read_articles(path)
    examples = run.scores.get(split, {}).get("examples")
    if run.articles and examples is not None and examples != len(run.articles):
        raise InputError(f"{path}: has {len(run.articles)} articles; {split}_scores.json is of {examples!r}")
    translated = is_translation(run, split)
    count = len(run.articles)
    progress = Progress("report", count, "articles", shown=count > SOON_DONE)
    for article in run.articles:
        source, reference, summary = (words(article[name]) for name in ("source", "reference", "summary"))
        article["source_words"] = len(source)
        article["reference_statistics"] = {**text_statistics(source, reference), "length_ratio": 1.0}
        numbers = {**text_statistics(source, summary), "length_ratio": length_ratio(summary, reference)}
        for name in OF_THE_SOURCE if translated else ():
            numbers[name] = None
        run.statistics.append(numbers)
        progress.advance()


def is_translation(run: Run, split: str) -> bool:
    return run.scores.get(split, {}).get("task") == "translation"


def same_articles(runs: Sequence[Run]) -> list[Run]:
    """The first run that has articles, and those whose articles have the same sources and references."""

    def texts(run: Run) -> list[tuple[str, str]]:
        return [(article["source"], article["reference"]) for article in run.articles]

    with_articles = [run for run in runs if run.articles]
    return [run for run in with_articles if texts(run) == texts(with_articles[0])]
