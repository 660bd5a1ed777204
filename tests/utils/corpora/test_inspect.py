"""The lines that `utils.corpora.inspect` prints of data directories, tables and shards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from bart.errors import InputError
from bert.tokenization.tokenization_bert import BertTokenizer
from tests.tiny_shards import tiny_tokenizer, write_tiny_shards
from utils.corpora.inspect import main

TEXTS = [f"the cat sat on {number} mats" + " and ran" * (number % 7) for number in range(40)]


def cells_of(text: str, begin: str) -> list[str]:
    """The cells of the line that begins so, behind that."""
    [line] = [line for line in text.splitlines() if line.startswith(begin)]
    return line.removeprefix(begin).replace(",", "").split()


def expected(lengths: list[int]) -> list[str]:
    return [str(len(lengths)), *(f"{value:.0f}" for value in np.percentile(lengths, (5, 50, 90, 99, 100)))]


def test_line_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lengths are those of the tokenizer; of several references the first one counts."""
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    targets = [text[4:] for text in TEXTS]
    (tmp_path / "train.source").write_text("".join(f"{text}\n" for text in TEXTS))
    (tmp_path / "train.target").write_text("".join(json.dumps([text, "other"]) + "\n" for text in targets))
    command = [str(tmp_path), "--tokenizer", str(tmp_path / "tokenizer"), "--max-source-length", "16", "900"]
    main([*command, "--max_target_length", "14"])
    out = capsys.readouterr().out
    for side, texts, limits in (("source", TEXTS, (16, 900)), ("target", targets, (14,))):
        lengths = [len(tokenizer(text)["input_ids"]) for text in texts]
        cut = [f"{np.mean(np.array(lengths) > limit):.1%} at {limit}".split() for limit in limits]
        assert cells_of(out, f"train, {side}") == [*expected(lengths), *(word for each in cut for word in each)]
    (tmp_path / "val.source").write_text("a\n")
    with pytest.raises(InputError, match=r"val\.target: no such file; a data directory holds"):
        main(command)


def test_labels_and_the_vocabulary_of_bert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    BertTokenizer.train(TEXTS, 60).save_pretrained(tmp_path / "tokenizer")
    rows = [{"text": text, "label": number % 2, "n": number} for number, text in enumerate(TEXTS[:9])]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tagged = "".join(json.dumps({"words": text.split(), "tags": ["O"] * 5}) + "\n" for text in TEXTS)
    (tmp_path / "tagged.jsonl").write_text(tagged)
    options = ["--tokenizer", str(tmp_path / "tokenizer")]
    lengths = [len(BertTokenizer.from_pretrained(tmp_path / "tokenizer")(text)["input_ids"]) for text in TEXTS]
    for place, begin, size in ((tmp_path, "train, text", 9), (tmp_path / "tagged.jsonl", "tagged, words", 40)):
        main([str(place), *options])
        out = capsys.readouterr().out
        assert cells_of(out, begin)[:6] == expected(lengths[:size])
        assert "train, label: 0 5, 1 4" in out or "tagged, tags: O 200" in out
        assert ", n " not in out


def test_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_shards(tmp_path, bins=(16, 48), files=1)
    main([str(tmp_path)])
    out = capsys.readouterr().out
    assert ": 52 documents\n" in out
    rows = parquet.read_table(tmp_path / "train/48-00000.parquet").to_pylist()
    sentences = np.mean([len(row["sentences"]) for row in rows])
    of_bin = expected([len(row["ids"]) + 2 for row in rows])
    assert cells_of(out, "train       48") == ["1", *of_bin, f"{sentences:.1f}"]
