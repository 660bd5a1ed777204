"""`python -m utils.predict MODEL [FILE]`: a prediction of any task for each row of a table, or for each line."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.predict")

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bart.errors import InputError
from bart.files import is_device
from utils.app.cli import early_option, option, parse_dataclass
from utils.app.output_files import check_output, held
from utils.app.progress import progress, start_log
from utils.app.stores import STORES, fetch, in_store, publish
from utils.app.unfinished import Unfinished, model_identity
from utils.data.columns import InputOptions, Record
from utils.data.options import Place
from utils.data.places import TABLES, suffix_of
from utils.prediction.files import OUTPUTS, RowsToPredict, files_of, texts, write_file
from utils.prediction.options import MODEL, InferenceOptions
from utils.tasks import TASKS, find_row_task, options_of, task_of
from utils.text.lines import NO_TEXT

if TYPE_CHECKING:
    from utils.prediction.predictor import Predictor
    from utils.tasks.task import Prediction

logger = logging.getLogger(__name__)
BATCHES_AT_ONCE = 16  # whose rows are sorted by length, and after which what is predicted is noted on disk
Cells = dict[str, Any]
ALL = "all"


@dataclass(frozen=True, kw_only=True)
class PredictArguments:
    file: tuple[str, ...] = option(
        (),
        section="texts",
        positional=True,
        help=f"a table {', '.join(TABLES)}, with the columns that training read; for tagging also .conll and similar "
        "files; or UTF-8 with an input a line: a text, or a JSON object with text and pair, words, or question and "
        "context; several of one kind, a folder of tables, or a pattern such as 'part-*.csv' are read one after the "
        "other; by default standard input; also as a " + STORES,
        reaches=in_store,
    )
    shard: str = option(
        "0/1",
        metavar="I/N",
        help="predict only the I-th of N blocks of rows, counted from 0: 0/4, 1/4, 2/4 and 3/4 are all of them; the "
        "outputs in this order are that of one run",
    )
    task: str | None = option(
        None,
        section=MODEL,
        help=f"{', '.join(TASKS)}, or the path of a Python file with a task; by default that of the model",
    )
    batch_size: int = option(8, least=1, help="inputs that are predicted at once")
    output: str | None = option(
        None,
        section="output",
        help=f"file for the predictions: a table {', '.join(OUTPUTS)} with the columns of FILE and of the predictions, "
        "or another name, for a prediction a line; by default standard output; the same command resumes a killed run; "
        f"also as a {STORES}",
        reaches=in_store,
    )
    scores: str = option(
        "predicted", choices=("predicted", ALL), help="probabilities of the prediction, or of all classes or labels"
    )
    json: bool = option(False, help="print JSON objects with columns and scores instead of lines")
    inference: InferenceOptions
    tables: InputOptions
    task_options: Any
    evaluation: Any

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9]+/[0-9]+", self.shard) or self.block[0] >= self.block[1]:
            raise InputError(f"--shard is {self.shard!r}; allowed: I/N with I from 0 to N - 1, such as 0/4 to 3/4")
        suffix = Path(self.output or "").suffix.lower()
        if suffix in (*NO_TEXT, ".json", ".gz"):
            raise InputError(f"--output is {self.output}; allowed: {', '.join(OUTPUTS)}, or lines, such as a .txt")
        if self.json and suffix in OUTPUTS and suffix != ".jsonl":
            raise InputError(f"--json and --output {self.output} name two forms; allowed: one of them")

    @property
    def block(self) -> tuple[int, ...]:
        """I and N of --shard."""
        return tuple(map(int, self.shard.split("/")))

    @property
    def suffix(self) -> str:
        suffix = ".jsonl" if self.json else Path(self.output or "").suffix.lower()
        return suffix if suffix in OUTPUTS else ""


def main(argv: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if argv is None else argv
    # The model comes first, since it says which options there are.
    first, model_is_first = words[0] if words else "", bool(words) and not words[0].startswith("-")
    given = early_option(words, "task")
    name = task_of(first, given) if model_is_first else given or TASKS[0]
    options, _, evaluation = options_of(name)
    args = parse_dataclass(
        PredictArguments,
        argv,
        "Predict by any task: a summary, a translation, a class, tags or an answer for each row or line.",
        parts={"task_options": options, "evaluation": evaluation},
        of_tasks={task: options_of(task)[::2] for task in TASKS},
    )
    if not model_is_first:
        raise InputError(f"the first argument is {first}; allowed: the model, and then FILE and options in any order")
    task = find_row_task(name)
    files = files_of([*map(fetch, args.file)], (*TABLES, *task.suffixes))
    path = fetch(args.output or "", may_be_missing=True)
    check_output("output", path or None, *files)
    output = None if not path or is_device(Path(path)) else Path(path)
    if output is not None:
        start_log()
    from utils.prediction.predictor import Predictor  # here, because --help needs no torch

    has_rows = bool(files) and suffix_of(files[0]) in (*TABLES, *task.suffixes)
    place = Place(str(files[0]) if has_rows else "", tables=args.tables)
    predictor = Predictor(task, args.task_options, args.evaluation, args.inference, args.batch_size, place)
    source = RowsToPredict(files, has_rows, predictor.task, args.suffix, args.tables.skip_blank, args.block)
    run = _Run(args, predictor, source)
    if output is None:
        rows = chain.from_iterable(run.predicted())
        with nullcontext(sys.stdout) if args.output is None else open(args.output, "w", encoding="utf-8") as file:
            for text in texts(source, rows):
                print(text, end="", file=file, flush=True)
        return
    partial, identity = output.with_name(f"{output.name}.partial"), run.identity()
    with (
        held(Path(f"{partial}.lock"), f"{partial}: another process is at work on it", stays=False),
        closing(Unfinished(partial, identity, "name another --output, or remove the file")) as work,
    ):
        if done := sum(map(len, work.values())):
            logger.warning("%s of %s rows were predicted before", f"{done:,}", f"{source.rows:,}")
        for part in run.predicted(done):
            work.add([cells for _, cells in part])
        if source.digest != identity["input"]:
            raise InputError(f"{source.name}: it changed while it was predicted; remove {partial} and begin anew")
        write_file(output, source, work)
        publish(args.output)
        work.finish()
        logger.info("%s: %s predictions", args.output, f"{source.rows:,}")


@dataclass(frozen=True)
class _Run:
    """The predictions of all rows of a source, as the options ask for them."""

    args: PredictArguments
    predictor: Predictor
    source: RowsToPredict

    def identity(self) -> dict[str, Any]:
        """All on which the predictions depend, as JSON."""
        inference = asdict(self.args.inference)
        del inference["gpus"]
        return {
            "task": type(self.predictor.task).__name__,
            "input": self.source.digest,
            "columns": list(self.source.chosen),
            "tables": asdict(self.args.tables),
            "form": self.args.suffix,
            "shard": self.args.shard,
            "scores": self.args.scores,
            "settings": self.predictor.task.settings(self.predictor.loaded),
            **inference,
            **model_identity(self.args.inference.model),
        }

    def predicted(self, done: int = 0) -> Iterator[list[tuple[Record, Cells]]]:
        """Predict the rows part by part, the first `done` of them left out; yields them with their cells."""
        import torch

        from utils.data.tokenized import warnings_added_up

        size = self.args.batch_size
        records = islice(self.source.records(), done, None)
        # A first batch alone soon shows what is wrong with all of them.
        beginning = [] if done else [list(islice(records, size))]
        blank, chosen, empty = self.source.blank, self.source.chosen, {}
        if blank:
            filled = self.source.filled
            empty = dict.fromkeys(self._cells(filled, *next(self.predictor([filled], chosen))))
        with warnings_added_up(), progress("predicting", self.source.rows, "rows") as bar:
            bar.begin(done)
            for part in chain(beginning, iter(lambda: list(islice(records, BATCHES_AT_ONCE * size)), [])):
                torch.manual_seed(self.source.block[0] + done)  # drawn tokens are the same in a run that was killed
                filled = [record for record in part if record.name not in blank]
                results = self.predictor(filled, chosen, bar.update) if filled else iter(())
                yield [
                    (record, empty if record.name in blank else self._cells(record, *next(results))) for record in part
                ]
                done += len(part)

    def _cells(self, record: Record, row: dict[str, Any], prediction: Prediction) -> Cells:
        """The cells that a prediction adds to its row."""
        cells, values = self.predictor.task.cells(row, prediction), record.values
        if self.args.scores == ALL:
            scores = prediction.values.get("scores")
            if not isinstance(scores, dict):
                raise InputError("--scores is all; this model predicts no classes or labels; allowed: predicted")
            cells |= {f"score_{label}": score for label, score in scores.items()}
        if not self.args.suffix:
            return cells
        if row.get("is_cut") and self.args.suffix == ".jsonl":  # whose rows need not have equal columns
            cells["is_cut"] = True
        others = {*self.source.columns} - {*self.source.chosen}
        if clash := [name for name in cells if name in others or values.get(name, cells[name]) != cells[name]]:
            raise InputError(
                f"{self.source.name}: it has a column {clash[0]} already, which predictions would overwrite; rename it"
            )
        return {name: value for name, value in cells.items() if name not in values}
