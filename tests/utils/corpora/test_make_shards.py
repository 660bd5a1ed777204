"""Shards made on a Dask cluster of threads in this process, and, where processes matter, by the command."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from distributed import LocalCluster
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer
from bert.tokenization.tokenization_bert import BertTokenizer
from utils.app.errors import RunError
from utils.corpora import documents, inspect, make_shards, shard_cluster, shard_stages
from utils.corpora.segment_pairs import TokenizedDocument, pair_up
from utils.corpora.shard_stages import pack
from utils.text.sentences import split_sentences

ROOT = Path(__file__).parents[3]
WORDS = "the a dog cat bird sat ran flew on over mat hill tree and then it was seen by old young men Dr".split()
Make = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


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


def rows_of(folder: Path, split: str = "train") -> list[dict[str, list[int]]]:
    return [row for path in sorted(folder.glob(f"{split}/*")) for row in parquet.read_table(path).to_pylist()]


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 20))
def test_sentences_are_gathered_up_to_the_room(lengths: list[int], room: int) -> None:
    examples = pack(lengths, room)
    assert sum(map(sum, examples)) == sum(lengths)
    assert all(0 < sum(example) <= room for example in examples)
    cut = [part for length in lengths for part in [room] * (length // room) + [length % room] * bool(length % room)]
    assert [part for example in examples for part in example] == cut
    if max(lengths, default=0) <= room:
        assert all(sum(example) + after[0] > room for example, after in pairwise(examples))


def packed(text: str, tokenizer: BartTokenizer, room: int) -> Iterator[tuple[list[int], list[int]]]:
    """An oracle: all of a document is tokenised at once, and cut at the last sentence's end that is in reach."""
    whole, ends = "", {0}
    for line in text.split("\n"):
        for part in split_sentences(line):
            whole = f"{whole} {part}".lstrip()
            ends.add(len(tokenizer(whole).input_ids) - 2)
    ids, start = tokenizer(whole).input_ids[1:-1], 0
    while start < len(ids):
        reached = [end for end in ends if start < end <= start + room]
        end = max(reached, default=start + room)
        yield ids[start:end], [b - a for a, b in pairwise(sorted({start, end, *reached}))]
        start = end


def test_examples_are_the_documents_tokens_in_whole_sentences(make: Make, corpus: Path, tmp_path: Path) -> None:
    manifest = make("out", "--val_input", corpus / "val.txt", "--bins", 16, 32, 48, "--min_tokens", 1)
    tokenizer = BartTokenizer.from_pretrained(corpus / "tokenizer")
    for split, names in (("train", ("a.txt", "b.txt")), ("val", ("val.txt",))):
        texts = [text for name in names for text in (corpus / name).read_text().split("\n\n")]
        wanted = [row for text in texts for row in packed(text, tokenizer, 46)]
        assert any(sentences == [46] for _, sentences in wanted)
        rows = [(row["ids"], row["sentences"]) for row in rows_of(tmp_path / "out", split)]
        assert sorted(rows) == sorted(wanted)
    assert manifest["documents"] == {"kept": 140, "dropped": {}}
    assert (manifest["vocab_size"], manifest["bins"]) == (len(tokenizer), [16, 32, 48])


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=30),
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=9), min_size=1, max_size=3),
    st.integers(4, 60),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_pairs_of_segments(lengths: list[int], others: list[list[int]], room: int, short: float) -> None:
    """Segments are whole sentences, one behind the other, but where a pair is too long, which then has no room left."""

    def text(lengths: list[int]) -> TokenizedDocument:
        return TokenizedDocument(np.arange(sum(lengths)), np.cumsum([0, *lengths]).tolist())

    document_text, texts, reached = text(lengths), [text(sentences) for sentences in others], 0
    for first, second, random_text in pair_up([*texts, document_text], len(texts), room, short, random.Random(1)):
        sizes = first[1] - first[0], second[1] - second[0]
        assert min(sizes) >= 1 and sum(sizes) <= room
        assert any(random_text is sentences for sentences in (None, *texts))
        if sum(sizes) < room:
            assert {*first} <= {*document_text.bounds} and {*second} <= {*(random_text or document_text).bounds}
            assert random_text is not None or second[0] == first[1]
        assert first[0] >= reached
        reached = first[1]


