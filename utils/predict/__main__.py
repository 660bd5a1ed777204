"""`python -m utils.predict MODEL --task TASK < INPUT`: a prediction for each line."""

from __future__ import annotations

from utils.app.start import start_program

if __name__ == "__main__":
    start_program()

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.app.cli import early_option, option, parse_dataclass, run_main
from utils.predict.predictor import Predictor
from utils.runs.outputs import check_output, write_whole
from utils.summarize import MODEL, InferenceArguments, read_documents
from utils.tasks import TASKS, find_task


@dataclass(frozen=True, kw_only=True)
class PredictArguments(InferenceArguments):
    """The options of the command; those of the task are a part of their own."""

    input: str | None = option(
        None,
        section="texts",
        help="UTF-8, a line for each input, counted from 0: a text, or a JSON object with text and pair, words, or "
        "with question and context; by default standard input",
    )
    task: str = option(TASKS[0], section=MODEL, help=f"{', '.join(TASKS)}, or the path of a Python file with a task")
    batch_size: int = option(8, section=MODEL, least=1, help="inputs that are predicted at once")
    json: bool = option(False, section="output", help="print a JSON object for each line, with scores and more")
    output: str | None = option(None, help="file for the predictions, one a line; by default standard output")
    task_options: Any


def inputs_of(lines: Sequence[str]) -> list[Any]:
    """Lines as a task takes them: JSON objects as such, all else as texts.

    Raises:
        InputError: a line begins like an object and is none.
    """
    inputs: list[Any] = []
    for number, line in enumerate(lines):
        try:
            inputs.append(json.loads(line) if line.lstrip().startswith("{") else line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"input {number}: not JSON ({error}); a text must not begin with {{") from None
    return inputs


def main(argv: Sequence[str] | None = None) -> None:
    task = find_task(early_option(sys.argv[1:] if argv is None else argv, "task", TASKS[0]))
    args = parse_dataclass(
        PredictArguments,
        argv,
        "Predict by any task: a summary, a translation, a class, tags or an answer for each line.",
        parts={"task_options": task.EvalOptions},
    )
    check_output("output", args.output)
    inputs = inputs_of(read_documents(True, args.input))
    predictor = Predictor(
        args.task,
        args.model,
        args.task_options,
        config_path=args.config_path,
        tokenizer=args.tokenizer,
        precision=args.precision,
        device=args.device,
        batch_size=args.batch_size,
    )
    rows = predictor(inputs)
    lines = [json.dumps(row, ensure_ascii=False) if args.json else predictor.task.line_of(row) for row in rows]
    text = "".join(f"{line}\n" for line in lines)
    if args.output is None:
        print(text, end="")
    else:
        write_whole(Path(args.output), text)


if __name__ == "__main__":
    run_main(main)
