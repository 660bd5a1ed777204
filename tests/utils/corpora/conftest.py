"""A corpus, and shards that are made of it on a Dask cluster of threads in this process."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster

from bart.tokenization.tokenization_bart import BartTokenizer
from utils.corpora import make_shards

WORDS = "the a dog cat bird sat ran flew on over mat hill tree and then it was seen by old young men Dr".split()
Make = Callable[..., dict[str, Any]]


def sentence(rng: random.Random, longest: int = 20) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(2, longest))).capitalize() + "."


def document(rng: random.Random, marks: Sequence[str] = ()) -> str:
    """Some paragraphs of some sentences; the first begins with the marks."""
    lines = [" ".join(sentence(rng) for _ in range(rng.randint(1, 6))) for _ in range(rng.randint(1, 4))]
    return "\n".join([" ".join([*marks, lines[0]]), *lines[1:]])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files, one of which is held out, and a vocabulary."""
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(0)
    for name, count in (("a", 60), ("b", 60), ("val", 20)):
        texts = [document(rng, [f"Book {name} {number}:"]) for number in range(count)]
        (folder / f"{name}.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    BartTokenizer.train([" ".join(WORDS)] * 3, 320).save_pretrained(folder / "tokenizer")
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two threads, which see what a test patches."""
    with LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def make(corpus: Path, cluster: str, tmp_path: Path) -> Make:
    """Makes shards of the corpus in a folder, with options; gives the manifest."""

    def run(
        name: str, *options: object, inputs: Sequence[object] = (corpus / "a.txt", corpus / "b.txt")
    ) -> dict[str, Any]:
        words = ["--input", *inputs, "--tokenizer", corpus / "tokenizer", "--output", tmp_path / name]
        words += ["--sequence_length", 48, "--scheduler", cluster, *options]
        make_shards.main([*map(str, words)])
        return json.loads((tmp_path / name / "manifest.json").read_text())

    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
