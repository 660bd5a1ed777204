"""One evaluation run, from its arguments to its scores."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
import yaml

from bart.errors import InputError
from bart.files import write_json
from bart.hub import EXPORT
from utils.app.progress import start_log
from utils.evaluation.card import write_card
from utils.evaluation.report import write_report
from utils.evaluation.scoring import format_scores, score_split
from utils.models.loading import for_inference
from utils.recipes.evaluation_arguments import EvalArguments
from utils.runs.distributed import connected
from utils.runs.outputs import check_output, writable_folder, write_whole

logger = logging.getLogger(__name__)


def run(args: EvalArguments) -> None:
    """Score a checkpoint as the arguments say; processes that torchrun started share the examples.

    Raises:
        InputError: anything wrong with options, files or the machine.
        RunError: another process of the run is gone.
    """
    start_log(args.debug)
    device = device_of(args)
    task = args.make_task()
    raw = task.read(args.type_path, for_scoring=True)
    save_dir = writable_folder("save_dir", args.save_dir)
    check_output("json_summary", args.json_summary)
    logger.info("loading %s", args.model)
    model = task.trained_model(args.model, args.config_path, args.tokenizer)
    model = for_inference(model.to(device), args.precision)
    with connected("the same command goes on with the examples that are left"):
        results = score_split(
            task,
            model,
            raw,
            save_dir,
            model_name=args.model,
            task_name=args.task,
            batch_size=args.bs,
            batch_size_option="--bs",
            split=args.type_path,
            precision=args.precision,
            batching=args.batching,
            warmup_batches=args.warmup_batches,
            seed=args.seed,
            info=args.info,
            overwrites=args.overwrite_output_dir,
        )
    if results is None:
        return
    scores, speed = results
    arguments = yaml.safe_dump(args.settings(), allow_unicode=True, sort_keys=False)
    write_whole(save_dir / "eval_arguments.yaml", arguments)
    if args.json_summary is not None:
        summary: dict[str, Any] = {**scores, "speed": speed, "arguments": args.settings()}
        write_json(Path(args.json_summary), summary)
    print(format_scores(scores, speed))
    write_report(save_dir, args.type_path)
    export = Path(args.model)
    if export.name == EXPORT and export.resolve().parent == save_dir.resolve():  # of the run scored here
        write_card(save_dir, export)
    if args.dump_args:
        print(arguments, end="")


def device_of(args: EvalArguments) -> torch.device:
    """The device of this process; a GPU is made the current one.

    Raises:
        InputError: the machine lacks it, or it does not take the precision.
    """
    name = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu" and args.precision in ("fp16", "tf32"):
        raise InputError(f"--{args.precision} needs a GPU and --device is cpu; the CPU takes fp32, --bf16 or --int8")
    if name != "cpu" and args.int8:
        raise InputError(f"--int8 runs on the CPU and --device is {name}; GPUs take --fp16, --bf16 or --tf32")
    if name == "cpu":
        return torch.device("cpu")
    number = int(name.partition(":")[2] or os.environ.get("LOCAL_RANK", "0"))
    if number >= torch.cuda.device_count():
        raise InputError(
            f"--device is {name}; this machine has {torch.cuda.device_count()} CUDA devices, counted from 0 "
            "(--device cpu runs on the CPU)"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)
