"""The options of run_eval.py: names as NVIDIA's script has them, where it has them."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bart.errors import InputError
from utils.app.cli import early_option, option, parse_dataclass
from utils.data.options import DataOptions
from utils.data.places import KINDS
from utils.data.splits import SPLITS
from utils.evaluation.predicting import BATCHINGS, CONTINUOUS
from utils.runs.machine import PRECISIONS
from utils.tasks import TASKS, find_task
from utils.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class EvalArguments:
    """All options, checked as far as that goes without the model; those of the task are a part of their own.

    Attributes:
        task_options: an `EvalOptions` of the task.
    """

    model: str = option(positional=True, help="checkpoint file, Hub-format or run directory, or Hub name")
    config_path: str = option(
        positional=True, help="JSON with the architecture and decoding options, for a checkpoint that has none"
    )
    data_dir: str = option(positional=True, help=KINDS)
    save_dir: str = option(positional=True, help="where results are written")
    tokenizer: str | None = option(
        None, section="data", help="vocabulary; by default the one that lies with the weights"
    )
    type_path: str = option("test", choices=SPLITS, help="split to score")
    n_obs: int = option(-1, least=-1, help="examples to use; -1 for all")
    task: str = option(
        TASKS[0],
        section="prediction",
        help=f"what the model does: {', '.join(TASKS)}, or the path of a Python file that defines a task",
    )
    bs: int = option(8, least=1, help="examples per process and batch")
    batching: str = option(
        CONTINUOUS,
        choices=BATCHINGS,
        help="continuous: new articles take the places of those that are done, and a latency is the time of an article "
        "in the batch; static: batches of --bs articles of like length, and a latency is the time of a batch",
    )
    warmup_batches: int = option(
        1,
        least=0,
        help="batches predicted before the clock starts, at most half of all; their results count, their times do not",
    )
    seed: int = option(
        42,
        least=0,
        help="of --do_sample; the draws also depend on --bs, --batching, the processes, and where a run was resumed",
    )
    overwrite_output_dir: bool = option(
        False, section="output", help="replace the scores, or the progress, that another run has left in save_dir"
    )
    info: str | None = option(None, help="a text to store with the scores")
    dump_args: bool = option(False, help="also print the resolved arguments, which eval_arguments.yaml always holds")
    json_summary: str | None = option(None, help="file for scores, speed and arguments as one JSON object")
    debug: bool = option(False, help="log more, such as the time of each article")
    device: str | None = option(
        None,
        section="hardware and precision",
        help="cpu, cuda, or cuda:N for the N-th GPU; by default cuda where there is a GPU. Under torchrun each process "
        "takes a GPU of its own",
    )
    fp16: bool = option(False, help="half precision; needs a GPU")
    bf16: bool = option(False, help="bfloat16 precision")
    tf32: bool = option(False, help="fp32 with TF32 tensor cores in matrix products; needs a GPU")
    int8: bool = option(False, help="weights and inputs of matrix products in 8 bits; runs on the CPU")
    task_options: Any

    def __post_init__(self) -> None:
        chosen = [f"--{name}" for name in PRECISIONS if getattr(self, name, False)]
        if len(chosen) > 1:
            raise InputError(f"{' and '.join(chosen)} exclude each other; give one precision")
        if self.device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise InputError(f"--device is {self.device!r}; allowed: cpu, cuda, or cuda:N such as cuda:1")
        if self.device is not None and ":" in self.device and os.environ.get("LOCAL_WORLD_SIZE", "1") != "1":
            raise InputError(f"--device is {self.device}, and torchrun started several processes; allowed: cuda, cpu")
        if self.n_obs == 0:
            raise InputError("--n_obs is 0; allowed: -1, or at least 1")

    @property
    def precision(self) -> str:
        """One of PRECISIONS."""
        return next((name for name in PRECISIONS if getattr(self, name, False)), "fp32")

    def make_task(self) -> Task[Any]:
        """The task, with its options.

        Raises:
            InputError: options that it cannot obey, or that name files which are not there.
        """
        data = DataOptions(data_dir=self.data_dir, **{f"n_{self.type_path}": self.n_obs}, eval_batch_size=self.bs)
        return find_task(self.task)(self.task_options, data)

    def settings(self) -> dict[str, Any]:
        """All options by name."""
        settings = dataclasses.asdict(self)
        return settings | settings.pop("task_options")


def parse_eval_arguments(argv: Sequence[str] | None = None) -> EvalArguments:
    """Read run_eval.py's command line."""
    task = find_task(early_option(sys.argv[1:] if argv is None else argv, "task", TASKS[0]))
    return parse_dataclass(
        EvalArguments,
        argv,
        "Predict a split, such as summaries with beam search, and score it.\n\n"
        "Under torchrun, processes share the examples. A run that was broken off goes on\n"
        "where it was when it is started again: what it had predicted lies in\n"
        "SAVE_DIR/.SPLIT_progress until the results are written. A run that was finished\n"
        "is predicted again. Hyphens in names of options stand for underscores.",
        parts={"task_options": task.EvalOptions},
    )
