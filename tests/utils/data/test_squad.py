"""Questions of SQuAD's files: answers that are misplaced or absent, other layouts, one file for all splits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bart.errors import InputError
from utils.data.squad import Question, read_questions

CONTEXT = "a cat and a dog"


def squad(*answers: list[dict[str, Any]] | None, layout: str = "articles") -> str:
    """A file with a question for each list of answers."""
    questions = [
        {"id": str(number), "question": "what?", **({} if each is None else {"answers": each})}
        for number, each in enumerate(answers)
    ]
    articles = [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": questions}]}]
    return json.dumps(articles if layout == "list" else {"version": "1.1", "data": articles}, indent=2)


def read(folder: Path, content: str, **options: Any) -> list[Question]:
    (folder / "val.json").write_text(content, encoding="utf-8")
    return read_questions(str(folder), "val", **options)


CAT, DOG = {"text": "cat", "answer_start": 2}, {"text": "dog", "answer_start": 12}


@pytest.mark.parametrize("layout", ["articles", "list"])
def test_layouts(layout: str, tmp_path: Path) -> None:
    first, second = read(tmp_path, squad([CAT], [DOG, CAT], layout=layout))
    assert (first.answers, first.starts, first.context) == (("cat",), (2,), CONTEXT)
    assert (second.answers, second.starts) == (("dog", "cat"), (12, 2))
    long = squad([CAT], layout=layout).replace(CONTEXT, f"{CONTEXT} " * 100_000)
    assert read(tmp_path, long)[0].answers == ("cat",)


def test_misplaced_answers_are_counted_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong = [{"text": "cat", "answer_start": start} for start in (0, 1, 3, 40, -1, 5, 6)]
    content = squad(wrong[:3], [CAT, *wrong[3:]], [DOG], [])
    with pytest.raises(InputError) as refused:
        read(tmp_path, content)
    message = str(refused.value)
    assert message.startswith("7 answers of the val split are not at their places: ")
    assert message.endswith("answer 'cat' is not at answer_start 0; --skip_bad_answers leaves them out")
    kept = read(tmp_path, content, skip_bad_answers=True)
    assert [(question.id, question.answers) for question in kept] == [("1", ("cat",)), ("2", ("dog",)), ("3", ())]
    assert "7 answers of the val split are not at their places and left out, with 1 questions that have" in caplog.text


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([CAT, {"text": "cat"}], "question 0: answers are .*; allowed: lists of text and answer_start"),
        (None, "question 0: answers are None; allowed: .*, or --predict"),
        (["cat"], "val.json: not SQuAD's JSON .AttributeError"),
    ],
)
def test_answers_without_places(answers: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, squad(answers))
    if answers != ["cat"]:
        assert read(tmp_path, squad(answers), labelled=False)[0].answers is None


def test_impossible_questions_need_no_answers(tmp_path: Path) -> None:
    content = json.loads(squad(None))
    content["data"][0]["paragraphs"][0]["qas"][0]["is_impossible"] = True
    assert read(tmp_path, json.dumps(content))[0].answers == ()


@pytest.mark.parametrize("language", ["ar", "en", "zh"])
def test_one_file_is_split_by_its_contexts(language: str, shared: Path) -> None:
    file = shared / "data" / "xquad" / f"xquad.{language}.json"
    if not file.is_file():
        pytest.skip("XQuAD is not there")
    parts = {split: read_questions(str(file), split) for split in ("train", "val", "test")}
    contexts = [{question.context for question in part} for part in parts.values()]
    assert sum(map(len, contexts)) == len(set.union(*contexts)) == 240
    assert sum(map(len, parts.values())) == 1190
