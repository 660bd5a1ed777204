"""Shards and a config so small that a pretraining run takes a second."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tiny_run import CONFIG, OF_BERT
from tests.tiny_shards import write_tiny_shards
from utils.data.shard_format import DENOISING, MLM_NSP

PROGRAM = "run_pretraining"


def write_tiny_pretraining(folder: Path, task: str = DENOISING, **shards: object) -> list[str]:
    """Write `folder/{shards,config.json}`; return the options of run_pretraining.py that use them.

    Args:
        shards: see `write_tiny_shards`; by default 42 training examples of up to 32 tokens.
    """
    tokenizer = write_tiny_shards(folder / "shards", task=task, **shards)
    config = OF_BERT if task == MLM_NSP else CONFIG
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": len(tokenizer)}))
    options = {
        "--data_dir": folder / "shards",
        "--config_path": folder / "config.json",
        "--gpus": 0,
        "--num_workers": 0,
        "--train_batch_size": 4,
        "--eval_batch_size": 4,
        "--log_freq": 1,
        "--learning_rate": 1e-3,
        "--task": task,
    }
    return [str(word) for pair in options.items() for word in pair]
