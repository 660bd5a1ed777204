"""The files that a run leaves in its directory, so that those of two runs are not mixed up."""

from __future__ import annotations

import csv
import math
import shlex
import shutil
from pathlib import Path

from bart.errors import InputError, brief

LAST_FILE, PREVIOUS_FILE = "last.ckpt", "previous.ckpt"
SHARDED = "sharded"  # the folder of the tensors of checkpoints that several processes wrote
LOG, LAST = "log.txt", "last"  # a run's log, and the value of --resume_from_checkpoint for its newest checkpoint
CARD, EXAMPLES = "README.md", "examples.json"  # of a run's export
METRICS, SECONDS = "metrics.csv", "wall_seconds"  # SECONDS: the column of the time since the run's first session began
REPORT_ORDER = ("test", "val", "train")  # a report shows the first split of these that was scored
# Patterns of names; {} is a split.
TRAINED = "_epoch*_step*.ckpt last.ckpt previous.ckpt metrics.csv metrics.[0-9]*.csv train_summary.json export".split()
TRAINED.append(SHARDED)
SCORED = "{}_scores.json {}_speed.json {}_articles.jsonl {}_generations.txt .{}_progress".split()
# For SQuAD's official script, and for gluebenchmark.com.
SCORED += "{}_predictions.json {}_nbest_predictions.json {}_null_odds.json".split()
SCORED += "CoLA.tsv SST-2.tsv MRPC.tsv STS-B.tsv QQP.tsv MNLI-m.tsv MNLI-mm.tsv QNLI.tsv RTE.tsv WNLI.tsv".split()
RECORDS = "arguments.yaml arguments.[0-9]*.yaml environment.json environment.[0-9]*.json eval_arguments.yaml".split()
RECORDS += "events.out.tfevents.* report.html report_figures".split()

Metrics = dict[str, dict[int, float]]  # the finite values of each column, by the number of optimizer steps done


def of_sessions(folder: Path, name: str) -> list[Path]:
    """The files of this name of all sessions of a run: those of earlier ones have numbers, such as metrics.1.csv."""
    path = folder / name
    earlier = [each for each in folder.glob(f"{path.stem}.*{path.suffix}") if each.suffixes[0][1:].isdecimal()]
    return [*sorted(earlier, key=lambda each: int(each.suffixes[0][1:])), *([path] if path.exists() else [])]


def scored(*splits: str) -> list[str]:
    """Names of the files with the scores of some splits."""
    return [name.format(split) for split in splits for name in SCORED]


def remove(folder: Path, *patterns: str) -> None:
    """Remove files and folders of a directory."""
    for pattern in patterns:
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def remove_run(folder: Path, log_from: int) -> None:
    """Remove all files that a run leaves, and nothing else; its log is kept from this byte on."""
    remove(folder, *TRAINED, *scored(*REPORT_ORDER), *RECORDS)
    if (log := folder / LOG).exists():
        log.write_bytes(log.read_bytes()[log_from:])


def options_to_resume(output_dir: str) -> str:
    """The options with which a run in a folder goes on, as a shell takes them."""
    return f"--resume_from_checkpoint {LAST} --output_dir {shlex.quote(output_dir)}"


def check_free(output_dir: str, folder: Path, resume_from: str | None, weights: str | None, overwrite: bool) -> None:
    """Raise InputError where a new run would mix with an old one in its folder, or remove what it is to start from."""
    place = Path(resume_from or "").resolve()
    resumes = resume_from == LAST or (resume_from is not None and Path(output_dir).resolve() in (place, place.parent))
    if resumes and overwrite:
        raise InputError(
            f"--overwrite_output_dir would remove the checkpoint of --resume_from_checkpoint {resume_from} in "
            f"--output_dir {output_dir}: give one of them"
        )
    paths = [path for pattern in (*TRAINED, *scored(*REPORT_ORDER)) for path in folder.glob(pattern)]
    files, start = sorted(path.name for path in paths), Path(weights or "").resolve()
    if weights and overwrite and {path.resolve() for path in paths} & {start, *start.parents, *start.glob("*")}:
        raise InputError(
            f"--overwrite_output_dir would remove {weights}, whose weights the run starts from, in --output_dir "
            f"{output_dir}: name another folder"
        )
    if files and not (resumes or overwrite):
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        raise InputError(
            f"--output_dir {output_dir} holds a run ({', '.join(files[:3])}{more}): --resume_from_checkpoint {LAST} "
            "goes on with it, --overwrite_output_dir removes what it wrote"
        )


def metrics_of_sessions(folder: Path) -> list[Metrics]:
    """The metrics of each session of a run, the first one first."""
    return [read_metrics(path) for path in of_sessions(folder, METRICS)]


def read_metrics(path: Path) -> Metrics:
    """The metrics of one session; half a line, as a kill leaves it, is left out."""
    columns: Metrics = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        for row in csv.DictReader(line for line in lines if line.endswith("\n")):
            step = int(row.pop("step")) + 1  # Lightning counts steps from 0
            for name, cell in row.items():
                values = columns.setdefault(name, {})
                if math.isfinite(value := float(cell or "nan")):
                    values[step] = value
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read, or is damaged ({brief(error)})") from None
    return columns


def joined(sessions: list[Metrics]) -> Metrics:
    """The metrics of a run. Of a step that a later session has done again, that session's values count."""
    metrics: Metrics = {}
    for session in sessions:
        begin = min((step for values in session.values() for step in values), default=math.inf)
        for name in {**metrics, **session}:
            before = {step: value for step, value in metrics.get(name, {}).items() if step <= begin}
            metrics[name] = before | session.get(name, {})
    return metrics


def seconds_of_sessions(folder: Path) -> float:
    """The wall clock of the sessions that a run has had, as far as their files tell it."""
    try:
        sessions = metrics_of_sessions(folder)
    except InputError:
        return 0.0
    return max((seconds for session in sessions for seconds in session.get(SECONDS, {}).values()), default=0.0)
