"""Files and folders that a command writes."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from bart.errors import InputError
from utils.app.errors import RunError
from utils.app.output_files import check_output, held, writable_folder, write_whole

ROOT = Path(__file__).parents[3]


def test_an_output_must_be_a_file_in_a_directory_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for good in (None, "new.json", tmp_path / "new.json"):
        check_output("out", good)
    for bad in (tmp_path, tmp_path / "absent" / "new.json"):
        with pytest.raises(InputError, match=f"^--out is '{bad}'; allowed: a file in a directory that exists$"):
            check_output("out", bad)
    assert not list(tmp_path.iterdir())
    for bad, reason in (("a" * 250, "File name too long"), ("/proc/x", "No such file or directory")):
        with pytest.raises(InputError, match=rf"^--out {bad}: cannot be written \({reason}\)$"):
            check_output("out", bad)


def test_an_output_must_not_be_an_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("a text")
    (tmp_path / "other.txt").write_text("a text")
    (tmp_path / "link.txt").symlink_to("in.txt")
    os.link("in.txt", "hard.txt")
    for output in ("in.txt", tmp_path / "in.txt", "link.txt", "hard.txt"):
        check_output("out", output, None, "nowhere", "other.txt")
        with pytest.raises(InputError, match=f"^--out is {output}, the file that is read; allowed: another one$"):
            check_output("out", output, None, "other.txt", "link.txt")
    check_output("out", "/dev/null", "/dev/null")


def test_a_device_or_a_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # which waits for no other end
    check_output("out", pipe)
    write_whole(pipe, "summary\n")
    assert os.read(reader, 100) == b"summary\n"
    assert pipe.is_fifo()
    os.close(reader)


def test_what_was_made_and_not_used_goes_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    code = (
        "from utils.app.output_files import held, writable_folder as make\n"
        "for name in ('own', 'new/a/b', 'used/a', 'new/a'): make('folder', name)\n"
        "open('used/file', 'w')\n"
        "folder = make('folder', 'logged', log='log.txt')\n"
        "open(folder / 'log.txt', 'w')\n"
        "with held(folder / '.lock', ''): pass\n"
        "raise SystemExit(2)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 2
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "own", "used"]


def test_a_folder_is_made_and_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = writable_folder("--output_dir", tmp_path / "a" / "b")
    assert folder.is_dir() and not list(folder.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=f"^--output_dir {tmp_path}/file: cannot be written "):
        writable_folder("--output_dir", tmp_path / "file")

    def full(**options: object) -> None:
        raise OSError(errno.ENOSPC, "a library's words")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(RunError, match="No space left"):
        writable_folder("--output_dir", folder)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_stops_no_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / ".lock").touch()  # of a run that was killed
    monkeypatch.setattr(fcntl, "flock", flock)
    with held(tmp_path / ".lock", "a run is at work"):
        pass


def test_a_lock_file_that_was_removed_on_nfs_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:  # waits until its holder has removed it: NFS renames a file that others have open
        if not (tmp_path / ".nfs1").exists():
            (tmp_path / ".lock").rename(tmp_path / ".nfs1")

    monkeypatch.setattr(fcntl, "flock", flock)
    with held(tmp_path / ".lock", "a run is at work"):
        assert (tmp_path / ".lock").exists()


def _take_turns(folder: Path, overlaps: Any) -> None:
    """Hold a lock again and again; some locks go with their folder, as that of a finished `make_shards` does."""
    taken = 0
    while taken < 60:
        lock = folder / ("kept" if taken % 2 else "goes") / ".lock"
        with suppress(InputError, FileExistsError), held(lock, "another process is at work"):  # mkdir saw it vanish
            try:
                os.close(os.open(folder / lock.parent.name[0], os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                overlaps.value += 1
            os.sched_yield()
            (folder / lock.parent.name[0]).unlink(missing_ok=True)
            if lock.parent.name == "goes":
                shutil.rmtree(lock.parent, ignore_errors=True)
            taken += 1


def test_no_two_processes_hold_a_lock(tmp_path: Path) -> None:
    context = get_context("fork")
    overlaps = context.Value("i", 0)
    processes = [context.Process(target=_take_turns, args=(tmp_path, overlaps)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4 and overlaps.value == 0
    assert (tmp_path / "kept" / ".lock").exists()


def test_loader_workers_that_outlive_their_process_hold_no_lock(tmp_path: Path) -> None:
    context = get_context("fork")
    barrier = context.Barrier(2)
    child = context.Process(target=lambda: (barrier.wait(), barrier.wait()))
    with held(tmp_path / ".lock", "a run is at work"):
        os.link(tmp_path / ".lock", tmp_path / "left")  # as a kill leaves it
        child.start()
        barrier.wait()
        with pytest.raises(InputError, match="^a run is at work$"), held(tmp_path / "left", "a run is at work"):
            pass
    with held(tmp_path / "left", "a run is at work"):
        barrier.wait()
    child.join()
