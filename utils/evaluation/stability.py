"""The spread of scores over runs with different seeds: `python -m utils.evaluation.stability RUN_DIR RUN_DIR ...`."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.evaluation.stability")

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bart.errors import InputError
from utils.app.cli import option, parse_dataclass
from utils.app.formatting import markdown_table
from utils.evaluation.report.runs import read_run, scores_of
from utils.metrics.files import label_of

MAY_DIFFER = {"seed", "output_dir", "resume_from_checkpoint", "overwrite_output_dir"}  # options of runs
STATISTICS = ("score", "mean", "deviation", "least", "greatest")


@dataclass(frozen=True)
class StabilityArguments:
    run_dirs: tuple[str, ...] = option(positional=True, help="folders of scored runs, two or more")


def main(argv: Sequence[str] | None = None) -> None:
    description = "Print mean, sample standard deviation and range of the scores of runs that differ in their seed."
    args = parse_dataclass(StabilityArguments, argv, description)
    if len(args.run_dirs) < 2:
        raise InputError(f"RUN_DIR is given {len(args.run_dirs)} times; allowed: 2 or more runs")
    runs = [read_run(folder) for folder in args.run_dirs]
    scores = [
        {
            f"{split} {label_of(name)}": value
            for split in run.scores
            for name, value in scores_of(run.scores[split]).items()
        }
        for run in runs
    ]
    for run, of_run in zip(runs, scores, strict=True):
        if not of_run or of_run.keys() != scores[0].keys():
            listed = ", ".join(of_run) or "none"
            raise InputError(f"{run.folder}: its scores are {listed}; allowed: those of {runs[0].folder}")
    columns = {**{name: name for name in STATISTICS}, **{str(number): run.name for number, run in enumerate(runs)}}
    rows = []
    for name in scores[0]:
        values = [of_run[name] for of_run in scores]
        of_all = (statistics.mean(values), statistics.stdev(values), min(values), max(values))
        rows.append(dict(zip(columns, (name, *of_all, *values), strict=True)))
    print(f"{len(runs)} runs\n\n{markdown_table(rows, columns)}")
    options = dict.fromkeys(name for run in runs for name in run.arguments if name not in MAY_DIFFER)
    given = {name: [str(run.arguments.get(name)) for run in runs] for name in options}
    if changed := [f"{name} ({', '.join(of_runs)})" for name, of_runs in given.items() if len({*of_runs}) > 1]:
        print(f"\nThe runs differ in more than their seed: {', '.join(changed)}")
