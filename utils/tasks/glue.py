"""GLUE's nine tasks: their set on the Hub, columns, labels, and the files that gluebenchmark.com takes."""

from __future__ import annotations

from typing import NamedTuple

HUB_SET = "hub:nyu-mll/glue"


class GlueTask(NamedTuple):
    """One of GLUE's tasks (Wang et al., 2019)."""

    columns: tuple[str, ...]  # of the text and, in tasks on pairs, of the second one
    labels: tuple[str, ...]  # in the order of the Hub's numbers; none of a regression
    file: str  # of the submission, without its suffix
    writes_names: bool = False  # whether the submission names labels, or has their numbers
    metric: str = "accuracy"  # by which the best checkpoint is chosen


_SENTENCES = ("sentence1", "sentence2")
_ENTAILS = ("entailment", "not_entailment")
GLUE = {
    "cola": GlueTask(("sentence",), ("unacceptable", "acceptable"), "CoLA", metric="matthews"),
    "sst2": GlueTask(("sentence",), ("negative", "positive"), "SST-2"),
    "mrpc": GlueTask(_SENTENCES, ("not_equivalent", "equivalent"), "MRPC", metric="f1"),
    "stsb": GlueTask(_SENTENCES, (), "STS-B", metric="pearson"),
    "qqp": GlueTask(("question1", "question2"), ("not_duplicate", "duplicate"), "QQP", metric="f1"),
    "mnli": GlueTask(("premise", "hypothesis"), ("entailment", "neutral", "contradiction"), "MNLI-m", True),
    "qnli": GlueTask(("question", "sentence"), _ENTAILS, "QNLI", True),
    "rte": GlueTask(_SENTENCES, _ENTAILS, "RTE", True),
    "wnli": GlueTask(_SENTENCES, ("not_entailment", "entailment"), "WNLI"),
}


def submission(name: str, mismatched: bool, predictions: list[str]) -> tuple[str, str]:
    """The name and the content of a submission's file, of labels or numbers in the order of the test set."""
    task = GLUE[name]
    if not task.labels:
        written = [f"{min(5.0, max(0.0, float(value))):.3f}" for value in predictions]
    else:
        written = predictions if task.writes_names else [str(task.labels.index(label)) for label in predictions]
    lines = [f"{number}\t{value}\n" for number, value in enumerate(written)]
    return f"{'MNLI-mm' if mismatched else task.file}.tsv", "index\tprediction\n" + "".join(lines)
