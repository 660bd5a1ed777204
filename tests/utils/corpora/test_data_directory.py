from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from bart.errors import InputError
from utils.corpora.data_directory import DROPPED, PAIR_FILES, PROVENANCE, DataWriter, is_made, making
from utils.data.splits import SPLITS
from utils.data.tables import Row


def add_examples(data: DataWriter) -> None:
    for split in SPLITS:
        data.add(split, Row("1", "a text", "a summary"))


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
    with making(folder, {"set": "made up"}) as data:
        if kind != "new":
            assert list(folder.parent.iterdir()) == before  # its parent may be one that the user cannot write
        add_examples(data)
    assert {path.name for path in folder.iterdir()} == {*PAIR_FILES, PROVENANCE, DROPPED}
    assert {path.name for path in folder.resolve().parent.iterdir()} == {"out"}
    assert folder.is_symlink() == kind.startswith("link")
    assert is_made(folder, {"set": "made up"})


def test_a_run_that_was_killed_leaves_nothing_that_stays(tmp_path: Path) -> None:
    def begin() -> None:
        with making(tmp_path / "out", {}) as data:
            add_examples(data)
            os._exit(9)

    for _ in range(2):
        process = multiprocessing.get_context("fork").Process(target=begin)
        process.start()
        process.join()
        assert process.exitcode == 9
        (tmp_path / "out").mkdir(exist_ok=True)  # of the second run, it is there
    (tmp_path / "out" / "of others").touch()
    with pytest.raises(InputError, match="is there already and is not overwritten"), making(tmp_path / "out", {}):
        raise AssertionError
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["of others"]
    (tmp_path / "out" / "of others").unlink()
    with making(tmp_path / "out", {"set": "made up"}) as data:
        add_examples(data)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*PAIR_FILES, PROVENANCE, DROPPED}


def test_two_runs_do_not_make_one_folder_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with making(folder, {}) as data:
        with pytest.raises(InputError, match="out: another run is making it"), making(folder, {}):
            raise AssertionError("the second run must not begin")
        add_examples(data)
    assert (folder / PROVENANCE).exists()


def test_other_options_are_named(tmp_path: Path) -> None:
    facts = {"set": "made up", "seed": 1, "sizes": {"train": 1}}
    with making(tmp_path / "out", facts) as data:
        data.facts["commit"] = "abc"
        add_examples(data)
    assert is_made(tmp_path / "out", facts)
    assert json.loads((tmp_path / "out" / PROVENANCE).read_text())["commit"] == "abc"
    with pytest.raises(InputError, match=r"out is there already, made otherwise \(its seed is 1, this run's is 2\)"):
        is_made(tmp_path / "out", facts | {"seed": 2})
    assert not is_made(tmp_path / "out", facts | {"set": "another"})
