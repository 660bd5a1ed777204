"""One evaluation run, from its arguments to its scores."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml

from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.cli import RunError
from utils.data.tables import read_split
from utils.distributed import is_lost_peer
from utils.evaluation.arguments import EvalArguments
from utils.evaluation.interactive import answer
from utils.evaluation.report import write_report
from utils.evaluation.results import format_scores, writable_folder, write_json, write_whole
from utils.evaluation.scoring import Settings, score_split
from utils.loading import check_gpus, check_lengths, for_inference, load_for_evaluation
from utils.progress import start_log

logger = logging.getLogger(__name__)
# For a network that is cut. Where a process dies torchrun ends the others at once; where one is slower, they wait.
PATIENCE = timedelta(days=1)


def run(args: EvalArguments) -> None:
    """Score a checkpoint, or summarise what is typed, as the arguments say; several GPUs share the articles.

    With several GPUs this process only checks all input, then turns into torchrun, which starts one process each.

    Raises:
        InputError: anything wrong with options, files or the machine.
        RunError: another process of the run is gone.
    """
    start_log(args.debug)
    try:
        _run(args)
    except InputError:
        logger.debug("where the error comes from", exc_info=True)
        raise


def _run(args: EvalArguments) -> None:
    started_by_torchrun = "LOCAL_RANK" in os.environ
    args = on_this_machine(args)
    if args.interactive:
        model, tokenizer = load(args)
        answer(args, for_inference(model.to(device_of(args)), args.precision), tokenizer)
        return
    pairs = read_split(args.data_dir, args.type_path, args.n_obs, args.source_field, args.target_field)
    save_dir = writable_folder(args.save_dir)
    if args.json_summary is not None and not (
        Path(args.json_summary).absolute().parent.is_dir() and not Path(args.json_summary).is_dir()
    ):
        raise InputError(f"--json_summary is {args.json_summary}; allowed: a file in a directory that exists")
    model, tokenizer = load(args)
    if args.gpus > 1 and not started_by_torchrun:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(args.gpus)]
        os.execv(sys.executable, [*launch, *sys.argv])
    model = for_inference(model.to(device_of(args)), args.precision)
    positions = model.config.max_position_embeddings
    settings = Settings(
        model_name=args.model,
        max_source_length=args.max_source_length or positions,
        max_target_length=args.max_target_length or positions,
        batch_size=args.bs,
        generation=args.generation,
        split=args.type_path,
        task=args.task,
        rouge_mode=args.rouge_mode,
        wordnet_exceptions=args.wordnet_exceptions,
        precision=args.precision,
        prefix=args.prefix,
        batching=args.batching,
        warmup_batches=args.warmup_batches,
        seed=args.seed,
        info=args.info,
    )
    if started_by_torchrun:
        # Processes exchange results alone, which lie on the CPU, and gloo waits for them without computing.
        dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        results = score_split(model, tokenizer, pairs, save_dir, settings)
    except RuntimeError as error:
        if started_by_torchrun and is_lost_peer(error):
            raise RunError(
                f"another process of this run is gone, or cannot be reached ({str(error).splitlines()[0]}); the same "
                "command goes on with the articles that are left"
            ) from error
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    if results is None:
        return
    scores, speed = results
    arguments = yaml.safe_dump(dataclasses.asdict(args), allow_unicode=True, sort_keys=False)
    write_whole(save_dir / "eval_arguments.yaml", arguments)
    if args.json_summary is not None:
        summary: dict[str, Any] = {**scores, "speed": speed, "arguments": dataclasses.asdict(args)}
        write_json(Path(args.json_summary), summary)
    print(format_scores(scores, speed))
    write_report(save_dir, args.type_path)
    if args.dump_args:
        print(arguments, end="")


def on_this_machine(args: EvalArguments) -> EvalArguments:
    """The arguments with --gpus as this machine has them, where nothing was said.

    Raises:
        InputError: the machine lacks the GPUs asked for.
    """
    if args.gpus is None:
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        args = dataclasses.replace(args, gpus=processes if torch.cuda.is_available() else 0)
    number = int((args.device or "").partition(":")[2] or 0)
    if args.device is not None and args.gpus and number >= torch.cuda.device_count():
        raise InputError(
            f"--device is {args.device}; this machine has {torch.cuda.device_count()} CUDA devices, counted from 0 "
            "(--device cpu runs on the CPU)"
        )
    check_gpus(args.gpus)
    return args


def device_of(args: EvalArguments) -> torch.device:
    """The device of this process, made the current one."""
    if not args.gpus:
        return torch.device("cpu")
    chosen = args.device if args.device and ":" in args.device else f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    torch.cuda.set_device(chosen)
    return torch.device(chosen)


def load(args: EvalArguments) -> tuple[BartForConditionalGeneration, BartTokenizer]:
    """Model and vocabulary, for which the arguments are good.

    Raises:
        InputError: they are not; it names the option.
    """
    logger.info("loading %s", args.model)
    model, tokenizer = load_for_evaluation(args.model, args.config_path, args.tokenizer)
    check_lengths(
        model.config,
        max_source_length=args.max_source_length,
        max_target_length=args.max_target_length,
        eval_max_gen_length=args.eval_max_gen_length,
    )
    options = args.generation
    try:
        config = model.generation_config.merged(**options)
        config.check_vocabulary(model.config.vocab_size)
        config.longest(model.config.max_position_embeddings)
    except InputError as error:
        name, _, rest = str(error).partition(" ")
        if name in options:
            raise InputError(f"--{args.spelt(name)} {rest}") from None
        raise
    return model, tokenizer
