"""Questions about texts: SQuAD's JSON, or tables with the columns of its sets on the Hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.data.columns import read_records
from utils.data.places import is_streamed
from utils.data.splits import SPLIT_NAMES


@dataclass(frozen=True)
class Question:
    """A question.

    Attributes:
        name: tells a person which question it is.
        answers: the right answers, each a part of the context; none if the context does not answer; None if unknown.
        starts: the character of the context where each answer begins.
    """

    name: str
    id: str
    question: str
    context: str
    answers: tuple[str, ...] | None = None
    starts: tuple[int, ...] = ()


def read_questions(data_dir: str, split: str, limit: int = -1, labelled: bool = True) -> list[Question]:
    """Read a split's questions, the first `limit` unless it is negative.

    Args:
        data_dir: a directory that holds SQuAD's JSON, such as train-v2.0.json or val.json, or what `read_records`
            takes, with the columns id, question, context and answers.
        labelled: read the answers.

    Raises:
        InputError: there is no such file, it is malformed, or an answer is not at its place in the context.
    """
    file = None if is_streamed(data_dir) else _squad_file(Path(data_dir).expanduser(), split)
    if file is None:
        rows = ((record.name, record.values) for record in read_records(data_dir, split, lambda _: "context", limit))
    else:
        rows = _squad_rows(file)
    end = None if limit < 0 else limit
    questions = [_question(name, values, labelled) for name, values in islice(rows, end)]
    if not questions:
        raise InputError(f"{file or data_dir}: no questions")
    seen: dict[str, str] = {}
    for question in questions:
        if question.id in seen:
            raise InputError(
                f"{question.name}: its id {question.id!r} is that of {seen[question.id]}; allowed: each id once"
            )
        seen[question.id] = question.name
    return questions


def _squad_file(path: Path, split: str) -> Path | None:
    """Find SQuAD's JSON of a split; None where there is only a table."""
    if path.is_file():
        files = [path] if path.suffix == ".json" else []
    else:
        # Once each: validation.json begins with val, valid and validation.
        files = dict.fromkeys(file for name in SPLIT_NAMES[split] for file in sorted(path.glob(f"{name}*.json")))
    squad = []
    for file in files:
        with file.open("rb") as opened:
            if b'"data"' in opened.read(1 << 12):
                squad.append(file)
    if len(squad) > 1:
        raise InputError(f"{path}: {' and '.join(file.name for file in squad)} are both {split}; allowed: one of them")
    return squad[0] if squad else None


def _squad_rows(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        articles = json.loads(file.read_bytes())["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    answers = question.get("answers", [])
                    yield (
                        f"{file}, question {question['id']}",
                        {
                            "id": question["id"],
                            "question": question["question"],
                            "context": paragraph["context"],
                            "answers": {
                                "text": [answer["text"] for answer in answers],
                                "answer_start": [answer["answer_start"] for answer in answers],
                            },
                        },
                    )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file}: not SQuAD's JSON ({type(error).__name__}: {error})") from None


def _question(name: str, values: Mapping[str, Any], labelled: bool) -> Question:
    for column in ("question", "context"):
        value = values.get(column)
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{name}: {column} is {value!r}; allowed: a text that is not blank")
    context = values["context"]
    question = Question(name, str(values.get("id", name)), values["question"], context)
    if not labelled:
        return question
    answers = values.get("answers")
    try:
        columns = answers["text"], answers["answer_start"]
        places = [(str(text), int(start)) for text, start in zip(*columns, strict=True)]
    except (TypeError, KeyError, ValueError):
        raise InputError(
            f"{name}: answers are {str(answers)[:80]}; allowed: lists of text and answer_start, of one length"
        ) from None
    for text, start in places:
        if not text or start < 0 or context[start : start + len(text)] != text:
            begin = max(0, start)
            there = context[begin : begin + len(text)]
            raise InputError(f"{name}: the answer {text!r} is not at answer_start {start}, where {there!r} is")
    return replace(question, answers=tuple(text for text, _ in places), starts=tuple(start for _, start in places))
