"""Sections of the page that hold facts, tables and charts."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from utils.evaluation.report.pieces import (
    MINUS,
    NOTHING,
    absent,
    element,
    interval_shown,
    paragraph,
    section,
    shown,
    table,
)
from utils.evaluation.report.runs import SCORE_NAMES, STATISTICS, Run, number_of, scored_splits
from utils.evaluation.significance import compare
from utils.evaluation.text_statistics import mean

SPEEDS = {
    "articles_per_second": ("Articles per second", 2),
    "generated_tokens_per_second": ("Generated tokens per second", 0),
    "generation_seconds": ("Seconds in all", 2),
    "peak_memory_gb": ("Peak memory, GB", 2),
}


def summary_facts(run: Run, split: str | None) -> list[tuple[str, str]]:
    """Names and values that tell a run in short; without those that are not known."""
    trained, environment = run.summary, run.environment
    scores, speed = run.scores.get(split or "", {}), run.speeds.get(split or "", {})

    summary_file = run.folder / "train_summary.json"

    def number(name: str, digits: int, unit: str = "") -> str | None:
        value = number_of(trained, name, summary_file)
        return None if value is None else f"{value:,.{digits}f} {unit}".strip()

    wall = number_of(trained, "wall_seconds", summary_file)
    options = scores.get("generation")
    beams = options.get("num_beams") if isinstance(options, dict) else None
    devices = environment.get("devices")
    rows = [
        ("Started", environment.get("date") and str(environment["date"])[:16].replace("T", " ")),
        ("Trained on", ", ".join(map(str, devices)) if isinstance(devices, list) else None),
        ("Steps", number("steps", 0)),
        ("Epochs", number("epochs", 2)),
        ("Training, wall clock", None if wall is None else str(timedelta(seconds=round(wall)))),
        ("Training speed", number("tokens_per_second", 0, "tokens/s")),
        ("Best checkpoint", trained.get("best_checkpoint") and str(trained["best_checkpoint"])),
        (f"Articles scored, {split}", f"{scores['examples']:,}" if scores.get("examples") is not None else None),
        ("Beams", None if beams is None else str(beams)),
        ("Precision", scores.get("precision") and str(scores["precision"])),
        ("Scored on", speed.get("device") and str(speed["device"])),
        ("Batching", speed.get("batching") and f"{speed['batching']}, {speed.get('batch_size')} at once"),
        ("Note", scores.get("info") and str(scores["info"])),
    ]
    return [(name, text) for name, text in rows if text]


def runs_table(runs: Sequence[Run], split: str | None) -> str:
    """Where the runs lie, and what each is in short, side by side."""
    told = [{"Directory": str(run.folder.resolve()), **dict(summary_facts(run, split))} for run in runs]
    names = {name: None for one in told for name in one}
    rows = [[name, *(one.get(name, NOTHING) for one in told)] for name in names]
    return table("", ["", *(run.name for run in runs)], rows, left=1 + len(runs))


def speed_table(runs: Sequence[Run], split: str) -> str:
    """Throughput and the percentiles of latency; nothing where no run was timed."""
    speeds = [(run, run.speeds.get(split, {})) for run in runs]
    rows = [
        [label, *(shown(number_of(speed, name, run.folder / f"{split}_speed.json"), digits) for run, speed in speeds)]
        for name, (label, digits) in SPEEDS.items()
    ]
    percentiles = {name: None for _, speed in speeds for name in speed.get("latency_ms", {})}
    rows += [
        [f"Latency, ms, {name}", *(shown(speed.get("latency_ms", {}).get(name), 0) for _, speed in speeds)]
        for name in percentiles
    ]
    rows = [row for row in rows if set(row[1:]) != {NOTHING}]
    names = [run.name for run in runs] if len(runs) > 1 else ["Value"]
    return table("Latency: from an article's entry into the batch to its end.", ["Speed", *names], rows) if rows else ""


def score_section(runs: Sequence[Run], split: str | None, paired: Sequence[Run]) -> str:
    """Scores with their intervals, and for several runs their differences from the first."""
    splits = scored_splits(runs)
    tables = []
    for scored in splits if len(runs) == 1 else [split] if split else []:
        rows = []
        for name, label in SCORE_NAMES.items():
            for run in runs:
                scores = run.scores.get(scored, {})
                value = scores.get(name)
                if value is None:
                    continue
                low, high = scores.get("intervals", {}).get(name, (None, None))
                row = [label, shown(value, 4 if name == "loss" else 2), interval_shown(low, high)]
                if len(runs) > 1:
                    row.insert(1, run.name)
                    row += difference(runs[0], run, name) if run in paired[1:] else [""] * 3
                rows.append(row)
        unit = "ROUGE F and BLEU in percent; loss in nats per target token."
        examples = [
            run.scores[scored]["examples"] for run in runs if run.scores.get(scored, {}).get("examples") is not None
        ]
        count = f" of {examples[0]:,} articles" if examples and len(set(examples)) == 1 else ""
        caption = f"The {scored} split{count}. {unit} Intervals: 95% bootstrap of the mean."
        header = ["Score", "Mean", "95% interval"]
        if len(runs) > 1:
            header = ["Score", "Run", "Mean", "95% interval", f"Difference from {runs[0].name}", "95% interval", "p"]
            caption += " Differences and their p values are of a paired test over the articles."
        if rows:
            tables.append(table(caption, header, rows, left=len(header) - 2 if len(runs) == 1 else 2))
        else:
            tables.append(absent(f"No scores: no {scored}_scores.json is there."))
        if len(runs) == 1 and len({run.scores.get(scored, {}).get("bleu_signature") for run in runs} - {None}):
            tables.append(paragraph(f"BLEU: {runs[0].scores[scored]['bleu_signature']}", class_="note"))
        mode = runs[0].scores.get(scored, {}).get("rouge_mode")
        if mode:
            tables.append(paragraph(f"ROUGE as {mode} computes it.", class_="note"))
    if not tables:
        tables.append(absent("No scores: this run has not been scored; run_eval.py writes test_scores.json."))
    return section("scores", "Scores", *tables)


def difference(first: Run, other: Run, score: str) -> list[str]:
    """A run's score less the first run's, its interval and p value, over articles that are the same."""
    if score not in first.articles[0] or score not in other.articles[0]:
        return [""] * 3
    result = compare([a[score] for a in other.articles], [a[score] for a in first.articles])
    p = "< 0.001" if result.p_value < 0.001 else f"{result.p_value:.3f}"
    return [f"{result.difference:+.2f}".replace("-", MINUS), interval_shown(result.low, result.high, "+"), p]


def statistics_table(runs: Sequence[Run]) -> str:
    """Copying, repetition and lengths of references and summaries, as means over the articles."""
    rows = []
    for name, (label, unit, digits) in STATISTICS.items():
        means = [mean(numbers[name] for numbers in run.statistics) for run in runs]
        if all(value is None for value in means):
            continue
        reference = mean(article["reference_statistics"][name] for article in runs[0].articles)
        rows.append([f"{label} ({unit})", shown(reference, digits), *(shown(value, digits) for value in means)])
    names = [run.name for run in runs] if len(runs) > 1 else ["Summaries"]
    caption = (
        f"Means over {len(runs[0].articles):,} articles. Words are lower-cased runs of letters and digits; novel "
        "n-grams count once each. Coverage and density are those of Grusky et al. (2018)."
    )
    return table(caption, ["Statistic", "References", *names], rows)


def settings_section(runs: Sequence[Run], split: str | None) -> str:
    """The arguments, decoding options and environment of each run, folded away."""
    parts = []
    for run in runs:
        scores = run.scores.get(split or "", {})
        shown_above = {*SCORE_NAMES, "intervals", "generation"}
        listed = {name: value for name, value in scores.items() if name not in shown_above}
        for title, source, content in (
            ("Training arguments", "arguments.yaml", run.arguments),
            ("Environment", "environment.json", run.environment),
            ("Decoding options", f"{split}_scores.json", scores.get("generation", {})),
            ("Scoring", f"{split}_scores.json", listed),
        ):
            if not isinstance(content, dict) or not content:
                continue
            rows = [[name, text] for name, text in flattened(content)]
            head = f"{run.name}: {title.lower()}" if len(runs) > 1 else title
            inner = element("summary", html.escape(head)) + table(f"From {source}.", ["Name", "Value"], rows, left=2)
            parts.append(element("details", inner))
    return section("settings", "Settings", *(parts or [absent("No arguments.yaml, environment.json or scores.")]))


def flattened(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names and values of nested mappings; what is None is left out."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)
