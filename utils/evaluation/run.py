"""One evaluation run, from its arguments to its scores."""

from __future__ import annotations

import dataclasses
import os
import sys

import torch
import torch.distributed as dist

from utils.arguments import EvalArguments
from utils.data.dataset import PairDataset
from utils.data.line_files import read_pairs
from utils.evaluation.scoring import format_scores, generation_options, score_split
from utils.loading import check_gpus, check_lengths, for_inference, load_for_evaluation


def run(args: EvalArguments) -> None:
    """Score a checkpoint as the arguments say; several GPUs share the articles.

    With several GPUs this process only checks all input, then turns into torchrun, which starts one process each.

    Raises:
        InputError: anything wrong with options, files or the machine.
    """
    started_by_torchrun = "LOCAL_RANK" in os.environ
    if args.gpus is None:
        args = dataclasses.replace(args, gpus=int(torch.cuda.is_available()))
    check_gpus(args.gpus)
    pairs = read_pairs(args.data_dir, args.type_path, args.n_obs)
    model, tokenizer = load_for_evaluation(args.model, args.config_path, args.tokenizer)
    check_lengths(
        model.config,
        max_source_length=args.max_source_length,
        max_target_length=args.max_target_length,
        eval_max_gen_length=args.eval_max_gen_length,
    )
    if args.gpus > 1 and not started_by_torchrun:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(args.gpus)]
        os.execv(sys.executable, [*launch, *sys.argv])
    device = torch.device("cpu")
    if args.gpus:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    model = for_inference(model.to(device), args.precision)
    positions = model.config.max_position_embeddings
    dataset = PairDataset(*pairs, tokenizer, args.max_source_length or positions, args.max_target_length or positions)
    options = generation_options(args.eval_beams, args.eval_max_gen_length)
    if started_by_torchrun:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        scores = score_split(
            model, tokenizer, dataset, args.bs, options, args.save_dir, args.type_path, precision=args.precision
        )
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    if scores is not None:
        print(format_scores(scores))
