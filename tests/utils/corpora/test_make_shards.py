"""The contents of shards, which a Dask cluster of threads makes in this process."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from bart.tokenization.tokenization_bart import BartTokenizer
from bert.tokenization.tokenization_bert import BertTokenizer
from tests.utils.corpora.conftest import WORDS, Make, contents, document
from utils.corpora import documents, shard_stages
from utils.corpora.segment_pairs import TokenizedDocument, pair_up
from utils.corpora.shard_stages import packed
from utils.text.sentences import split_sentences

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def rows_of(folder: Path, split: str = "train") -> list[dict[str, list[int]]]:
    return [row for path in sorted(folder.glob(f"{split}/*")) for row in parquet.read_table(path).to_pylist()]


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 20))
def test_sentences_are_gathered_up_to_the_room(lengths: list[int], room: int) -> None:
    text = TokenizedDocument(np.arange(sum(lengths)), np.cumsum([0, *lengths]).tolist())
    made = list(packed(text, room))
    assert [number for example in made for number in example.ids] == list(text.ids)
    examples = [example.sentences for example in made]
    assert sum(map(sum, examples)) == sum(lengths)
    assert all(0 < sum(example) <= room for example in examples)
    cut = [part for length in lengths for part in [room] * (length // room) + [length % room] * bool(length % room)]
    assert [part for example in examples for part in example] == cut
    if max(lengths, default=0) <= room:
        assert all(sum(example) + after[0] > room for example, after in pairwise(examples))


def wanted_of(text: str, tokenizer: BartTokenizer, room: int) -> Iterator[tuple[list[int], list[int]]]:
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
        wanted = [row for text in texts for row in wanted_of(text, tokenizer, 46)]
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
        sizes = len(first), len(second)
        assert min(sizes) >= 1 and sum(sizes) <= room
        assert any(random_text is sentences for sentences in (None, *texts))
        if sum(sizes) < room:
            assert {first.start, first.stop} <= {*document_text.bounds}
            assert {second.start, second.stop} <= {*(random_text or document_text).bounds}
            assert random_text is not None or second.start == first.stop
        assert first.start >= reached
        reached = first.stop


def test_shards_of_pairs(make: Make, corpus: Path, tmp_path: Path) -> None:
    """Half of the second segments are random, and of other documents; the same corpus gives the same bytes."""
    BertTokenizer.train([" ".join(WORDS)] * 3, 120).save_pretrained(tmp_path / "words")
    options = ("--task", "mlm_nsp", "--tokenizer", tmp_path / "words", "--val_input", corpus / "val.txt")
    options += ("--duplicate_factor", 5, "--min_tokens", 2)
    manifest = make("out", *options)
    assert (manifest["task"], manifest["options"]["duplicate_factor"]) == ("mlm_nsp", 5)
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


def test_texts_and_sentences_without_tokens_are_no_segments(make: Make, tmp_path: Path) -> None:
    """BERT has no tokens for the mark of a character that could not be decoded."""
    BertTokenizer.train([" ".join(WORDS)] * 3, 120).save_pretrained(tmp_path / "words")
    texts = [f"The dog sat.\n\ufffd\nA bird {'ran ' * n}on." for n in range(20)] + ["\ufffd" * n for n in range(1, 20)]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    options = ("--task", "mlm_nsp", "--tokenizer", tmp_path / "words", "--val_ratio", 0, "--min_tokens", 1)
    manifest = make("out", *options, inputs=[tmp_path / "a.txt"])
    assert manifest["documents"] == {"kept": 20, "dropped": {"near-empty": 19}}
    assert all(min(row["sentences"]) > 0 for row in rows_of(tmp_path / "out"))


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
            mean = sum(sizes) / len(sizes)
            assert all(abs(size - mean) < 4 * mean**0.5 for size in sizes)
            for file in of_bin:
                path = tmp_path / "out" / file["file"]
                table = parquet.read_table(path)
                assert table.schema.field("ids").type.value_type == table.schema.field("sentences").type.value_type
                assert str(table.schema.field("ids").type.value_type) == "uint16"
                lengths = [len(ids) + 2 for ids in table["ids"].to_pylist()]
                assert all(shorter < length <= longest for length in lengths)
                assert (file["examples"], file["tokens"]) == (len(lengths), sum(lengths) - 2 * len(lengths))
                content = bytearray(path.read_bytes())
                assert file["sha256"] == hashlib.sha256(content).hexdigest()
                content[100] ^= 1
                with pytest.raises(OSError, match="CRC"):
                    parquet.ParquetFile(BytesIO(content), page_checksum_verification=True).read()
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
    monkeypatch.setattr(shard_stages, "_CHARACTERS", 300)
    make("in_parts", "--bins", 16, 48)
    monkeypatch.setattr(documents, "PIECE", 4000)
    cut = make("in_pieces", "--bins", 16, 48)
    whole = contents(tmp_path / "whole")
    assert whole == contents(tmp_path / "turned") == contents(tmp_path / "in_parts")
    del whole["manifest.json"]
    pieces = contents(tmp_path / "in_pieces")
    assert json.loads(pieces.pop("manifest.json"))["splits"] == manifest["splits"]
    assert whole == pieces and cut["documents"] == manifest["documents"]
    assert make("other", "--bins", 16, 48, "--seed", 1)["splits"] != manifest["splits"]


@pytest.mark.parametrize("copies", [1, 3])
def test_some_text_is_held_out_of_the_smallest_corpus(
    copies: int, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One document, whatever the share, the pieces, and how often each document is there."""
    monkeypatch.setattr(documents, "PIECE", 1 << 11)
    texts = ["the dog sat on the mat and ran", "a bird flew over the old hill and it", "犬猫鳥" * 8, "men ran " * 4]
    (tmp_path / "few.txt").write_text("\n\n".join(texts * copies))
    manifest = make("out", "--val_ratio", 1e-9, inputs=[tmp_path / "few.txt"])
    assert manifest["documents"]["kept"] == 4
    tokenizer = BartTokenizer.from_pretrained(tmp_path / "out/tokenizer")
    [held_out] = {tokenizer.decode(row["ids"]) for row in rows_of(tmp_path / "out", "val")}
    assert held_out == "a bird flew over the old hill and it"


