"""Exact match and F1 of answers, as SQuAD 2.0's script counts them; 1.1's differs for texts of articles alone."""

from __future__ import annotations

import logging
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bart.errors import InputError
from bart.files import read_json
from utils.app.cli import parse_dataclass
from utils.data.places import TABLES, suffix_of
from utils.data.squad import Question, read_answers
from utils.data.tables import column_in
from utils.metrics.files import FileOptions, print_scores, refuse_module
from utils.text.lines import check_counts

logger = logging.getLogger(__name__)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = set(string.punctuation)


def normalized(text: str) -> str:
    """A text in lower case, without punctuation, articles, and more than one space at once."""
    text = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(predicted: str, right: str) -> float:
    """1 where both are the same, apart from case, punctuation, articles and spaces; otherwise 0."""
    return float(normalized(predicted) == normalized(right))


def f1(predicted: str, right: str) -> float:
    """F1 of the words of both; where one has none, 1 if neither has any and otherwise 0."""
    ours, theirs = normalized(predicted).split(), normalized(right).split()
    if not (ours and theirs):
        return float(ours == theirs)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


def best(measure: Callable[[str, str], float], predicted: str, answers: Sequence[str]) -> float:
    """A measure against the right answer that is nearest, in percent. No right answer means that "" is right.

    Of several right answers, those that are nothing but punctuation and articles do not count.
    """
    right = [answer for answer in answers if normalized(answer)] or [""]
    return 100 * max(measure(predicted, answer) for answer in right)


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    text = "Score answers, a JSON object by the ids of questions or a table, as SQuAD's script does."
    files = parse_dataclass(FileOptions, argv, text, prog)
    questions = read_answers(files.references, files.tables)
    answered = np.array([bool(question.answers) for question in questions.values()])
    kinds = {"": np.full(len(answered), True), "HasAns_": answered, "NoAns_": ~answered}
    if answered.all():
        kinds = {"": kinds[""]}

    def counts_of(path: str) -> np.ndarray:
        answers = _answers_in(path, files, questions)
        pairs = [(answers[key], question.answers) for key, question in questions.items()]
        each = np.array([[1, best(exact_match, *pair), best(f1, *pair)] for pair in pairs])
        return np.concatenate([each * chosen[:, None] for chosen in kinds.values()], axis=1)

    def scores_of(sums: np.ndarray) -> dict[str, float]:
        parts = zip(kinds, sums.reshape(-1, 3).tolist(), strict=True)
        return {
            f"{kind}{name}": value / max(count, 1)
            for kind, (count, *values) in parts
            for name, value in zip(("exact_match", "f1"), values, strict=True)
        }

    title = f"Exact match and F1 in percent of {len(questions):,} questions"
    print_scores(files, title, [*map(counts_of, files.systems)], scores_of, {})


def _answers_in(path: str, files: FileOptions, questions: Mapping[str, Question]) -> Mapping[str, str]:
    """The answers in a file by ids of questions: an object, or a table, without ids in the questions' order."""
    column, suffix = files.prediction_field or "prediction", suffix_of(Path(path))
    if suffix == ".json" or suffix not in TABLES:
        answers = read_json(Path(path))
    else:
        records, _ = column_in(path, "prediction_field", files.prediction_field, [column], files.tables)
        ids = [str(values.get("id", name)) for name, values in records]
        if not any("id" in values for _, values in records):
            ids = [*questions]
            check_counts((path, files.references), len(records), len(ids))
        answers = dict(zip(ids, (values.get(column) for _, values in records), strict=True))
        if len(answers) < len(ids):
            raise InputError(f"{path}: {len(ids) - len(answers)} rows repeat an id; allowed: each id once")
    if not all(isinstance(text, str) for text in answers.values()):
        raise InputError(f"{path}: allowed: an object of texts by ids of questions, or a table with texts in {column}")
    if missing := questions.keys() - answers.keys():
        raise InputError(f"{path}: no answer to {len(missing)} questions, such as {min(missing)!r}; allowed: one each")
    if others := len(answers) - len(questions):  # as of the whole set where DATASET is a part of it
        logger.warning("%s: answers to %d other questions are ignored", path, others)
    return answers


if __name__ == "__main__":
    refuse_module()
