"""A split predicted, scored and timed."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import indent
from typing import Any

import torch

from bart.errors import InputError
from bart.files import read_json, write_json
from utils.app.distributed import from_all, rank_and_world
from utils.app.formatting import format_metric, plain_table, rate
from utils.app.machine import versions
from utils.app.memory import FittingSize
from utils.app.output_files import difference, held, write_whole
from utils.app.run_directory import REPORT_ORDER, remove, scored
from utils.app.unfinished import Unfinished, model_identity
from utils.data.batches import Examples
from utils.evaluation.options import ScoringOptions
from utils.evaluation.speed import predict_share, speed_report
from utils.models.loading import LoadedModel
from utils.tasks.task import Prediction, ScoredTask

logger = logging.getLogger(__name__)
VERSIONED = ("torch", "tokenizers")  # packages on whose versions predictions may depend
FORMAT = 3  # of what a prediction's values hold
ELSEWHERE = "name another directory, or give --overwrite_output_dir"


@dataclass(frozen=True)
class ScoringRun:
    """A run that scores a split."""

    save_dir: Path
    split: str
    task_name: str
    data_dir: str
    model_name: str  # by which a run that was broken off is known again
    precision: str
    batch_size: int  # examples of a process that are in work at once
    batch_size_option: str  # its option, for messages
    options: ScoringOptions
    seed: int  # of tokens that are drawn
    overwrites: bool  # replace what another run has left in save_dir, its scores or its progress

    @property
    def progress(self) -> Path:
        """The folder where each process notes what it has predicted, until the scores are written."""
        return self.save_dir / f".{self.split}_progress"

    @cached_property
    def _model(self) -> dict[str, Any]:
        return model_identity(self.model_name)

    def record(self, settings: Mapping[str, Any], examples: int) -> dict[str, Any]:
        """The part of the scores that names task, model, data and settings."""
        return {
            "task": self.task_name,
            "model": self._model["model"],
            "data_dir": self.data_dir.rstrip("/"),
            "examples": examples,
            "precision": self.precision,
            **settings,
        }

    def identity(self, settings: Mapping[str, Any], examples: Examples) -> dict[str, Any]:
        """All on which the predictions depend."""
        identity = {**self._model, "precision": self.precision, **settings, "format": FORMAT}
        identity |= {"examples": len(examples), "content": examples.identity, "versions": versions(VERSIONED)}
        if self.precision != "fp32":  # an example's rounding depends on the batch
            identity["batch_size"] = self.batch_size
        if samples(settings):
            identity["seed"] = self.seed
        return identity


def score_split(
    run: ScoringRun, task: ScoredTask, loaded: LoadedModel, raw: Any
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Predict every example, score the predictions if there are targets, and write the files.

    Each process takes a share of the examples. Rank 0 merges, scores and writes, and returns scores and speed; the
    others return None. What an interrupted run has noted in `run.progress` is not predicted again. Only in fp32
    do scores not depend on the number of processes: elsewhere an example's rounding depends on its batch.
    """
    task.match(raw, run.split, loaded)
    began = time.perf_counter()
    examples, settings = task.encode(raw, run.split, loaded, for_scoring=True), task.settings(loaded)
    tokenise = time.perf_counter() - began
    record = run.record(settings, len(examples))
    replaced = check_other_runs(run, record)
    lock, is_first = Path(f"{run.progress}.lock"), rank_and_world()[0] == 0
    with held(lock, f"save_dir {run.save_dir}: another run is at work there") if is_first else nullcontext():
        predictions, speed = predict_split(run, task, loaded, examples, settings)
        if not is_first:
            return None
        speed["seconds"]["tokenise"] = tokenise
        scores, rows = score_predictions(task, loaded, raw, examples, predictions)
        extra = {"seed": run.seed} if samples(settings) else {}
        if run.options.info is not None:
            extra["info"] = run.options.info
        scores = {"split": run.split, **record, **scores, **extra}
        lines = [" ".join(row[task.prediction_name].split("\n")) for row in rows]
        if empty := lines.count(""):
            logger.warning("%d of %d predictions are empty", empty, len(lines))
        remove(run.save_dir, *scored(*(replaced - {run.split})))
        files = {
            f"{run.split}_generations.txt": "".join(f"{line}\n" for line in lines),
            f"{run.split}_articles.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
            **task.files(raw, predictions, run.split),
        }
        for name, text in files.items():
            write_whole(run.save_dir / name, text)
        logger.info("%s: %s predictions", run.save_dir / next(iter(files)), f"{len(lines):,}")
        write_json(run.save_dir / f"{run.split}_speed.json", speed)
        write_json(run.save_dir / f"{run.split}_scores.json", scores)  # last: so the others are of the same run
        remove(run.save_dir, run.progress.name)
    return scores, speed


def samples(settings: Mapping[str, Any]) -> bool:
    """True if tokens are drawn at random."""
    return bool(settings.get("generation", {}).get("do_sample"))


