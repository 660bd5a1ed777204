from __future__ import annotations

import os
from pathlib import Path

import pytest

from bart.errors import InputError
from utils.evaluation.journal import Decoded, Journal, model_identity

RUN = {"model": "a", "num_beams": 4, "lengths": (1, 2)}
ENTRIES = {7: Decoded(["one", "another"], 3), 0: Decoded([""], 0), 3: Decoded(["\u2028 naïve \U0001f600"], 5)}


def broken_off(folder: Path, entries: dict[int, Decoded], rank: int = 0) -> Journal:
    """A journal as a process leaves it that is killed."""
    journal = Journal(folder, "test")
    journal.resume(RUN)
    journal.open(rank)
    for index, entry in entries.items():
        journal.add(index, entry)
    return journal


def test_what_is_added_is_there_at_once_and_later(tmp_path: Path) -> None:
    first = broken_off(tmp_path, {7: ENTRIES[7]})
    assert Journal(tmp_path, "test").resume(RUN) == {7: ENTRIES[7]}
    assert first.file is not None and not first.file.closed
    broken_off(tmp_path, {0: ENTRIES[0]}, rank=0)
    broken_off(tmp_path, {3: ENTRIES[3]}, rank=1)
    journal = Journal(tmp_path, "test")
    assert journal.resume(RUN) == ENTRIES
    assert Journal(tmp_path, "val").resume(RUN) == {}
    journal.remove()
    assert not journal.folder.exists()
    assert Journal(tmp_path, "test").resume(RUN) == {}


@pytest.mark.parametrize("torn", ['{"index": 8, "texts": ["ab', '{"index": 8}', "\n\n", "5", '{"index": 8, "texts"'])
def test_a_line_that_was_broken_off_is_left_out(tmp_path: Path, torn: str) -> None:
    journal = broken_off(tmp_path, ENTRIES)
    with (journal.folder / "rank0.jsonl").open("a") as file:
        file.write(torn)
    assert Journal(tmp_path, "test").resume(RUN) == ENTRIES
    broken_off(tmp_path, {8: Decoded(["new"], 1)})
    assert Journal(tmp_path, "test").resume(RUN) == {**ENTRIES, 8: Decoded(["new"], 1)}


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        ({**RUN, "num_beams": 5}, "its num_beams is 4, this run's is 5"),
        ({**RUN, "seed": 1}, "its seed is None, this run's is 1"),
        ({"model": "a", "lengths": (1, 2)}, "its num_beams is 4, this run's is None"),
    ],
)
def test_another_runs_journal_is_thrown_away_and_that_is_said(
    tmp_path: Path, identity: dict[str, object], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken_off(tmp_path, ENTRIES)
    assert Journal(tmp_path, "test").resume(identity) == {}
    assert said in caplog.text and "anew" in caplog.text
    assert Journal(tmp_path, "test").resume(identity) == {}


@pytest.mark.parametrize("record", [None, "", "[1]", "{"])
def test_a_journal_without_its_record_is_of_another_run(tmp_path: Path, record: str | None) -> None:
    journal = broken_off(tmp_path, ENTRIES)
    (journal.folder / "run.json").unlink()
    if record is not None:
        (journal.folder / "run.json").write_text(record)
    assert Journal(tmp_path, "test").resume(RUN) == {}


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="save_dir .*file: cannot be written"):
        Journal(tmp_path / "file", "test").resume(RUN)


def test_models_are_told_apart_by_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"1234")
    (tmp_path / "model" / "config.json").write_text("{}")
    before = model_identity(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    assert model_identity("model") == before
    os.utime(weights, (1, 1))
    assert model_identity("model") != before
    alone = model_identity(weights)
    weights.write_bytes(b"12345")
    os.utime(weights, (1, 1))
    assert model_identity(weights) != alone
    assert model_identity("facebook/bart-large-cnn") == {"model": "facebook/bart-large-cnn", "model_files": {}}
