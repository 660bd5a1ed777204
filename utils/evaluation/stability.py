"""How far scores depend on the seed: `python -m utils.evaluation.stability RUN_DIR RUN_DIR ...`."""

from __future__ import annotations

from utils.app.start import start_program

if __name__ == "__main__":
    start_program()

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bart.errors import InputError
from utils.app.cli import option, parse_dataclass, run_main
from utils.app.tables import table
from utils.evaluation.report.runs import label_of, read_run, scores_of

COLUMNS = {"score": "score", "mean": "mean", "deviation": "deviation", "least": "least", "greatest": "greatest"}


@dataclass(frozen=True)
class StabilityArguments:
    """The options of the command."""

    run_dirs: tuple[str, ...] = option(positional=True, help="folders of scored runs, two or more")


def describe(args: StabilityArguments) -> str:
    """A table for each split that was scored: each score's mean, sample standard deviation and range, and its runs.

    Raises:
        InputError: there is one run alone, or a run lacks scores that another has.
    """
    if len(args.run_dirs) < 2:
        raise InputError(f"RUN_DIR is given {len(args.run_dirs)} times; allowed: 2 or more runs")
    runs = [read_run(folder) for folder in args.run_dirs]
    found = [{split: scores_of(scores) for split, scores in run.scores.items()} for run in runs]
    names = [[f"{split} {name}" for split, scores in splits.items() for name in scores] for splits in found]
    for run, own in zip(runs, names, strict=True):
        if not own or own != names[0]:
            shown = ", ".join(own) or "none"
            raise InputError(f"{run.folder}: its scores are {shown}; allowed: those of {runs[0].folder}")
    columns = {**COLUMNS, **{str(number): run.name for number, run in enumerate(runs)}}
    blocks = []
    for split, scores in found[0].items():
        rows = []
        for name in scores:
            values = [splits[split][name] for splits in found]
            row = {"mean": statistics.mean(values), "deviation": statistics.stdev(values)}
            row |= {"least": min(values), "greatest": max(values)}
            rows.append({"score": label_of(name), **row, **{str(number): one for number, one in enumerate(values)}})
        blocks.append(f"{len(runs)} runs, {split} split\n\n{table(rows, columns)}")
    return "\n\n".join(blocks)


def main(argv: Sequence[str] | None = None) -> None:
    description = "Print mean, sample standard deviation and range of the scores of runs that differ in their seed."
    print(describe(parse_dataclass(StabilityArguments, argv, description)))


if __name__ == "__main__":
    run_main(main)
