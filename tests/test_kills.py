"""Twenty processes killed with SIGKILL at random moments of all that a run writes, each gone on with."""

from __future__ import annotations

import gzip
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from distributed import LocalCluster

from tests import forked
from tests.tiny_run import same, weights, write_tiny_run
from utils.corpora import documents, make_shards

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="files are seen by their names on Linux"),
]
# For each stage: the files that tell its beginning, the longest time from there to a kill, and the number of kills.
TRAINING = {
    "data/.cache/*/*": (0.1, 4),
    "run/metrics.csv": (0.2, 4),
    "run/.last.ckpt.*.tmp": (0.01, 4),
    "run/export/*": (0.005, 2),
    "run/.test_progress/rank0.jsonl": (0.2, 3),
}
SHARDS = {"shards/.work/examples/*": (0.1, 2), "shards/train/*": (0.1, 1)}


def kill_in_each(
    stages: dict[str, tuple[float, int]], folder: Path, start: Callable[[], BaseProcess], made: Sequence[str]
) -> None:
    """Kill processes in each stage, and let the last one come to its end.

    Args:
        made: what they make; it is removed where a process ended before its kill, so that others start anew.
    """
    rng = random.Random(0)

    def seen(pattern: str) -> set[tuple[Path, int]]:
        paths = set()
        for path in folder.glob(pattern):
            with suppress(FileNotFoundError):  # renamed meanwhile
                paths.add((path, path.stat().st_mtime_ns))
        return paths

    for pattern, (longest, kills) in stages.items():
        while kills:
            before, process = seen(pattern), start()
            while seen(pattern) <= before and process.exitcode is None:
                time.sleep(0.0005)
            process.join(rng.uniform(0, longest))
            process.kill()
            process.join()
            assert process.exitcode in (-9, 0)
            kills -= process.exitcode == -9
            if process.exitcode == 0:
                for name in made:
                    shutil.rmtree(folder / name)
    assert forked.finish([start()]) == [0]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_with_its_cache_its_export_and_its_scores(tmp_path: Path) -> None:
    options = [*write_tiny_run(tmp_path, n_train=1000, n_test=200), "--do_train", "--do_predict", "--max_steps", "40"]
    options += ["--resume_from_checkpoint", "last", "--save_every_n_steps", "2", "--dropout", "0.1"]
    caches, run = tmp_path / "data/.cache", tmp_path / "run"
    forked.run(options, run)
    whole, cached = run.rename(tmp_path / "whole"), contents(caches)
    shutil.rmtree(caches)
    kill_in_each(TRAINING, tmp_path, lambda: forked.start(options, run)[0], ("data/.cache", "run"))
    assert contents(caches) == cached
    assert same(weights(run), weights(whole))
    for name in ("export/model.safetensors", "test_generations.txt", "test_articles.jsonl", "test_scores.json"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    assert not [*run.glob("**/.*.tmp")]


def make_in_threads(options: Sequence[str], output: Path) -> None:
    documents.PIECE = 1 << 15  # as a large text has, many tasks
    with LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        make_shards.main([*options, "--output", str(output), "--scheduler", cluster.scheduler_address])


def test_shards(tmp_path: Path) -> None:
    write_tiny_run(tmp_path)
    rng = random.Random(0)
    for name in "ab":
        texts = [" ".join(rng.choices("the a dog. cat bird sat. ran".split(), k=60)) + "." for _ in range(500)]
        (tmp_path / f"{name}.txt").write_text("\n\n".join(texts))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress((tmp_path / "b.txt").read_bytes()))
    options = [
        "--input",
        *(str(tmp_path / name) for name in ("a.txt", "c.txt.gz")),
        "--tokenizer",
        str(tmp_path / "tokenizer"),
    ]
    options += ["--sequence_length", "48", "--val_ratio", "0.1"]

    def start(name: str = "shards") -> BaseProcess:
        process = forked.CONTEXT.Process(target=make_in_threads, args=(options, tmp_path / name))
        process.start()
        return process

    assert forked.finish([start("whole")]) == [0]
    kill_in_each(SHARDS, tmp_path, start, ["shards"])
    assert contents(tmp_path / "shards") == contents(tmp_path / "whole")
