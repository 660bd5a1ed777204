"""`python -m utils.predict MODEL --input INPUT`: a prediction of any task for each line, or each row of a table."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.predict")

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.app.cli import all_options, early_option, option, parse_dataclass, with_underscores
from utils.data.places import TABLES, is_table, suffix_of
from utils.prediction.documents import check_no_header, read_documents, write_lines
from utils.prediction.options import MODEL, InferenceOptions
from utils.prediction.predictor import Predictor
from utils.runs.outputs import check_output
from utils.tasks import TASKS, find_task, task_of


@dataclass(frozen=True, kw_only=True)
class PredictArguments:
    """The options of the command; those of the model and of the task are parts of their own."""

    input: str | None = option(
        None,
        section="texts",
        help=f"a table {', '.join(TABLES)}, of which the columns are read that training read; for tagging, .conll and "
        "its like; or UTF-8, a line for each input, counted from 0: a text, or a JSON object with text and pair, "
        "words, or with question and context; by default standard input",
    )
    task: str | None = option(
        None,
        section=MODEL,
        help=f"{', '.join(TASKS)}, or the path of a Python file with a task; by default that of the model",
    )
    batch_size: int = option(8, section=MODEL, least=1, help="inputs that are predicted at once")
    json: bool = option(False, section="output", help="print a JSON object for each line, with scores and more")
    output: str | None = option(None, help="file for the predictions, one a line; by default standard output")
    inference: InferenceOptions
    task_options: Any
    evaluation: Any


def parse_line(number: int, line: str) -> Any:
    """Return a line as a task takes it: a JSON object as such, all else as a text.

    Raises:
        InputError: the line begins like an object and is none.
    """
    try:
        return json.loads(line) if line.lstrip().startswith("{") else line
    except (ValueError, RecursionError) as error:
        raise InputError(f"input {number}: not JSON ({error}); a text must not begin with {{") from None


def model_in(argv: Sequence[str]) -> str:
    """The word of a command line that names the model, before all options are known; "" where there is none."""
    parts = [part() for task in map(find_task, TASKS) for part in (task.Options, task.EvalOptions)]
    flags = {field.name for part in parts for field, value in all_options(part) if isinstance(value, bool)} | {"json"}
    words = with_underscores(argv)
    for before, word in zip(["", *words], words, strict=False):
        is_value = before.startswith("--") and "=" not in before and before[2:].removeprefix("no_") not in flags
        if not (is_value or word.startswith("-")):
            return word
    return ""


def main(argv: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if argv is None else argv
    model = model_in(words)
    task = find_task(early_option(words, "task") or (task_of(model) if model else TASKS[0]))
    args = parse_dataclass(
        PredictArguments,
        argv,
        "Predict by any task: a summary, a translation, a class, tags or an answer for each line.",
        parts={"task_options": task.Options, "evaluation": task.EvalOptions},
    )
    check_output("output", args.output)
    file = args.input or ""
    table = file if is_table(file) or suffix_of(Path(file)) in task.suffixes else ""
    lines = [] if table else read_documents(has_one_a_line=True, file=args.input)
    inputs = [parse_line(number, line) for number, line in enumerate(lines)]
    predictor = Predictor(task, args.task_options, args.evaluation, args.inference, args.batch_size, table)
    if not table:
        check_no_header(lines, args.input or "standard input", predictor.task.columns)
    rows = predictor(None if table else inputs)
    if args.json:
        write_lines((json.dumps(row, ensure_ascii=False) for row in rows), args.output)
    else:
        write_lines(map(predictor.line_of, rows), args.output)
