from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bart.errors import InputError
from utils.corpora.data_directory import PAIR_FILES
from utils.corpora.sample_corpus import main, sample_stories, write_sample_corpus

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The corpus of the quickstart, file name -> lines."""
    folder = tmp_path_factory.mktemp("corpus")
    write_sample_corpus(folder)
    return {file: (folder / file).read_text(encoding="utf-8").split("\n")[:-1] for file in PAIR_FILES}


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--output_dir", str(tmp_path), "--n_train", "5", "--n-val", "2", "--n_test", "3"]
    main(command)
    assert capsys.readouterr().out == f"{tmp_path}: 5 train, 2 val, 3 test examples\n"
    (tmp_path / "vocab.json").write_text("mine")
    (tmp_path / "tags/val.jsonl").unlink()
    main(command)
    assert "is there already" in capsys.readouterr().out
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert len(before) == 6 + 2 + 3 * 3 + 1
    with pytest.raises(InputError, match="is there already, made otherwise .its seed is 42, this run's is 7"):
        main([*command, "--seed", "7"])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_bytes_depend_on_the_seed_alone(tmp_path: Path) -> None:
    # Another process has another hash seed.
    command = [sys.executable, "-m", "utils.corpora.sample_corpus", "--output_dir", str(tmp_path), "--seed", "1"]
    command += ["--n_train", "50", "--n_val", "5", "--n_test", "50"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    lines = (tmp_path / "test.source").read_text().splitlines()
    assert lines == [story.article for story in sample_stories("test", 50, seed=1)]
    assert not set(lines) & {story.article for story in sample_stories("test", 50, seed=2)}
    # Nor do they depend on the size of the split.
    assert list(sample_stories("val", 3)) == list(sample_stories("val", 30))[:3]


def test_bytes_are_those_of_every_python_version(corpus: dict[str, list[str]]) -> None:
    digest = hashlib.sha256("\n".join(line for file in PAIR_FILES for line in corpus[file]).encode()).hexdigest()
    # Recorded once; the same under Python 3.10 to 3.13. A change of the corpus is meant to change it, nothing else is.
    assert digest == "217110c2448eb70d383a9cb764be1e192ddf501bf389b8895762da58a32ba990"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"file/below: cannot be written \(Not a directory\)"):
        main(["--output_dir", str(tmp_path / "file/below")])


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The training rows of topics, tags and questions."""
    folder = tmp_path_factory.mktemp("sample")
    write_sample_corpus(folder, {"train": 300, "val": 3, "test": 2})
    names = ("topics", "tags", "questions")
    return {name: [json.loads(line) for line in (folder / name / "train.jsonl").open()] for name in names}


def test_topics_are_those_of_the_stories(tasks: dict[str, list[dict[str, Any]]]) -> None:
    stories = list(sample_stories("train", 300))
    assert [(row["text"], row["label"]) for row in tasks["topics"]] == [(s.article, s.topic) for s in stories]
    assert len({story.topic for story in stories}) == 15


def test_tags_cover_the_names(tasks: dict[str, list[dict[str, Any]]]) -> None:
    kinds: dict[str, set[str]] = {}
    for row, story in zip(tasks["tags"], sample_stories("train", 300), strict=True):
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


def test_questions_are_answered_by_their_articles(tasks: dict[str, list[dict[str, Any]]]) -> None:
    questions = tasks["questions"]
    for row in questions:
        places = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        assert places
        assert all(row["context"][start : start + len(text)] == text for text, start in places)
        assert row["answers"]["text"]
    assert len({row["question"] for row in questions}) > 30
    assert [row["id"] for row in questions] == [str(number) for number in range(300)]
