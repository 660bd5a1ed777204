"""Ids, token types and decoded text equal to transformers' BertTokenizer over the same files, cased and uncased."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from bart.errors import InputError
from bert.tokenization.tokenization_bert import BertTokenizer
from tests.oracles.test_tokenizer_against_transformers import HOSTILE as OF_BART

REPLACED = {"<s>": "[CLS]", "</s>": "[SEP]", "<pad>": "[PAD]", "<unk>": "[UNK]", "<mask>": "[MASK]"}
HOSTILE = [*OF_BART]
for old, new in REPLACED.items():
    HOSTILE = [text.replace(old, new) for text in HOSTILE]
HOSTILE += ["Ångström ÀÉÎÕÜ ǅ İstanbul ıI ẞ ß", "[cls] [Mask] [UNK][SEP]", "##ing ## ##", "\u0345 \ud7ff", "a" * 101]
KEYS = ("input_ids", "token_type_ids", "attention_mask")


class Pair(NamedTuple):
    ours: BertTokenizer
    theirs: transformers.BertTokenizer


@pytest.fixture(scope="module", params=["uncased", "cased", "accents kept", "no Chinese"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Both read vocab.txt and tokenizer_config.json alone."""
    folder = tmp_path_factory.mktemp("files")
    lowercase = request.param != "cased"
    BertTokenizer.train([text[:400] for text in HOSTILE], 900, lowercase=lowercase).save_pretrained(folder)
    (folder / "tokenizer.json").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"strip_accents": False} if request.param == "accents kept" else {}
    settings |= {"tokenize_chinese_chars": False} if request.param == "no Chinese" else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return Pair(BertTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder))


def assert_same(pair: Pair, texts: list[str], others: list[str] | None = None, **options: object) -> None:
    ours, theirs = pair.ours(texts, others, **options), pair.theirs(texts, others, **options)
    for key in KEYS:
        wrong = [text[:80] for text, one, other in zip(texts, ours[key], theirs[key], strict=True) if one != other]
        assert not wrong, f"{key} differ for {wrong!r}"


def test_vocabulary(pair: Pair) -> None:
    assert len(pair.ours) == len(pair.theirs)
    for name in ("cls", "pad", "sep", "unk", "mask"):
        assert getattr(pair.ours, f"{name}_token_id") == getattr(pair.theirs, f"{name}_token_id")


def test_ids(pair: Pair) -> None:
    assert_same(pair, HOSTILE)
    for length in (3, 4, 16, 64):
        assert_same(pair, HOSTILE, max_length=length, truncation=True)
    assert_same(pair, HOSTILE, max_length=9, truncation=True, padding="max_length")
    assert_same(pair, HOSTILE[:20], padding=True)
    assert dict(pair.ours("Hello world")) == dict(pair.theirs("Hello world"))


def test_pairs(pair: Pair) -> None:
    others = HOSTILE[::-1]
    assert_same(pair, HOSTILE, others)
    for length in (8, 15, 64):
        assert_same(pair, HOSTILE, others, max_length=length, truncation=True)
    assert dict(pair.ours("Hello", "world")) == dict(pair.theirs("Hello", "world"))


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=4))
def test_any_text(pair: Pair, texts: list[str]) -> None:
    assert_same(pair, texts)


def test_text_again(pair: Pair) -> None:
    rows = pair.theirs(HOSTILE)["input_ids"]
    for skip in (False, True):
        assert pair.ours.batch_decode(rows, skip) == pair.theirs.batch_decode(rows, skip)


def test_files_in_and_out(pair: Pair, tmp_path: Path) -> None:
    """Through tokenizer.json, with transformers and back."""
    pair.ours.model_max_length = 77
    pair.ours.save_pretrained(tmp_path / "ours")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert_same(Pair(pair.ours, theirs), HOSTILE)
    assert (type(theirs).__name__, theirs.model_max_length) == ("BertTokenizer", 77)
    pair.theirs.save_pretrained(tmp_path / "theirs")
    ours = BertTokenizer.from_pretrained(tmp_path / "theirs")
    assert_same(Pair(ours, pair.theirs), HOSTILE)
    assert ours.same_vocabulary(pair.ours)


def test_places_of_ids(pair: Pair) -> None:
    texts = [text[:200] for text in HOSTILE if "[" not in text]
    theirs = pair.theirs(texts, add_special_tokens=False, return_offsets_mapping=True)
    for (ids, places), row, offsets in zip(
        pair.ours.encode_with_offsets(texts), theirs["input_ids"], theirs["offset_mapping"], strict=True
    ):
        assert (ids, places) == (row, offsets)


def test_training() -> None:
    texts = ["Low lower lowest", "new newer newest", "wide wider widest"] * 3
    ours = BertTokenizer.train(texts, 45)
    assert ours.decode(ours("Lowest newest")["input_ids"]) == "[CLS] lowest newest [SEP]"
    assert [ours.pad_token_id, ours.unk_token_id, ours.cls_token_id, ours.sep_token_id, ours.mask_token_id] == [
        *range(5)
    ]
    assert ours.same_vocabulary(BertTokenizer.train(iter(texts), 45))
    cased = BertTokenizer.train(texts, 45, lowercase=False)
    assert cased("Low")["input_ids"] != cased("low")["input_ids"]
    for values, message in (
        ((texts, 6), "vocab_size=6: give a whole number from 7"),
        (("text", 50), "several texts"),
        (([], 50), "nothing to learn"),
        ((["  ", "\n"], 50), "texts have no characters"),
    ):
        with pytest.raises(InputError, match=message):
            BertTokenizer.train(*values)


def test_what_is_refused(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="text_pair has 1 texts; allowed: 2"):
        pair.ours(["a", "b"], ["c"])
    with pytest.raises(InputError, match="different lengths"):
        pair.ours(["a", "b c d"], return_tensors="pt")
    (tmp_path / "vocab.txt").write_text("a\nb\n[UNK]\n")
    with pytest.raises(InputError, match=r"vocab.txt: the vocabulary lacks \[CLS\] \[PAD\] \[SEP\] \[MASK\]"):
        BertTokenizer.from_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="vocab.txt"):
        BertTokenizer.from_pretrained(tmp_path)