def test_shards_of_pairs(make: Make, corpus: Path, tmp_path: Path) -> None:
    """Half of the second segments are random, and of other documents; the same corpus gives the same bytes."""
    BertTokenizer.train([" ".join(WORDS)] * 3, 120).save_pretrained(tmp_path / "words")
    options = ("--task", "mlm_nsp", "--tokenizer", tmp_path / "words", "--val_input", corpus / "val.txt")
    options += ("--duplicate_factor", 20, "--min_tokens", 2)
    manifest = make("out", *options)
    assert (manifest["task"], manifest["options"]["duplicate_factor"]) == ("mlm_nsp", 20)
    tokenizer = BertTokenizer.from_pretrained(tmp_path / "words")

    def marked(ids: Sequence[int]) -> str:
        """Marks between the tokens, so that only whole ones are found."""
        return f",{','.join(map(str, ids))},"

    for split, names in (("train", ("a.txt", "b.txt")), ("val", ("val.txt",))):
        texts = [text for name in names for text in (corpus / name).read_text().split("\n\n")]
        whole = [marked(tokenizer(text)["input_ids"][1:-1]) for text in texts]
        rows = rows_of(tmp_path / "out", split)
        for row in rows:
            cut = row["sentences"][0]
            assert sum(row["sentences"]) == len(row["ids"]) <= 45
            first, second = marked(row["ids"][:cut]), marked(row["ids"][cut:])
            assert any(first in text for text in whole) and any(second in text for text in whole)
            if row["label"]:  # no document has both, unless one is short
                assert min(row["sentences"]) < 9 or not any(first in text and second in text for text in whole)
            elif len(row["ids"]) < 45:
                assert any(marked(row["ids"]) in text for text in whole)
        assert abs(sum(row["label"] for row in rows) - len(rows) / 2) < 4 * len(rows) ** 0.5 / 2
    assert make("again", *options)["splits"] == manifest["splits"]
    (tmp_path / "one.txt").write_text("Only one document. It has two sentences.\n")
    with pytest.raises(InputError, match="no text is left to train on"):
        make("one", *options[:4], inputs=[tmp_path / "one.txt"])


def test_what_the_manifest_says(make: Make, corpus: Path, tmp_path: Path) -> None:
    manifest = make("out", "--val_ratio", 0.2, "--bins", 16, 32, 48, "--shards", 3)
    for split, files in manifest["splits"].items():
        listed = sorted(file["file"] for file in files)
        assert listed == sorted(
            str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out" / split).iterdir()
        )
        for longest, shorter in ((16, 0), (32, 16), (48, 32)):
            of_bin = [file for file in files if file["bin"] == longest]
            assert len(of_bin) == (3 if split == "train" else 1)
            sizes = [file["examples"] for file in of_bin]
            assert max(sizes) - min(sizes) <= 1
            for file in of_bin:
                path = tmp_path / "out" / file["file"]
                table = parquet.read_table(path)
                assert table.schema.field("ids").type.value_type == table.schema.field("sentences").type.value_type
                assert str(table.schema.field("ids").type.value_type) == "uint16"
                lengths = [len(ids) + 2 for ids in table["ids"].to_pylist()]
                assert all(shorter < length <= longest for length in lengths)
                assert (file["examples"], file["tokens"]) == (len(lengths), sum(lengths) - 2 * len(lengths))
                digest = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout
                assert file["sha256"] == digest.split()[0]
    assert 10 < len(held_out_books(tmp_path / "out", corpus)) < 50
    [first, second] = manifest["source"]["files"]
    assert (first["name"], second["bytes"]) == ("a.txt", (corpus / "b.txt").stat().st_size)