def check_other_runs(run: ScoringRun, record: Mapping[str, Any]) -> set[str]:
    """The splits whose scores another run left in the directory, and this run replaces.

    Runs are known by the names of their models. For splits that this run does not score, only these must agree.
    """
    folder, model = run.save_dir.resolve(), Path(run.model_name).resolve()
    if (folder / "train_summary.json").exists() and folder not in (model, *model.parents) and not run.overwrites:
        is_other = f"{run.model_name} is not its model: score {run.save_dir}"
        raise InputError(f"{run.save_dir} holds a run, and {is_other}, {ELSEWHERE}")
    replaced = set()
    for split in REPORT_ORDER:
        path = run.save_dir / f"{split}_scores.json"
        if not path.exists():
            continue
        expected = json.loads(json.dumps(record if split == run.split else {"model": record["model"]}))
        stored = read_json(path)
        if change := difference({name: stored.get(name) for name in expected}, expected):
            if not run.overwrites:
                raise InputError(f"{path} holds the scores of another run ({change}): {ELSEWHERE}")
            replaced.add(split)
    return replaced


def predict_split(
    run: ScoringRun, task: ScoredTask, loaded: LoadedModel, examples: Examples, settings: Mapping[str, Any]
) -> tuple[list[Prediction], dict[str, Any]]:
    """The predictions of all processes and of an interrupted run, in order, and the speed."""
    rank, _ = rank_and_world()
    identity = run.identity(settings, examples) if rank == 0 else {}
    earlier: dict[int, Prediction] = {}
    if rank == 0:
        for path in run.progress.glob("rank*.jsonl"):
            with closing(Unfinished(path, identity, ELSEWHERE, run.overwrites)) as noted:
                earlier |= {number: Prediction(**entry) for number, entry in noted.values()}
        if earlier:
            logger.warning("%d of %d examples were predicted before", len(earlier), len(examples))
    identity, earlier = from_all((identity, earlier))[0]
    todo = [number for number in range(len(examples)) if number not in earlier]
    fitting = FittingSize(run.batch_size, run.batch_size_option)
    if samples(settings):
        torch.manual_seed(run.seed + rank)
    # On another machine the folder may be another one, with what an earlier run has left.
    with closing(Unfinished(run.progress / f"rank{rank}.jsonl", identity, ELSEWHERE, replaces=True)) as noted:
        share = predict_share(task, loaded, examples, todo, fitting, run.options.warmup_batches, noted)
    shares = from_all(share)
    merged = dict(earlier)
    for share in shares:
        merged |= share.predicted
    return [merged[number] for number in range(len(examples))], speed_report(shares, loaded.model.device, len(earlier))


def score_predictions(
    task: ScoredTask, loaded: LoadedModel, raw: Any, examples: Examples, predictions: Sequence[Prediction]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The metrics of predictions, if they have targets, and a row for each."""
    targets = sum(prediction.targets for prediction in predictions)
    rows = [task.row(raw, examples, number, prediction) for number, prediction in enumerate(predictions)]
    metrics: dict[str, Any] = {}
    if targets or any("reference" in row for row in rows):  # a letter that training has not seen has no loss
        metrics, each = task.score(raw, predictions, loaded)
        rows = [row | {name: float(values[number]) for name, values in each.items()} for number, row in enumerate(rows)]
    if targets:
        loss = sum(prediction.loss for prediction in predictions) / targets
        metrics = {**metrics, "loss": round(loss, 4)}  # fp32 cannot be trusted further
    return metrics | task.checks(raw, predictions), rows


def format_scores(scores: Mapping[str, Any], speed: Mapping[str, Any]) -> str:
    """Scores and speed as a table for people, the scores by their names in the files."""
    baselines, rows = scores.get("baselines", {}), []
    # Of classes and tags there is one; those of summaries stand in the report.
    [(other, always)] = baselines.items() if len(baselines) == 1 else [("", {})]
    for name, value in scores.items():
        if isinstance(value, float):
            cell = format_metric(name, value)
            if name in always:
                low, high, same = (format_metric(name, each) for each in (*scores["intervals"][name], always[name]))
                cell += f" (95 %: {low} to {high}; {other}: {same})"
            rows.append((name, cell))
    rows = rows or [("scores", "none without references")]
    if facts := scores.get("unsupported_facts"):
        rows.append(("unsupported", facts["text"]))
    if speed["timed_articles"]:
        rates = {"articles_per_second": "examples", "generated_tokens_per_second": "generated tokens"}
        rows += [
            ("speed", ", ".join(rate(speed[name], unit) for name, unit in rates.items() if speed[name])),
            ("latency", ", ".join(f"{name} {speed['latency_ms'][name]:,.0f} ms" for name in ("p50", "p95", "p99"))),
            ("batch", f"{speed['batch_size']}"),
            ("peak memory", format_metric("peak_memory_gb", speed["peak_memory_gb"])),
        ]
    head = f"{scores['split']}: {scores['examples']:,} examples, {scores['precision']} on {speed['device']}"
    return f"{head}\n{indent(plain_table(rows), '  ')}"
