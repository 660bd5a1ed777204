"""Work that the first process of a machine does for all: on real processes, as torchrun starts them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest
import torch.distributed as dist

from tests import forked
from tests.tiny_run import write_tiny_run
from utils.app import distributed
from utils.app.distributed import told_by_first
from utils.data import token_cache
from utils.data.splits import MissingSplit
from utils.recipes import data
from utils.tasks import text_to_text


def refuse_in_others() -> None:
    """Let processes but the first neither read texts to check them, nor digest a file, nor make a directory."""

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("another process than the first does it, too")

    if os.environ["LOCAL_RANK"] != "0":
        text_to_text.check_pairs = token_cache.file_digest = data.prepared = refuse  # type: ignore[assignment]


@pytest.mark.parametrize("is_good", [True, False])
def test_the_first_process_checks_texts_and_all_end_alike(is_good: bool, tmp_path: Path) -> None:
    options = [*write_tiny_run(tmp_path / "tiny"), "--do_train", "--max_steps", "1", "--val_ratio", "0.3"]
    (tmp_path / "tiny" / "data" / "val.source").unlink()
    (tmp_path / "tiny" / "data" / "val.target").unlink()
    source = tmp_path / "tiny" / "data" / "train.source"
    if not is_good:
        source.write_text(source.read_text() + "\n")
    output = tmp_path / "run"
    statuses = forked.finish(forked.start(options, output, ranks=2, before=refuse_in_others))
    logs = [forked.log_of(output, rank).read_text() for rank in range(2)]
    if is_good:
        assert statuses == [0, 0], logs[1]
        return
    error = (
        f"finetune.py: error: {source}, line 23: blank line; every line must hold an example (1 of 23 are blank: 23)\n"
    )
    assert statuses == [2, 2] and [log.endswith(error) and "Traceback" not in log for log in logs] == [True, True], logs


@pytest.mark.parametrize("launcher", ["Lightning", "torchrun"])
def test_what_the_first_process_of_each_machine_gives(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, asked = dist.HashStore() if launcher == "torchrun" else None, list[str]()

    missing = MissingSplit("none there")

    def work() -> tuple[str, Path]:
        asked.append(place)
        if len(asked) == 3:
            raise missing from OSError(errno.ENOSPC, "full")  # by which the first process chooses its exit status
        return place, Path("a=b")

    monkeypatch.setattr(distributed, "meeting", lambda: store)
    for machine in ("0", "1"):
        for rank in ("0", "1", "2"):
            place = f"{machine} {rank}"
            for name, value in (("GROUP_RANK", machine), ("LOCAL_RANK", rank), ("RANK", rank)):
                monkeypatch.setenv(name, value)
            assert told_by_first("a thing, x=1", work) == (f"{machine} 0", Path("a=b"))
    assert asked == ["0 0", "1 0"]
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        with pytest.raises(MissingSplit, match="^none there$") as caught:
            told_by_first("another thing", work)
        assert (caught.value is missing) == (rank == "0")
    assert len(asked) == 3


def test_a_process_of_an_unknown_launcher_does_the_work_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert told_by_first("a thing of its own", lambda: 3) == 3
