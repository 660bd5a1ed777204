"""Topics, tags and questions of the sample corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bart.errors import InputError
from utils.corpora.sample_corpus import sample_stories
from utils.corpora.sample_tasks import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    main(["--output_dir", str(folder), "--n_train", "300", "--n_val", "3", "--n_test", "2"])
    return folder


def rows(folder: Path, name: str, split: str = "train") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name / f"{split}.jsonl").read_text().splitlines()]


def test_topics_are_those_of_the_stories(folder: Path) -> None:
    stories = list(sample_stories("train", 300))
    assert [(row["text"], row["label"]) for row in rows(folder, "topics")] == [(s.article, s.topic) for s in stories]
    assert len({story.topic for story in stories}) == 15


def test_tags_cover_the_names(folder: Path) -> None:
    kinds: dict[str, set[str]] = {}
    for row, story in zip(rows(folder, "tags"), sample_stories("train", 300), strict=True):
        assert len(row["words"]) == len(row["tags"])
        names = {value for field, value in story.values.items() if field.startswith(("person", "place", "org"))}
        tagged, name = set(), ""
        for word, tag in [*zip(row["words"], row["tags"], strict=True), ("", "O")]:
            if name and not tag.startswith("I-"):
                tagged.add(name)
                name = ""
            if tag != "O":
                name = f"{name} {word}".strip()
                kinds.setdefault(tag, set()).add(word)
        assert tagged == {name for name in names if name in story.article}
    assert set(kinds) == {"B-PER", "I-PER", "B-LOC", "B-ORG"}


def test_questions_are_answered_by_their_articles(folder: Path) -> None:
    questions = rows(folder, "questions")
    for row in questions:
        places = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        assert places
        assert all(row["context"][start : start + len(text)] == text for text, start in places)
        assert row["answers"]["text"]
    assert len({row["question"] for row in questions}) > 30
    assert [row["id"] for row in questions] == [str(number) for number in range(300)]


def test_files_of_other_rows_are_not_taken_for_these(folder: Path) -> None:
    before = (folder / "tags/val.jsonl").read_bytes()
    main(["--output_dir", str(folder), "--n_train", "300", "--n_val", "3", "--n_test", "2"])
    with pytest.raises(InputError, match=r"topics/val\.jsonl is there already, made otherwise, and is not overwritten"):
        main(["--output_dir", str(folder), "--n_train", "300", "--n_val", "4", "--n_test", "2"])
    assert (folder / "tags/val.jsonl").read_bytes() == before
