"""The record of unfinished work: what was noted is read again, and nothing else is."""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bart.errors import InputError
from utils.app.errors import RunError
from utils.app.unfinished import Unfinished, model_identity

RUN = {"model": "a", "num_beams": 4, "lengths": (1, 2)}
VALUES: list[Any] = [[7, {"texts": ["one", "another"]}], "", {"\u2028 naïve": "\U0001f600\ud800", "loss": 1.5}, None]


def noted(path: Path, identity: dict[str, object] = RUN, replaces: bool = False) -> list[Any]:
    """The values that a later run finds."""
    with closing(Unfinished(path, identity, "name another file", replaces)) as work:
        values = list(work.values())
        assert work.done == len(values)
        return values


def add(path: Path, *values: Any, identity: dict[str, object] = RUN) -> bytes:
    """Leave what a run leaves that is killed after these."""
    work = Unfinished(path, identity, "name another file")
    for number, value in enumerate(values, work.done + 1):
        work.add(value)
        assert path.read_bytes().count(b"\n") == 1 + number  # at once, although the file is open
    work.close()
    return path.read_bytes()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "new" / "work.jsonl"


def test_values_are_read_by_the_runs_that_follow(file: Path) -> None:
    add(file, *VALUES[:1])
    add(file, *VALUES[1:])
    assert noted(file) == VALUES
    with closing(Unfinished(file, RUN, "")) as work:
        work.finish()
    assert not file.exists() and noted(file) == []
    add(file, *VALUES, identity={})
    assert noted(file, {}) == VALUES


def test_every_flipped_bit_is_seen(file: Path) -> None:
    whole = add(file, *VALUES)
    ends = [place for place, byte in enumerate(whole, 1) if byte == ord("\n")]
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        line = sum(end <= place for end in ends)
        if line == 0:
            with pytest.raises(InputError, match="another run .its first line cannot be read.: go on .*, name another"):
                noted(file)
        else:
            assert noted(file) == VALUES[: line - 1]
            assert add(file, *VALUES[line - 1 :]) == whole


@pytest.mark.parametrize("change", ["drop", "repeat", "swap", "tear", "of another run", "junk"])
def test_lines_that_are_not_as_they_were_written_are_cut_off(change: str, file: Path) -> None:
    other = add(file.with_name("other"), *VALUES, identity={**RUN, "seed": 1}).splitlines(keepends=True)
    whole = add(file, *VALUES)
    for number in range(1, 5):
        lines = whole.splitlines(keepends=True)
        line, later = lines[number], lines[number + 1 :]
        lines[number:] = {
            "drop": later,
            "repeat": [line, line, *later],
            "swap": [*later[:1], line, *later[1:]],
            "tear": [line[:-1]],
            "of another run": [other[number], *later],
            "junk": [line, b"\xff\n", b"[" * 9999 + b"\n", *later],
        }[change]
        file.write_bytes(b"".join(lines))
        kept = number if change in ("repeat", "junk") or (change == "swap" and not later) else number - 1
        assert noted(file) == VALUES[:kept]
        assert add(file, *VALUES[kept:]) == whole


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        ({**RUN, "num_beams": 5}, "its num_beams is 4, this run's is 5"),
        ({**RUN, "seed": 1}, "its seed is None, this run's is 1"),
        ({"model": "a", "lengths": (1, 2)}, "its num_beams is 4, this run's is None"),
    ],
)
def test_other_work_is_kept_unless_it_may_be_replaced(
    file: Path, identity: dict[str, object], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = add(file, *VALUES)
    with pytest.raises(InputError, match=rf"work\.jsonl holds the progress of another run \({said}\): go on with"):
        noted(file, identity)
    assert file.read_bytes() == whole
    assert noted(file, {**dict(reversed(RUN.items())), "later": None}) == []  # as if it were not known
    add(file, *VALUES)
    assert noted(file, identity, replaces=True) == []
    assert said in caplog.text and "anew" in caplog.text and not file.exists()


def test_a_full_disk_at_any_byte(file: Path) -> None:
    whole = add(file, *VALUES)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in range(0, len(whole), 3):
        file.unlink()
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            with pytest.raises(RunError, match=r"work\.jsonl: cannot be written .File too large"):
                add(file, *VALUES)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert len([*file.parent.iterdir()]) == file.exists()
        assert add(file, *VALUES[len(noted(file)) :]) == whole


@pytest.mark.parametrize("change", [lambda file: file.write_bytes(file.read_bytes()[:-5]), Path.unlink])
def test_a_file_that_changes_meanwhile_ends_the_run(change: Callable[[Path], object], file: Path) -> None:
    with closing(Unfinished(file, RUN, "")) as work:
        for value in VALUES:
            work.add(value)
        change(file)
        with pytest.raises(RunError, match=r"work\.jsonl: its content changed meanwhile; the same command goes on"):
            list(work.values())


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
