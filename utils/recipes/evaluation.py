"""One evaluation, from a task and its model to its scores; and run_eval.py's, from its arguments."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from bart.errors import InputError
from bart.files import write_json
from bart.hub import EXPORT
from utils.app.cli import all_settings, options_of_class
from utils.app.distributed import connected
from utils.app.output_files import check_output, writable_folder, write_whole
from utils.app.progress import start_log
from utils.app.stores import fetch, publish
from utils.evaluation.card import write_card
from utils.evaluation.report.building import write_report
from utils.evaluation.scoring import ScoringRun, format_scores, score_split
from utils.models.loading import LoadedModel, for_inference
from utils.recipes.data import as_trained, read_to_score, with_table_prepared
from utils.recipes.evaluation_arguments import EvalArguments
from utils.recipes.finetuning_arguments import FinetuneArguments
from utils.recipes.pretraining_arguments import PretrainingArguments
from utils.tasks import options_of, task_of
from utils.tasks.options import PRETRAINING
from utils.tasks.task import ScoredTask

logger = logging.getLogger(__name__)


def run(args: EvalArguments) -> None:
    """Score a checkpoint as the arguments say; processes that torchrun started share the examples."""
    start_log(args.debug)
    scoring, device = args.scoring, device_of(args.device, args.precision)
    made = args.make_task()
    task_of(args.model, args.task)
    task = with_table_prepared(as_trained(made, args.model))
    split, raw = read_to_score(task, scoring.type_path)
    save_dir = writable_folder("save_dir", fetch(args.save_dir, may_be_missing=True))
    check_output("json_summary", scoring.json_summary, args.model, made.place.data_dir)
    logger.info("loading %s", args.model)
    loaded = task.trained_model(args.model, args.config_path, args.tokenizer)
    scored = ScoringRun(
        save_dir=save_dir,
        split=split,
        task_name=args.task,
        data_dir=made.place.data_dir,
        model_name=args.model,
        precision=args.precision,
        batch_size=args.bs,
        batch_size_option="--bs",
        options=scoring,
        seed=args.seed,
        overwrites=args.overwrite_output_dir,
    )
    evaluate(scored, task, loaded, raw, device, all_settings(args), "the same command")
    publish(args.save_dir)


def evaluate(
    run: ScoringRun,
    task: ScoredTask,
    loaded: LoadedModel,
    raw: Any,
    device: torch.device,
    settings: Mapping[str, Any],
    resuming: str,
) -> None:
    """Predict and score a split, and write its files, its report and the model card; `resuming` is for a message."""
    loaded = replace(loaded, model=for_inference(loaded.model.to(device), run.precision))
    with connected(f"{resuming} goes on with the examples that are left"):
        results = score_split(run, task, loaded, raw)
    if results is None:
        return
    scores, speed = results
    arguments = yaml.safe_dump(dict(settings), allow_unicode=True, sort_keys=False)
    write_whole(run.save_dir / "eval_arguments.yaml", arguments)
    if run.options.json_summary is not None:
        summary = {**scores, "speed": speed, "arguments": settings}
        write_json(Path(run.options.json_summary), summary)
    print(format_scores(scores, speed))
    write_report(run.save_dir, run.split)
    export = run.save_dir / EXPORT
    if scores["model"] == str(export.resolve()):  # of the run scored here
        write_card(run.save_dir, export, card_options)
    if run.options.dump_args:
        print(arguments, end="")


def card_options(run_dir: Path) -> list[str]:
    """The names of the options that the card of a run names, by what its arguments.yaml says of the task."""
    name = yaml.safe_load((run_dir / "arguments.yaml").read_text(encoding="utf-8"))["task"]
    arguments: type = PretrainingArguments if name in PRETRAINING else FinetuneArguments
    options, training, *_ = PRETRAINING.get(name) or options_of(name)
    parts = {"task_options": options, "training": training}
    return [each.name for each in options_of_class(arguments, parts) if each.limits["in_card"]]


def device_of(name: str | None, precision: str) -> torch.device:
    """The device of this process, by the value of --device; a GPU is made the current one."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu" and precision in ("fp16", "tf32"):
        raise InputError(f"--{precision} needs a GPU and --device is cpu; the CPU takes fp32, --bf16 or --int8")
    if name != "cpu" and precision == "int8":
        raise InputError(f"--int8 runs on the CPU and --device is {name}; GPUs take --fp16, --bf16 or --tf32")
    if name == "cpu":
        return torch.device("cpu")
    number, count = int(name.partition(":")[2] or os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= count:
        raise InputError(f"--device is {name}; this machine has {count} CUDA devices (--device cpu runs on the CPU)")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)
