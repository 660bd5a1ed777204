"""Runs that make shards: how they are told, go on, share a folder, and end; and the processes of the command."""

from __future__ import annotations

import gc
import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import dask
import pytest
from distributed import LocalCluster, Security

from bart.errors import InputError
from tests.utils.corpora.conftest import Make, contents, document
from utils.app.errors import RunError
from utils.corpora import documents, make_shards, shard_cluster

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def killed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes], list[str]]:
    """A folder as a run leaves it that is killed when all shards are written; what it should become; the command."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "c.txt.gz").write_bytes(gzip.compress((corpus / "val.txt").read_bytes()))
    words = [*command(corpus, folder / "whole", 0)[3:], "--bins", "16", "48"]
    words.insert(1, str(folder / "c.txt.gz"))
    make_shards.main(words)
    words[words.index(str(folder / "whole"))] = str(folder / "out")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(documents, "PIECE", 6000)
        patch.setattr(make_shards, "write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        make_shards.main(words)
    return folder, contents(folder / "whole"), words


@pytest.mark.parametrize("is_gone", [True, False])
def test_files_of_an_unfinished_run_that_differ_are_made_again(
    is_gone: bool, killed: tuple[Path, dict[str, bytes], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each kind of file one differs, and another one lies beside them; all others stay."""
    monkeypatch.setattr(documents, "PIECE", 6000)
    folder, whole, words = killed
    kept = folder / "kept"
    if not kept.exists():
        (folder / "out").rename(kept)
    places = (".work/examples", "train", "val", "tokenizer")
    files = [next(kept.glob(f"{place}/*")) for place in places]
    for file in [*files, kept / ".work/done.jsonl"]:
        shutil.rmtree(folder / "out", ignore_errors=True)
        shutil.copytree(kept, folder / "out")
        data, place = bytearray(file.read_bytes()), folder / "out" / file.relative_to(kept)
        data[len(data) // 2] ^= 1
        place.unlink() if is_gone else place.write_bytes(data)
        shutil.copy(files[0], folder / "out/.work/examples/999999-000000.arrow")
        before = {path: path.stat().st_mtime_ns for path in folder.glob("out/train/*")}
        make_shards.main(words)
        assert contents(folder / "out") == whole
        after = {path: path.stat().st_mtime_ns for path in folder.glob("out/train/*")}
        if file == files[2]:
            assert before == after


def test_a_finished_folder_is_left_alone(
    make: Make, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make("out")
    assert re.search(r"out: \d+ examples to train on and \d+ held out, of at most 48 tokens", capsys.readouterr().out)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    make("out")
    assert capsys.readouterr().out.endswith("out: is there already\n")
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    with pytest.raises(InputError, match="holds shards made otherwise .its seed is 42, this run's is 1.: name another"):
        make("out", "--seed", 1)
    edited = [tmp_path / name for name in ("a.txt", "b.txt")]
    for path in edited:
        path.write_bytes((corpus / path.name).read_bytes().replace(b"dog", b"DOG"))
    with pytest.raises(InputError, match="holds shards made otherwise .its source hash is '"):
        make("out", inputs=edited)
    (tmp_path / "out/manifest.json").write_text("{}")  # of another program
    with pytest.raises(InputError, match="holds shards made otherwise .its format is None, this run's is 1.: name"):
        make("out")


def test_a_cluster_that_lacks_the_program(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'utils'")

    monkeypatch.setattr(shard_cluster, "import_module", failing)
    with pytest.raises(RunError, match=rf"its workers cannot load this program; .* with PYTHONPATH={ROOT}$"):
        make("out")


def test_a_full_disk_of_a_worker(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("P2P 3f failed during transfer phase") from OSError(28, "No space left on device")

    monkeypatch.setattr(make_shards.stages, "make_examples", full)
    with pytest.raises(RunError, match="tokenising: P2P 3f failed during transfer phase: .*; the same command goes on"):
        make("out")


def test_a_text_that_cannot_be_read_for_a_while_costs_no_work(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise InputError("a.txt: cannot be read (Stale file handle)")

    with monkeypatch.context() as patch, pytest.raises(InputError, match="Stale"):
        patch.setattr(make_shards.stages, "write_shard", failing)  # as a read in a run that goes on
        make("out")
    assert (tmp_path / "out/.work/done.jsonl").exists()
    make("out")


def test_another_run_in_an_unfinished_folder(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(make_shards.stages, "plan_shards", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        make("out")
    with pytest.raises(
        InputError, match="holds the progress of another run .its options min_tokens is 8, this run's is 9"
    ):
        make("out", "--min_tokens", 9)
    (tmp_path / "out/train").mkdir()
    (tmp_path / "out/train/.48-00000.parquet.host.123.tmp").touch()
    make("out")
    assert {path.parts[0] for path in map(Path, contents(tmp_path / "out"))} == {
        "manifest.json",
        "tokenizer",
        "train",
        "val",
    }
    assert all(path.endswith(".parquet") for path in contents(tmp_path / "out/train"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sequence_length", "48", "--bins", "16", "32"], "--bins 16 32: they must rise to --sequence_length"),
        (["--min_tokens", "24"], "--min_tokens is 24; allowed with this --sequence_length: at most 23"),
        (["--short_seq_prob", "0.1"], "--short_seq_prob is of use with --task mlm_nsp only; --task is denoising"),
        (["--val_ratio", "0", "--val_input", "{short}"], "--val_ratio 0: --val_input names all that is held out"),
        (["--workers", "2"], "--workers 2: --scheduler .* has workers of its own"),
        (["--output", "{corpus}"], "other files are there; it takes a new folder"),
        (["--input", "{empty}"], "--input .*: no text is left to train on, 1 not UTF-8"),
        (["--input", "{short}"], "--input .*: no text is left to train on, 1 near-empty; documents"),
        (["--scheduler", "127.0.0.1:9"], "--scheduler 127.0.0.1:9: no Dask scheduler can be reached"),
    ],
)
def test_bad_input(
    options: list[str], message: str, make: Make, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_cluster, "CONNECT_SECONDS", 0.2)
    (tmp_path / "empty.txt").write_bytes(b"\n\n\xff\n")
    (tmp_path / "short.txt").write_text("Short.")
    places = {"corpus": corpus, "empty": tmp_path / "empty.txt", "short": tmp_path / "short.txt"}
    with pytest.raises(InputError, match=message):
        make("out", *(option.format(**places) for option in options))
    assert contents(tmp_path / "out") == {}


def test_the_same_bytes_without_workers(make: Make, corpus: Path, tmp_path: Path) -> None:
    make("threads", "--val_ratio", 0.1)
    words = ["--input", corpus / "a.txt", corpus / "b.txt", "--tokenizer", corpus / "tokenizer", "--val_ratio", 0.1]
    words += ["--output", tmp_path / "here", "--sequence_length", 48, "--workers", 0]
    make_shards.main([*map(str, words)])
    assert contents(tmp_path / "here") == contents(tmp_path / "threads")


def test_a_scheduler_that_takes_tls_alone(make: Make, tmp_path: Path) -> None:
    """The files of the certificate are those of Dask's configuration, which may stand in the environment."""
    security = Security.temporary()
    names = {"ca-file": "tls_ca_file", "client.cert": "tls_client_cert", "client.key": "tls_client_key"}
    for name, attribute in names.items():
        (tmp_path / name).write_text(getattr(security, attribute))
    given = {f"distributed.comm.tls.{name}": str(tmp_path / name) for name in names}
    with LocalCluster(1, processes=False, protocol="tls://", security=security, dashboard_address=None) as cluster:
        assert cluster.scheduler_address.startswith("tls://")
        with pytest.raises(InputError, match="--scheduler tls://.*: no Dask scheduler can be reached .TLS expects"):
            make("out", "--scheduler", cluster.scheduler_address)
        gc.collect()  # of the client that failed: within the start of another one it would wait for a lock for ever
        with dask.config.set(given):
            assert make("out", "--scheduler", cluster.scheduler_address)["documents"]["kept"] == 120


def test_texts_and_shards_in_a_store(make: Make, corpus: Path, tmp_path: Path, bucket: str) -> None:
    import s3fs

    store = s3fs.S3FileSystem()
    text = (corpus / "b.txt").read_bytes()
    lines = b"\n".join(json.dumps({"text": part}).encode() for part in text.decode().split("\n\n"))
    store.pipe({f"{bucket}/texts/a.txt": (corpus / "a.txt").read_bytes(), f"{bucket}/texts/in/b.jsonl": lines})
    store.pipe({f"{bucket}/texts/{name}": b"\0" for name in ("README.md", ".c.txt", ".d/e.txt")})
    words = ["--input", f"{bucket}/texts", "--val_input", f"{bucket}/val.txt.gz", "--output", f"{bucket}/texts/out"]
    words += ["--tokenizer", str(corpus / "tokenizer"), "--sequence_length", "48", "--workers", "0"]
    with pytest.raises(InputError, match="--val_input s3://bucket/val.txt.gz: no file there ends in"):
        make_shards.main(words)
    store.pipe(f"{bucket}/val.txt.gz", gzip.compress((corpus / "val.txt").read_bytes()))
    make_shards.main(words)
    make("here", "--val_input", corpus / "val.txt")
    made = {path.removeprefix("bucket/texts/out/"): store.cat(path) for path in store.find(f"{bucket}/texts/out")}
    here = contents(tmp_path / "here")
    assert json.loads(made.pop("manifest.json"))["splits"] == json.loads(here.pop("manifest.json"))["splits"]
    assert made == here


def command(corpus: Path, output: Path, workers: int) -> list[str]:
    words = [sys.executable, "-m", "utils.corpora.make_shards", "--input", corpus / "a.txt", corpus / "b.txt"]
    words += ["--tokenizer", corpus / "tokenizer", "--output", output, "--sequence_length", 48, "--workers", workers]
    words += ["--val_ratio", 0.1]
    return [*map(str, words)]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are those of Linux")
def test_killed_runs_leave_no_process_and_go_on(make: Make, corpus: Path, tmp_path: Path) -> None:
    texts = [document(random.Random(n), [f"Book {n}"]) for n in range(1_500)]
    (tmp_path / "big").mkdir()
    for name, part in (("a", texts[::2]), ("b", texts[1::2])):
        (tmp_path / f"big/{name}.txt").write_text("\n\n".join(part))
    (tmp_path / "big/tokenizer").symlink_to(corpus / "tokenizer")
    output = tmp_path / "out"
    # In many tasks, as a large text is.
    program = "import utils.app.cli, utils.corpora.documents as d, utils.corpora.make_shards as m; d.PIECE = 1 << 15"
    words = [sys.executable, "-c", f"{program}; utils.app.cli.run_main(m.main)"]
    words += command(tmp_path / "big", output, 2)[3:]
    for number, stage in ((signal.SIGINT, "dask"), (signal.SIGKILL, "examples"), (None, "examples")):
        process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
        before = {*(output / ".work" / stage).glob("*")}
        while {*(output / ".work" / stage).glob("*")} <= before and process.poll() is None:
            time.sleep(0.01)
        if number == signal.SIGINT:  # a terminal sends Ctrl-C to all processes
            os.killpg(process.pid, number)
        elif number is not None:
            process.send_signal(number)
        else:
            workers = {pid: line for pid, line in processes_of(process.pid).items() if "forkserver" in line}
            os.kill(max(workers), signal.SIGKILL)
        _, error = process.communicate(timeout=60)
        assert process.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9, None: 0}[number], error
        assert number != signal.SIGINT or error.endswith("ended by Ctrl-C\n")
        deadline = time.monotonic() + 30
        while alive := processes_of(process.pid):
            assert time.monotonic() < deadline, alive
            time.sleep(0.05)
    make("whole", "--val_ratio", 0.1, inputs=[tmp_path / "big/a.txt", tmp_path / "big/b.txt"])
    assert contents(output) == contents(tmp_path / "whole")


def processes_of(session: int) -> dict[int, str]:
    """Command lines of the processes of a session that have not ended, by their ids."""
    alive = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, of_session = (path / "stat").read_text().rpartition(") ")[2].split()[:4]
            if int(of_session) == session and state != "Z":
                alive[int(path.name)] = (path / "cmdline").read_text()
        except OSError:
            continue
    return alive
