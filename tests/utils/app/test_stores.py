"""Places in object stores, on a server of moto's: what is fetched, what is published, what is refused."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
import threading
from argparse import ArgumentTypeError
from functools import partial
from pathlib import Path

import pytest
import s3fs
import torch.distributed as dist

from bart.errors import InputError
from utils.app import distributed, stores
from utils.app.errors import RunError
from utils.app.stores import fetch, in_store, local_path, publish


def write(bucket: str, name: str, text: str) -> None:
    s3fs.S3FileSystem().pipe_file(f"{bucket}/{name}", text.encode())


def read(bucket: str) -> dict[str, str]:
    store = s3fs.S3FileSystem()
    store.invalidate_cache()
    prefix = f"{bucket.removeprefix('s3://')}/"
    return {name.removeprefix(prefix): store.cat_file(name).decode() for name in store.find(bucket)}


def test_a_folder_is_fetched_and_again_only_where_it_changed(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run/a.txt", "run/export/b.txt", "run2/c.txt", "run/folder/"):
        write(bucket, name, name)
    folder = Path(fetch(f"{bucket}/run/"))
    assert str(folder) == fetch(f"{bucket}/run") == local_path(f"{bucket}/run") and folder.name == "run"
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {"a.txt", "b.txt"}

    fetched: list[str] = []
    get_file = s3fs.S3FileSystem._get_file

    async def counted(fs: s3fs.S3FileSystem, there: str, *rest: object, **options: object) -> object:
        fetched.append(there)
        return await get_file(fs, there, *rest, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_get_file", counted)
    s3fs.S3FileSystem.clear_instance_cache()
    write(bucket, "run/a.txt", "RUN/A.TXT")  # as long as before
    (folder / "left.txt").write_text("by a killed run")
    (folder / "previous.ckpt").write_text("by a killed run")
    (folder / ".cache").write_text("of this machine")
    (folder / "export" / "b.txt").unlink()
    fetch(f"{bucket}/run")
    assert fetched == ["bucket/run/a.txt", "bucket/run/export/b.txt"]
    assert (folder / "a.txt").read_text() == "RUN/A.TXT"
    assert {path.name for path in folder.iterdir()} == {"a.txt", "export", ".cache"}


def test_what_is_published_is_what_is_there(bucket: str) -> None:
    place = f"{bucket}/deep/run"
    folder = Path(fetch(place, may_be_missing=True))
    (folder / "export").mkdir(parents=True)
    for name in ("log.txt", "last.ckpt", "previous.ckpt", "_epoch1_step2.ckpt", "export/model", ".lock"):
        (folder / name).write_text(name)
    publish(place)
    names = {"log.txt", "last.ckpt", "_epoch1_step2.ckpt", "export/model"}
    assert read(f"{place}") == {f"{name}": name for name in names}
    (folder / "last.ckpt").write_text("newer")
    (folder / "_epoch1_step2.ckpt").unlink()
    publish(place)
    assert read(place) == {"log.txt": "log.txt", "last.ckpt": "newer", "export/model": "export/model"}


def test_the_newest_checkpoint_gets_its_name_last_and_goes_on_after_a_failure(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{bucket}/run"
    folder = Path(fetch(place, may_be_missing=True))
    folder.mkdir(parents=True)
    for name in ("last.ckpt", "metrics.csv", "_epoch1_step2.ckpt"):
        (folder / name).write_text(name)
    put_file, written = s3fs.S3FileSystem._put_file, []

    async def failing(fs: s3fs.S3FileSystem, here: str, *rest: object, **options: object) -> object:
        written.append(Path(here).name)
        if Path(here).name == "last.ckpt" and written.count("last.ckpt") == 1:
            raise OSError("the network is away")
        return await put_file(fs, here, *rest, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_put_file", failing)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(RunError, match="^s3://bucket/run cannot be reached or written .OSError: the") as caught:
        publish(place)
    assert str(caught.value).endswith(f"; its copy is {folder}")
    assert "last.ckpt" not in read(place) and written[-1] == "last.ckpt" and len(written) == 3
    publish(place)
    assert read(place)["last.ckpt"] == "last.ckpt"


def test_names_that_lead_elsewhere_or_are_hidden_stay_in_the_store(bucket: str, tmp_path: Path) -> None:
    place, outside = f"{bucket}/a run?", tmp_path / "outside"
    outside.write_text("here")
    folder = Path(fetch(place, may_be_missing=True))
    for name in (f"/{outside}", f"{'../' * 20}{outside}", ".lock", "of/.it", "of/a=%20+ä?.txt"):
        write(bucket, f"a run?/{name}", "there")
    folder.mkdir()
    (folder / ".lock").write_text("held")
    fetch(place)
    assert outside.read_text() == "here" and (folder / ".lock").read_text() == "held"
    assert {path.name for path in folder.rglob("*")} == {".lock", "of", "a=%20+ä?.txt"}
    (folder / "of" / "a=%20+ä?.txt").write_text("changed")
    publish(place)
    assert list(read(f"{place}/of").values()) == ["there", "changed"]


def test_another_place_in_the_folder_of_a_run(bucket: str) -> None:
    folder = Path(fetch(f"{bucket}/run", may_be_missing=True))
    folder.mkdir()
    for text in ("one", "two"):
        (folder / "last.ckpt").write_text(text)
        publish(f"{bucket}/run")
        write(bucket, "run/scores/test.txt", text)  # of a command that scores the run while it trains
        assert read(f"{bucket}/run") == {"last.ckpt": text, "scores/test.txt": text}


def test_a_file_that_changes_while_it_is_fetched(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    get_file = s3fs.S3FileSystem._get_file

    async def raced(fs: s3fs.S3FileSystem, there: str, *rest: object, **options: object) -> None:
        await get_file(fs, there, *rest, **options)
        await fs._pipe_file(there, b"new")

    write(bucket, "data/train.csv", "old")
    with monkeypatch.context() as patched:
        patched.setattr(s3fs.S3FileSystem, "_get_file", raced)
        s3fs.S3FileSystem.clear_instance_cache()
        fetch(f"{bucket}/data")
    s3fs.S3FileSystem.clear_instance_cache()
    assert Path(fetch(f"{bucket}/data"), "train.csv").read_text() == "new"


def test_the_first_process_of_a_machine_fetches(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(bucket, "data/train.csv", "text,label\n")
    place, store = f"{bucket}/data/train.csv", dist.HashStore()
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(distributed, "meeting", lambda: store)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(fetch, place)
        with pytest.raises(concurrent.futures.TimeoutError):
            other.result(timeout=0.5)
        monkeypatch.setenv("LOCAL_RANK", "0")
        assert Path(fetch(place)).read_text() == "text,label\n" and Path(fetch(place)).name == "train.csv"
        assert other.result() == fetch(place)


def test_processes_that_fetch_at_once_fetch_once(bucket: str) -> None:
    write(bucket, "data/train.csv", "text,label\n")
    threads = [threading.Thread(target=fetch, args=[f"{bucket}/data"]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Path(local_path(f"{bucket}/data"), "train.csv").read_text() == "text,label\n"


def test_what_is_not_there_is_named(bucket: str) -> None:
    with pytest.raises(InputError, match=f"^{bucket}/nothing: no such file or folder$"):
        fetch(f"{bucket}/nothing")
    for function in (fetch, partial(fetch, may_be_missing=True)):
        with pytest.raises(
            RunError, match=r"^s3://no-bucket/run cannot be reached or written .*bucket does not exist\)$"
        ):
            function("s3://no-bucket/run")


def test_urls_of_stores_and_the_packages_that_reach_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_store("s3://bucket/run") and in_store("hf://datasets/a/b")
    for place in (
        "data",
        "./s3:/bucket",
        "s3://",
        "s4://bucket",
        "/s3://bucket",
        "https://host/x",
        "s3://b/{split}",
        "",
    ):
        assert not in_store(place) and fetch(place) == place
    monkeypatch.setattr(stores, "find_spec", lambda _: None)
    with pytest.raises(ArgumentTypeError, match=r"^'gs://bucket/run' needs the package gcsfs: pip install gcsfs$"):
        in_store("gs://bucket/run")
    assert local_path("gs://bucket/run").endswith("/run")  # a report of a run elsewhere needs no package


def test_a_missing_package_is_one_line_of_a_command() -> None:
    words = ["finetune.py", "--do_train", "--output_dir", "gs://bucket/run"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    message = "argument --output_dir: 'gs://bucket/run' needs the package gcsfs: pip install gcsfs"
    assert (done.returncode, done.stderr) == (2, f"finetune.py: error: {message}\n")
