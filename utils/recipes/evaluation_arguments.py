"""The options of run_eval.py: names as NVIDIA's script has them, where it has them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bart.errors import InputError
from utils.app.cli import early_option, option, parse_dataclass
from utils.app.machine import PRECISIONS
from utils.app.stores import STORES, fetch, in_store
from utils.data.columns import InputOptions
from utils.data.options import ALL, Place, val_ratio_option
from utils.data.places import KINDS, is_reached
from utils.data.splits import SPLITS
from utils.evaluation.options import ScoringOptions
from utils.tasks import TASKS, find_task, options_of, task_of

if TYPE_CHECKING:
    from utils.tasks.task import ScoredTask


@dataclass(frozen=True, kw_only=True)
class EvalArguments:
    """All options; `task_options` and `evaluation` are an `Options` and an `EvalOptions` of the task."""

    model: str = option(positional=True, help="checkpoint file, Hub-format or run directory, or Hub name")
    config_path: str = option(
        positional=True, help="JSON with architecture and decoding options; only for a checkpoint without a config"
    )
    data_dir: str = option(positional=True, help=KINDS, reaches=is_reached)
    save_dir: str = option(positional=True, help=f"folder for the results, or a {STORES}", reaches=in_store)
    tokenizer: str | None = option(
        None, section="data", help="vocabulary; by default the one in the folder of the weights"
    )
    n_obs: int = option(
        ALL, least=-1, besides=0, help="number of examples to use; a hash of their texts chooses them; -1 for all"
    )
    val_ratio: float | None = val_ratio_option()
    tables: InputOptions
    scoring: ScoringOptions
    task_options: Any
    evaluation: Any
    task: str = option(
        TASKS[0],
        section="prediction",
        help=f"what the model does: {', '.join(TASKS)}, or the path of a Python file that defines a task; by default "
        "that of the model, if it is on this machine and is the first argument",
    )
    bs: int = option(8, least=1, help="examples per process and batch")
    seed: int = option(
        42,
        least=0,
        help="seed of --do_sample; draws also depend on --bs, the number of processes, and where a run was resumed",
    )
    device: str | None = option(
        None,
        section="hardware and precision",
        help="cpu, cuda, or cuda:N for GPU N, counted from 0; by default cuda if there is a GPU; under torchrun each "
        "process takes its own GPU",
    )
    fp16: bool = option(False, help="half precision; needs a GPU")
    bf16: bool = option(False, help="bfloat16 precision")
    tf32: bool = option(False, help="fp32 with TF32 tensor cores in matrix products; needs a GPU")
    int8: bool = option(False, help="weights and inputs of matrix products in 8 bits; needs the CPU")
    overwrite_output_dir: bool = option(
        False, section="output", help="replace the scores or the progress of another run in save_dir"
    )
    debug: bool = option(False, help="log more, such as the time of each article")

    def __post_init__(self) -> None:
        chosen = [f"--{name}" for name in PRECISIONS if getattr(self, name, False)]
        if len(chosen) > 1:
            raise InputError(f"{' and '.join(chosen)} exclude each other; give one precision")
        if self.device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise InputError(f"--device is {self.device!r}; allowed: cpu, cuda, or cuda:N such as cuda:1")
        if self.device is not None and ":" in self.device and os.environ.get("LOCAL_WORLD_SIZE", "1") != "1":
            raise InputError(f"--device is {self.device}, and torchrun started several processes; allowed: cuda, cpu")

    @property
    def precision(self) -> str:
        """One of PRECISIONS."""
        return next((name for name in PRECISIONS if getattr(self, name, False)), "fp32")

    def make_task(self) -> ScoredTask:
        """The task, with its options."""
        limits = dict.fromkeys(SPLITS, self.n_obs)
        place = Place(fetch(self.data_dir), limits=limits, val_ratio=self.val_ratio, tables=self.tables)
        return find_task(self.task)(place, self.task_options, evaluation=self.evaluation)


def parse_eval_arguments(argv: Sequence[str] | None = None) -> EvalArguments:
    """Read run_eval.py's command line."""
    words = sys.argv[1:] if argv is None else argv
    name = early_option(words, "task")
    if name is None and words and Path(words[0]).exists():
        name = task_of(words[0])
    options, _, evaluation = options_of(name or TASKS[0])
    return parse_dataclass(
        EvalArguments,
        argv,
        "Predict a split, such as summaries with beam search, and score it.\n\n"
        "Under torchrun, processes share the examples. If a run was broken off, the same\n"
        "command goes on where it was: SAVE_DIR/.SPLIT_progress has its predictions until\n"
        "the results are written. A finished run is predicted again. In names of options\n"
        "you may write hyphens for underscores.",
        parts={"task_options": options, "evaluation": evaluation},
        defaults={"task": name or TASKS[0]},
        of_tasks={task: options_of(task)[::2] for task in TASKS},
    )