def held_out_books(folder: Path, corpus: Path) -> set[str]:
    tokenizer = BartTokenizer.from_pretrained(corpus / "tokenizer")
    books = [
        set(re.findall(r"Book \w+ \d+:", " ".join(tokenizer.decode(row["ids"]) for row in rows_of(folder, split))))
        for split in ("train", "val")
    ]
    assert not books[0] & books[1] and len(books[0] | books[1]) == 120
    return books[1]


def test_the_same_bytes_whatever_the_pieces_and_the_order_of_the_inputs(
    make: Make, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (corpus / "b.txt", corpus / "a.txt", corpus / "a.txt")
    manifest = make("whole", "--bins", 16, 48)
    make("turned", "--bins", 16, 48, inputs=files)
    for module, name, size in ((shard_stages, "_CHARACTERS", 300), (shard_stages, "_TOKENS", 500)):
        monkeypatch.setattr(module, name, size)
    make("in_parts", "--bins", 16, 48)
    monkeypatch.setattr(documents, "PIECE", 4000)
    monkeypatch.setattr(make_shards, "HASHES_AT_ONCE", 9)
    cut = make("in_pieces", "--bins", 16, 48)
    whole = contents(tmp_path / "whole")
    assert whole == contents(tmp_path / "turned") == contents(tmp_path / "in_parts")
    del whole["manifest.json"]
    pieces = contents(tmp_path / "in_pieces")
    assert json.loads(pieces.pop("manifest.json"))["splits"] == manifest["splits"]
    assert whole == pieces and cut["documents"] == manifest["documents"]
    assert make("other", "--bins", 16, 48, "--seed", 1)["splits"] != manifest["splits"]


@pytest.mark.parametrize("task", ["denoising", "mlm", "mlm_nsp"])
def test_some_text_is_held_out_of_the_smallest_corpus(
    task: str, make: Make, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One document, or of pairs two, whatever the share, the pieces, and how often each document is there."""
    if task != "mlm_nsp":  # whose pairs are of a piece
        monkeypatch.setattr(documents, "PIECE", 1 << 11)
    if task != "denoising":
        BertTokenizer.train([" ".join(WORDS)] * 3, 90).save_pretrained(tmp_path / "bert")
    rng = random.Random(2)
    texts = [f"{document(rng)} {document(rng)}" for _ in range(4)]
    if task == "denoising":
        texts = ["the dog sat on the mat and ran", "a bird flew over the old hill and it", "犬猫鳥" * 8, "men ran " * 4]
    options = ("--task", task, "--val_ratio", 1e-9, *(("--tokenizer", tmp_path / "bert") * (task != "denoising")))
    for copies in (1, 3):
        (tmp_path / f"{copies}.txt").write_text("\n\n".join(texts * copies))
        manifest = make(f"out{copies}", *options, inputs=[tmp_path / f"{copies}.txt"])
        assert manifest["documents"]["kept"] == 4
        assert all(sum(file["examples"] for file in manifest["splits"][split]) for split in ("train", "val"))
    if task != "mlm_nsp":
        held_out = {str(row["ids"]) for row in rows_of(tmp_path / "out1", "val")}
        assert held_out == {str(row["ids"]) for row in rows_of(tmp_path / "out3", "val")}
        assert len(held_out) == 1 or task == "mlm"


def test_the_word_of_a_corpus_without_held_out_text(
    make: Make, tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.txt").write_text("The dog sat on the old mat and ran over the hill. " * 3)
    with pytest.raises(InputError, match=r"one.txt: no text is left to train on; documents of all: 1, and an empty"):
        make("refused", inputs=[tmp_path / "one.txt"])
    (tmp_path / "short.txt").write_text("A dog sat.")
    with pytest.raises(InputError, match=r"--val_input .*short.txt: no text is left to hold out, 1 near-empty"):
        make("none", "--val_input", tmp_path / "short.txt")
    (tmp_path / "few.txt").write_text("Xylophones quizzed jazzy Zulus.\n\nZigzagging fjords vex pyjamas.")
    with pytest.raises(InputError, match=r"few.txt: no text is left to hold out; documents of all: 2"):
        make("few", inputs=[tmp_path / "few.txt"])
    assert not capsys.readouterr().out
    make("asked", "--val_ratio", 0, inputs=[tmp_path / "few.txt"])
    assert "nothing is held out, and run_pretraining.py needs held-out documents" in capsys.readouterr().out


def test_the_same_bytes_without_workers(make: Make, corpus: Path, tmp_path: Path) -> None:
    make("threads", "--val_ratio", 0.1)
    words = ["--input", corpus / "a.txt", corpus / "b.txt", "--tokenizer", corpus / "tokenizer", "--val_ratio", 0.1]
    words += ["--output", tmp_path / "here", "--sequence_length", 48, "--workers", 0]
    make_shards.main([*map(str, words)])
    assert contents(tmp_path / "here") == contents(tmp_path / "threads")


def test_shards_are_shuffled_across_the_corpus(make: Make, corpus: Path, tmp_path: Path) -> None:
    make("out", "--shards", 4)
    tokenizer = BartTokenizer.from_pretrained(corpus / "tokenizer")
    for path in (tmp_path / "out/train").iterdir():
        books = re.findall(
            r"Book (\w+) (\d+):", " ".join(map(tokenizer.decode, parquet.read_table(path)["ids"].to_pylist()))
        )
        assert {name for name, _ in books} == {"a", "b"}
        assert books != sorted(books) and len(books) > 10


@pytest.mark.parametrize("hashes", [make_shards.HASHES_AT_ONCE, 3])
def test_documents_that_are_left_out_are_counted(
    hashes: int, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_shards, "HASHES_AT_ONCE", hashes)
    rng = random.Random(1)
    texts = [document(rng, [f"T{number}"]) for number in range(9)]
    respaced = texts[2].replace(" ", "\n", 3)
    lines = [json.dumps({"text": text}) for text in (*texts[:5], respaced, texts[0], "A.", "A.", "", " \n")]
    faulty = [b'{"text": "\xff"}', b"{}", b"no", b"no"]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join([*map(str.encode, lines), *faulty]))
    (tmp_path / "y.txt").write_text("\n\n".join(texts[3:]) + "\n\nCat.\n")
    (tmp_path / "z.txt").write_text("\n\n".join(texts[4:6]))
    inputs = [tmp_path / "x.jsonl", tmp_path / "y.txt"]
    manifest = make("out", "--val_input", tmp_path / "z.txt", inputs=inputs)
    reasons = {"near-empty": 4, "no text in the field text": 1, "not JSON": 2, "not UTF-8": 1, "repeated": 7}
    assert manifest["documents"] == {"kept": 9, "dropped": reasons}
    tokenizer = BartTokenizer.from_pretrained(tmp_path / "out/tokenizer")
    held_out = " ".join(tokenizer.decode(row["ids"]) for row in rows_of(tmp_path / "out", "val"))
    assert re.findall(r"T\d", held_out) in (["T4", "T5"], ["T5", "T4"])


def test_a_folder_without_the_files_that_are_held_out(make: Make, corpus: Path, tmp_path: Path) -> None:
    named = make("named", "--val_input", corpus / "val.txt")
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "b.txt", "val.txt"):
        shutil.copy(corpus / name, tmp_path / "texts")
    folder = make("folder", "--val_input", tmp_path / "texts/val.txt", inputs=[tmp_path / "texts"])
    assert folder == named and folder["documents"]["dropped"] == {}


def test_special_tokens_in_texts_are_text(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The <mask> and the </s> of <s> and <pad> in the old <unk>.")
    make("out", "--val_ratio", 0, inputs=[tmp_path / "a.txt"])
    [row] = rows_of(tmp_path / "out")
    tokenizer = BartTokenizer.from_pretrained(tmp_path / "out/tokenizer")
    assert tokenizer.decode(row["ids"], skip_special_tokens=True) == (tmp_path / "a.txt").read_text()


def test_a_large_vocabulary_takes_four_bytes(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BartTokenizer, "__len__", lambda _: (1 << 16) + 1)
    make("out", "--shards", 1)
    schema = parquet.read_schema(tmp_path / "out/train/48-00000.parquet")
    assert [str(schema.field(name).type.value_type) for name in ("ids", "sentences")] == ["uint32", "uint16"]


def test_fewer_examples_than_shards(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(document(random.Random(n)) for n in range(3)))
    manifest = make("out", "--val_ratio", 0, "--shards", 1000, inputs=[tmp_path / "a.txt"])
    assert {file["examples"] for file in manifest["splits"]["train"]} == {1}


def test_a_run_goes_on_with_what_is_whole(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE", 3000)
    make("whole", "--bins", 16, 48)
    done: list[str] = []
    original = make_shards.write_json

    def failing(path: Path, value: Any) -> None:
        """The disk fills as the third record of each run is to be written."""
        if path.name == "manifest.json" or path.parent.parent.name == ".work":
            if len(done) % 3 == 2:
                done.append("")
                raise OSError(28, "No space left on device", str(path))
            done.append(str(path))
        original(path, value)

    for module in (make_shards, shard_cluster):
        monkeypatch.setattr(module, "write_json", failing)
    failures = 0
    while not (tmp_path / "out/manifest.json").exists():
        assert failures < 100  # two records or more a run
        try:
            make("out", "--bins", 16, 48)
        except Exception as error:
            assert "cannot be written (No space left on device)" in str(error)
            failures += 1
    assert failures > 8
    # A task that runs beside one that fails may end while the next run begins, which then does it too.
    assert len([*filter(None, done)]) - len(set(filter(None, done))) <= failures
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_finished_folder_is_left_alone(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make("out")
    assert re.search(r"out: \d+ examples to train on and \d+ held out, of at most 48 tokens", capsys.readouterr().out)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    make("out")
    assert capsys.readouterr().out.endswith("out: is there already\n")
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    with pytest.raises(InputError, match="holds shards made otherwise .its seed is 42, this run's is 1.: name another"):
        make("out", "--seed", 1)
    (tmp_path / "out/manifest.json").write_text("{}")  # of another program
    with pytest.raises(InputError, match="holds shards made otherwise .its format is None, this run's is 1.: name"):
        make("out")


@pytest.mark.parametrize(
    ("module", "called", "error", "lacking"),
    [
        (shard_cluster, "import_module", ModuleNotFoundError("No module named 'utils'"), "workers"),
        # The message of Dask's scheduler about the first task.
        (
            make_shards,
            "hash_documents",
            RuntimeError("Error during deserialization of the task graph. This\noccurs"),
            "process",
        ),
    ],
)
def test_a_cluster_that_lacks_the_program(
    module: ModuleType, called: str, error: Exception, lacking: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(module, called, failing)
    with pytest.raises(RunError, match=rf"its {lacking} cannot load this program; .* with PYTHONPATH={ROOT}$"):
        make("out")


def test_another_run_in_an_unfinished_folder(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(make_shards, "count_keys", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        make("out")
    with pytest.raises(
        InputError, match="holds what another run has begun .its options min_tokens is 8, this run's is 9"
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
        (["--sequence_length", "48", "--bins", "16", "32"], "--bins 16 32: they must rise to --sequence_length, 48"),
        (["--bins", "32", "16", "48"], "--bins 32 16 48: they must rise"),
        (["--bins", "16", "16", "48"], "they must rise"),
        (["--min_tokens", "24"], "--min_tokens is 24; at --sequence_length 48 it is at most 23"),
        (["--workers", "2"], "--workers 2: --scheduler .* has workers of its own"),
        (["--val_input", "nowhere"], "--val_input nowhere: no such file or folder"),
        (["--tokenizer", "./nothing"], r"\./nothing: no such file or folder"),
        (["--output", "{corpus}"], "other files are there; it takes a new folder"),
        (["--output", "{corpus}/a.txt"], "a file is there; it takes a folder"),
        (["--input", "{empty}"], "--input .*: no text in it, 1 not UTF-8"),
        (["--input", "{short}"], "--input .*: no text is left to train on, 1 near-empty; documents"),
        (["--scheduler", "127.0.0.1:9"], "--scheduler 127.0.0.1:9: no Dask scheduler can be reached"),
        (["--scheduler", "nonsense"], "--scheduler nonsense: no Dask scheduler can be reached"),
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


@pytest.mark.parametrize("length", ["15", "65536"])
def test_lengths_out_of_range(length: str, make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make("out", "--sequence_length", length)
    assert "it takes an integer at least 16, at most 65535" in capsys.readouterr().err


def test_inspect_shows_shards(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = make("out", "--bins", 16, 48, "--val_ratio", 0.2)
    capsys.readouterr()
    inspect.main([str(tmp_path / "out"), "--json", str(tmp_path / "facts.json")])
    text = capsys.readouterr().out
    facts = json.loads((tmp_path / "facts.json").read_text())
    rows = rows_of(tmp_path / "out")
    counted = {row["bin"]: row for row in facts["bins"] if row["split"] == "train"}
    assert sum(row["examples"] for row in counted.values()) == len(rows)
    of_bin = [row for row in rows if len(row["ids"]) > 14]
    assert counted[48]["filled"] == sum(len(row["ids"]) + 2 for row in of_bin) / (48 * len(of_bin))
    assert re.search(rf"^train +48 +8 +{len(of_bin)} +{sum(len(row['ids']) for row in of_bin):,} ", text, re.MULTILINE)
    assert f"{manifest['documents']['kept']} documents of 2 files; left out: none" in text
    assert "".join(facts["example"]).count(".") >= len(facts["example"]) - 1
    assert "<mask>" in facts["corrupted"] and facts["corrupted"].strip() in text
    for option, value in (("--max_source_length", "64"), ("--picture", str(tmp_path / "lengths.png"))):
        with pytest.raises(InputError, match=f"{option}: is of use with data directories, not with shards"):
            inspect.main([str(tmp_path / "out"), option, value])
    (tmp_path / "out/train/48-00000.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="train/48-00000.parquet: the shard is cut off or damaged"):
        inspect.main([str(tmp_path / "out")])
    (tmp_path / "out/manifest.json").write_text("{}")
    with pytest.raises(InputError, match="manifest.json: not a manifest of shards"):
        inspect.main([str(tmp_path / "out")])


def command(corpus: Path, output: Path, workers: int) -> list[str]:
    words = [sys.executable, "-m", "utils.corpora.make_shards", "--input", corpus / "a.txt", corpus / "b.txt"]
    words += ["--tokenizer", corpus / "tokenizer", "--output", output, "--sequence_length", 48, "--workers", workers]
    words += ["--val_ratio", 0.1]
    return [*map(str, words)]


@pytest.mark.slow
def test_processes_make_the_same_bytes_without_a_word(make: Make, corpus: Path, tmp_path: Path) -> None:
    make("threads", "--val_ratio", 0.1)
    for workers in (1, 2):
        output = tmp_path / f"{workers}"
        done = subprocess.run(command(corpus, output, workers), cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert contents(output) == contents(tmp_path / "threads")
        assert {path.name for path in output.iterdir()} == {"manifest.json", "tokenizer", "train", "val"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are those of Linux")
def test_killed_runs_leave_no_process_and_go_on(make: Make, corpus: Path, tmp_path: Path) -> None:
    texts = [document(random.Random(n), [f"Book {n}"]) for n in range(6_000)]
    (tmp_path / "big").mkdir()
    for name, part in (("a", texts[::2]), ("b", texts[1::2])):
        (tmp_path / f"big/{name}.txt").write_text("\n\n".join(part))
    (tmp_path / "big/tokenizer").symlink_to(corpus / "tokenizer")
    words, output = command(tmp_path / "big", tmp_path / "out", 2), tmp_path / "out"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
        stage = {signal.SIGINT: "documents", signal.SIGTERM: "examples", signal.SIGKILL: "examples"}[number]
        while not any((output / ".work" / stage).glob("*")) and process.poll() is None:
            time.sleep(0.01)
        # A terminal sends Ctrl-C to all processes.
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        _, error = process.communicate(timeout=60)
        if number != signal.SIGKILL:
            name = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}[number]
            assert (process.returncode, error) == (128 + number, f"utils.corpora.make_shards: ended by {name}\n")
        deadline = time.monotonic() + 30
        while alive := processes_of(process.pid):
            assert time.monotonic() < deadline, alive
            time.sleep(0.05)
    assert subprocess.run(words, cwd=ROOT, stderr=subprocess.DEVNULL).returncode == 0
    make("whole", "--val_ratio", 0.1, inputs=[tmp_path / "big/a.txt", tmp_path / "big/b.txt"])
    assert contents(output) == contents(tmp_path / "whole")


@pytest.mark.parametrize("task", ["denoising", "mlm_nsp"])
def test_scripts_without_blanks_have_sentences(
    make: Make, tmp_path: Path, task: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Documents of 90 sentences were one sentence each, which BERT's pairs left out as near-empty."""
    rng = random.Random(0)
    sentences = [
        ["".join(rng.choices("今天很好我们去公园", k=9)) + "。！？"[place % 3] for place in range(90)] for _ in "abc"
    ]
    (tmp_path / "zh.txt").write_text("\n\n".join(map("".join, sentences)), encoding="utf-8")
    kind = BertTokenizer if task == "mlm_nsp" else BartTokenizer
    kind.train(["".join(document) for document in sentences], 320).save_pretrained(tmp_path / "tokenizer")
    options = ("--task", task, "--tokenizer", tmp_path / "tokenizer", "--sequence_length", 128, "--val_ratio", 0)
    manifest = make("zh", *options, inputs=[tmp_path / "zh.txt"])
    assert manifest["documents"]["kept"] == 3
    assert caplog.messages == []
    if task == "denoising":
        assert sum(len(row["sentences"]) for row in rows_of(tmp_path / "zh")) == 270
        inspect.main([str(tmp_path / "zh")])
        assert "sentences" in capsys.readouterr().out


def test_documents_without_marks_are_counted_in_a_warning(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = [f"สวัสดีครับ ผมชื่อสมชาย {number} " * 30 for number in range(3)]
    (tmp_path / "th.txt").write_text("\n\n".join(texts), encoding="utf-8")
    make("th", "--val_ratio", 0, inputs=[tmp_path / "th.txt"])
    [message] = caplog.messages
    assert message.startswith("3 of 3 documents are one sentence of 500 characters or more")
    (tmp_path / "lines.txt").write_text("\n\n".join(text.replace("ชาย ", "ชาย\n") for text in texts), encoding="utf-8")
    make("lines", "--val_ratio", 0, inputs=[tmp_path / "lines.txt"])
    assert len(caplog.messages) == 1


def processes_of(session: int) -> list[str]:
    """Command lines of the processes of a session that have not ended."""
    alive = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, of_session = (path / "stat").read_text().rpartition(") ")[2].split()[:4]
            if int(of_session) == session and state != "Z":
                alive.append((path / "cmdline").read_text())
        except OSError:
            continue
    return alive
