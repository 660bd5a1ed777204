"""Questions about texts: SQuAD's JSON, or tables with the columns of its sets on the Hub."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from reprlib import repr as shortened
from typing import Any

from bart.errors import InputError
from utils.data.columns import Record, TableOptions, text_in, without_blank
from utils.data.splits import EVERY, WHOLE, Choice, check_split
from utils.data.tables import one_line, read_records

logger = logging.getLogger(__name__)
COLUMNS = ("question", "context")


@dataclass(frozen=True)
class Question:
    """A question; answers are parts of the context, which begin at `starts`, and None if they are unknown."""

    name: str
    id: str
    question: str
    context: str
    answers: tuple[str, ...] | None = None
    starts: tuple[int, ...] = ()

    def misplaced(self) -> list[tuple[str, int]]:
        """The answers that are not at their place in the context, with this place."""
        pairs = zip(self.answers or (), self.starts, strict=True)
        return [(text, at) for text, at in pairs if not text or at < 0 or not self.context.startswith(text, at)]


def read_questions(
    data_dir: str, split: str, choice: Choice = EVERY, labelled: bool = True, skip_bad_answers: bool = False
) -> list[Question]:
    """Read a split's questions, those that are chosen, from SQuAD's JSON or what `read_records` takes."""
    rows = read_records(data_dir, split, lambda _: "context", replace(choice, limit=-1))
    rows = Choice(limit=choice.limit).of(
        rows, lambda row: f"{row.values.get('question')}\n{one_line(str(row.values.get('context')))}"
    )
    rows = without_blank(rows, lambda row: question_of(*row), choice.tables.skip_blank)
    questions = [question_of(*row, labelled) for row in rows]
    bad = [(question, *pair) for question in questions for pair in question.misplaced()]
    if bad:
        text = f"{len(bad)} answers of the {split} split are not at their places"
        if not skip_bad_answers:
            question, answer, start = bad[0]
            where = f"{question.name}: the answer {answer!r} is not at answer_start {start}"
            raise InputError(f"{text}: {where}; --skip_bad_answers leaves them out")
        kept = [_without_misplaced(question) for question in questions]
        questions = [now for now, before in zip(kept, questions, strict=True) if now.answers or not before.answers]
        logger.warning("%s and left out, with %d questions that have no others", text, len(kept) - len(questions))
    check_split(questions, data_dir, split, "questions")
    return list(_by_id(questions).values())


def read_answers(path: str, tables: TableOptions) -> dict[str, Question]:
    """Read all questions of a file, by their ids; their answers may stand anywhere."""
    rows = read_records(path, WHOLE, lambda _: "context", Choice(tables=tables))
    return _by_id(question_of(*row, labelled=True) for row in rows)


def _by_id(questions: Iterable[Question]) -> dict[str, Question]:
    """Questions by their ids, which must differ."""
    seen: dict[str, Question] = {}
    for question in questions:
        if (other := seen.setdefault(question.id, question)) is not question:
            raise InputError(f"{question.name}: its id {question.id!r} is that of {other.name}; allowed: each id once")
    return seen


def question_of(name: str, values: Mapping[str, Any], labelled: bool = False) -> Question:
    """The question of a row; with `labelled` its answers, as they are given."""
    for column in COLUMNS:
        text_in(Record(name, values), column)
    question = Question(name, str(values.get("id", name)), values["question"], values["context"])
    if not labelled:
        return question
    answers = values.get("answers")
    if isinstance(answers, list) and all(isinstance(answer, Mapping) for answer in answers):
        answers = {name: [answer.get(name) for answer in answers] for name in ("text", "answer_start")}
    try:
        texts, starts = tuple(map(str, answers["text"])), tuple(map(int, answers["answer_start"]))
        if len(texts) != len(starts):
            raise ValueError
    except (TypeError, KeyError, ValueError):
        allowed = "lists of text and answer_start, or --predict"
        raise InputError(f"{name}: answers are {shortened(answers)}; allowed: {allowed}") from None
    return replace(question, answers=texts, starts=starts)


def _without_misplaced(question: Question) -> Question:
    pairs = zip(question.answers, question.starts, strict=True)
    good = [pair for pair in pairs if pair not in question.misplaced()]
    return replace(question, answers=tuple(text for text, _ in good), starts=tuple(start for _, start in good))
