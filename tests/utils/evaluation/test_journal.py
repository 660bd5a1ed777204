from __future__ import annotations

from pathlib import Path

import pytest

from bart.errors import InputError
from utils.evaluation.journal import Journal, model_identity
from utils.tasks.task import Prediction

RUN = {"model": "a", "num_beams": 4, "lengths": (1, 2)}
ENTRIES = {
    7: Prediction({"texts": ["one", "another"]}, 1.5, 3, 3, 0.25),
    0: Prediction({"texts": [""]}, 0.0, 1),
    3: Prediction({"texts": ["\u2028 naïve \U0001f600"]}, 2.0, 2, 5),
}


def resume(folder: Path, identity: dict[str, object] = RUN, replace: bool = False, split: str = "test") -> object:
    journal = Journal(folder, split)
    try:
        return journal.resume(identity, replace)
    finally:
        journal.close()


def broken_off(folder: Path, entries: dict[int, Prediction], rank: int = 0) -> Path:
    """Leave what a process leaves that is killed; return its folder."""
    journal = Journal(folder, "test")
    journal.resume(RUN, False)
    journal.open(rank)
    for number, entry in entries.items():
        journal.add(number, entry)
    lines = (journal.folder / f"rank{rank}.jsonl").read_text().splitlines()
    assert len([line for line in lines if line.startswith("{")]) >= len(entries)  # although the file is open
    journal.at_end.close()  # as the system does
    return journal.folder


def test_entries_are_on_the_disk_at_once(tmp_path: Path) -> None:
    broken_off(tmp_path, {7: ENTRIES[7]})
    assert resume(tmp_path) == {7: ENTRIES[7]}
    broken_off(tmp_path, {0: ENTRIES[0]}, rank=0)
    broken_off(tmp_path, {3: ENTRIES[3]}, rank=1)
    assert resume(tmp_path, split="val") == {}
    journal = Journal(tmp_path, "test")
    assert journal.resume(RUN, False) == ENTRIES
    journal.remove()
    journal.close()
    assert [path.name for path in tmp_path.iterdir() if "test" in path.name] == [".test_progress.lock"]
    assert resume(tmp_path) == {}


@pytest.mark.parametrize("torn", ['{"index": 8, "values": {"te', '{"index": 8}', "\n\n", "5", '{"index": 8, "values"'])
def test_a_line_that_was_broken_off_is_left_out(tmp_path: Path, torn: str) -> None:
    folder = broken_off(tmp_path, ENTRIES)
    with (folder / "rank0.jsonl").open("a") as file:
        file.write(torn)
    assert resume(tmp_path) == ENTRIES
    broken_off(tmp_path, {8: ENTRIES[0]})
    assert resume(tmp_path) == {**ENTRIES, 8: ENTRIES[0]}


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        ({**RUN, "num_beams": 5}, "its num_beams is 4, this run's is 5"),
        ({**RUN, "seed": 1}, "its seed is None, this run's is 1"),
        ({"model": "a", "lengths": (1, 2)}, "its num_beams is 4, this run's is None"),
    ],
)
def test_another_runs_progress_is_kept_unless_it_may_be_replaced(
    tmp_path: Path, identity: dict[str, object], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken_off(tmp_path, ENTRIES)
    with pytest.raises(
        InputError, match=rf"\.test_progress holds the progress of another run \({said}\): .* --overwrite_output_dir"
    ):
        resume(tmp_path, identity)
    assert resume(tmp_path) == ENTRIES
    assert resume(tmp_path, identity, replace=True) == {}
    assert said in caplog.text and "anew" in caplog.text


@pytest.mark.parametrize("record", [None, "", "[1]", "{"])
def test_progress_without_its_record_is_of_another_run(tmp_path: Path, record: str | None) -> None:
    folder = broken_off(tmp_path, ENTRIES)
    (folder / "run.json").unlink()
    if record is not None:
        (folder / "run.json").write_text(record)
    with pytest.raises(InputError, match="its run.json cannot be read"):
        resume(tmp_path)


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    first = Journal(tmp_path, "test")
    first.resume(RUN, False)
    with pytest.raises(InputError, match=f"save_dir {tmp_path}: another run is at work there"):
        resume(tmp_path)
    first.close()
    assert resume(tmp_path) == {}


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="save_dir .*file: cannot be written"):
        resume(tmp_path / "file")


def test_models_are_told_apart_by_the_content_of_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"1234")
    (tmp_path / "model" / "config.json").write_text("{}")
    before = model_identity(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    weights.write_bytes(b"1234")  # an export that was written again
    (tmp_path / "model" / "README.md").write_text("Scores of another split.")
    assert model_identity("model") == before
    alone = model_identity(weights)
    weights.write_bytes(b"1235")
    assert model_identity("model") != before and model_identity(weights) != alone
    assert model_identity("facebook/bart-large-cnn") == {"model": "facebook/bart-large-cnn", "model_files": {}}