def test_shards_are_shuffled_across_the_corpus(make: Make, corpus: Path, tmp_path: Path) -> None:
    make("out", "--shards", 4)
    tokenizer = BartTokenizer.from_pretrained(corpus / "tokenizer")
    for path in (tmp_path / "out/train").iterdir():
        books = re.findall(
            r"Book (\w+) (\d+):", " ".join(map(tokenizer.decode, parquet.read_table(path)["ids"].to_pylist()))
        )
        assert {name for name, _ in books} == {"a", "b"}
        assert books != sorted(books) and len(books) > 10


def test_documents_that_are_left_out_are_counted(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    said = ", ".join(f"{reasons[reason]} {reason}" for reason in sorted(reasons))
    assert f"from 9 documents\ndocuments left out: {said}\nexamples left out: " in capsys.readouterr().out
    tokenizer = BartTokenizer.from_pretrained(tmp_path / "out/tokenizer")
    held_out = " ".join(tokenizer.decode(row["ids"]) for row in rows_of(tmp_path / "out", "val"))
    assert re.findall(r"T\d", held_out) in (["T4", "T5"], ["T5", "T4"])


def test_special_tokens_in_texts_are_text(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The <mask> and the </s> of <s> and <pad> in the old <unk>.")
    make("out", "--val_ratio", 0, inputs=[tmp_path / "a.txt"])
    [row] = rows_of(tmp_path / "out")
    tokenizer = BartTokenizer.from_pretrained(tmp_path / "out/tokenizer")
    assert tokenizer.decode(row["ids"], skip_special_tokens=True) == (tmp_path / "a.txt").read_text()
