from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bart.errors import InputError
from utils.corpora.data_directory import DROPPED, PAIR_FILES, PROVENANCE, is_made, write_data_directory
from utils.data.splits import SPLITS
from utils.data.tables import Row


def write(folder: Path, facts: dict[str, Any], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Write a data directory, and call a function behind its rows."""

    def rows() -> Iterator[tuple[str, Row]]:
        yield from ((split, Row("1", "a text", "a summary")) for split in SPLITS)
        meanwhile()

    write_data_directory(folder, facts, rows())


@pytest.mark.parametrize("kind", ["new", "empty", "link to an empty folder", "link to a new folder"])
def test_a_folder_may_be_new_or_empty_or_a_link_to_one(kind: str, tmp_path: Path) -> None:
    folder, place = tmp_path / "data/out", tmp_path / "disk/out"
    folder.parent.mkdir()
    if kind == "empty":
        folder.mkdir()
    if kind.startswith("link"):
        folder.symlink_to(place)
    if kind == "link to an empty folder":
        place.mkdir(parents=True)
    before = list(folder.parent.iterdir())

    def check() -> None:
        assert kind == "new" or list(folder.parent.iterdir()) == before  # it may be one that the user cannot write

    write(folder, {"set": "made up"}, check)
    assert {path.name for path in folder.iterdir()} == {*PAIR_FILES, PROVENANCE, DROPPED}
    assert {path.name for path in folder.resolve().parent.iterdir()} == {"out"}
    assert folder.is_symlink() == kind.startswith("link")
    assert is_made(folder, {"set": "made up"})


def test_a_run_that_was_killed_leaves_nothing_that_stays(tmp_path: Path) -> None:
    for _ in range(2):
        killed = partial(os._exit, 9)
        process = multiprocessing.get_context("fork").Process(target=write, args=(tmp_path / "out", {}, killed))
        process.start()
        process.join()
        assert process.exitcode == 9
        (tmp_path / "out").mkdir(exist_ok=True)  # of the second run, it is there
    (tmp_path / "out" / "of others").touch()
    with pytest.raises(InputError, match="is there already and is not overwritten"):
        write(tmp_path / "out", {})
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["of others"]
    (tmp_path / "out" / "of others").unlink()
    write(tmp_path / "out", {"set": "made up"})
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*PAIR_FILES, PROVENANCE, DROPPED}


def test_two_runs_do_not_make_one_folder_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "out"

    def second() -> None:
        with pytest.raises(InputError, match="out: another run is making it"):
            write(folder, {}, lambda: pytest.fail("the second run must not begin"))

    write(folder, {}, second)
    assert (folder / PROVENANCE).exists()
