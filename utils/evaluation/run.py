"""One evaluation run, from its arguments to its scores."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from bart.errors import InputError
from utils.arguments import EvalArguments
from utils.data.dataset import PairDataset
from utils.data.line_files import read_pairs
from utils.evaluation.scoring import format_scores, generation_options, score_split
from utils.loading import check_lengths, load_for_evaluation


def run(args: EvalArguments) -> None:
    """Score a checkpoint as the arguments say; under torchrun the processes share the articles.

    Raises:
        InputError: anything wrong with options, files or the machine.
    """
    pairs = read_pairs(args.data_dir, args.type_path, args.n_obs)
    model, tokenizer = load_for_evaluation(args.model, args.config_path, args.tokenizer)
    check_lengths(
        model.config,
        max_source_length=args.max_source_length,
        max_target_length=args.max_target_length,
        eval_max_gen_length=args.eval_max_gen_length,
    )
    device = pick_device(args.device)
    if args.fp16 and device.type == "cpu":
        raise InputError("--fp16 needs a GPU and --device is cpu; the CPU takes fp32 (no flag) or --bf16")
    dtype = torch.float16 if args.fp16 else torch.bfloat16 if args.bf16 else torch.float32
    if args.tf32:
        torch.set_float32_matmul_precision("high")
    model.to(device, dtype)
    positions = model.config.max_position_embeddings
    dataset = PairDataset(*pairs, tokenizer, args.max_source_length or positions, args.max_target_length or positions)
    options = generation_options(args.eval_beams, args.eval_max_gen_length)
    if "LOCAL_RANK" in os.environ and int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        scores = score_split(model, tokenizer, dataset, args.bs, options, args.save_dir, args.type_path)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    if scores is not None:
        print(format_scores(scores))


def pick_device(name: str | None) -> torch.device:
    """The device named, or this process's GPU, or the CPU where there is none."""
    if name == "cpu" or (name is None and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError(f"--device is {name}; this machine has no CUDA device (--device cpu runs on the CPU)")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if device.index >= torch.cuda.device_count():
        raise InputError(f"process {device.index} has no GPU of its own; this machine has {torch.cuda.device_count()}")
    torch.cuda.set_device(device)
    return device
