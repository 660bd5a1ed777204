"""Ids, offsets and decoded text equal to transformers' tokenizers of BART and BERT over the same files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from bart.tokenization.tokenization_bart import BartTokenizer
from bert.tokenization.tokenization_bert import BertTokenizer

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "bart-vocab"
SPECIAL = {"<s>": "[CLS]", "</s>": "[SEP]", "<pad>": "[PAD]", "<unk>": "[UNK]", "<mask>": "[MASK]"}
# fmt: off
HOSTILE = [
    "", " ", "  ", "\n", "\t", "\r\n", " \n \t ", "\0", "a\0b", "\x01\x02\x1b[31m\x7f\x85",
    "\x0b\x0c\x1c\x1d\x1e\x1f", "Hello world", " Hello world", "Hello  world   with    runs     of      spaces",
    "trailing   ", "   leading", "x" + " " * 500 + "y", "tabs\tand\nnew\r\nlines\n\n\n",
    "para\u2028graph\u2029separators", "\ufeffbyte order mark\ufeff", "no\u00a0break\u202fspaces\u3000here",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family",
    "\U0001f3f3\ufe0f\u200d\U0001f308\U0001f1e9\U0001f1ea\U0001f44d\U0001f3fd", "שלום עולם",
    "مرحبا بالعالم ١٢٣", "\u202eoverride\u202c \u2066isolate\u2069",
    "e\u0301 \u00e9 Z\u0351\u036b\u0343\u036a\u0302\u036b", "\u0301combining first", "नमस्ते दुनिया",
    "สวัสดีชาวโลก", "你好，世界。", "こんにちは", "한국어 \u1112\u1161\u11ab", "ﬁ ½ ² Ⅷ",
    "\uffff\ufffe\U0010ffff\ud7ff\ue000", "it's I'm you'll we've they're don't DON'T 'S 's's ''s",
    "1234567890 3.14 1,000,000", "a.b,c;d:e!f?g", "CamelCaseWords snake_case_words",
    "https://example.org/?q=a&b=%20#x", "a <mask> b", "a<mask>b", "<mask>", "  <mask>  ", "\u3000\n<mask>",
    "<s>", "</s>", "a </s> b", "<s> twice <s></s></s> <pad><unk>", "< s >", "<S>", "<mask", "<<mask>>",
    "Ġ Ċ âĢĻ", "\u0120the", "do n't , he 's , I 'm , we 've , you 're ' x ' . ? !", "a" * 100_000,
    "\U0001f600" * 2_000, "ab " * 3_000,
]
# fmt: on
OF_BERT = ["Ångström ÀÉÎÕÜ ǅ İstanbul ıI ẞ ß", "[cls] [Mask] [UNK][SEP]", "##ing ## ##", "\u0345 \ud7ff", "a" * 101]
for text in HOSTILE:
    for of_bart, of_bert in SPECIAL.items():
        text = text.replace(of_bart, of_bert)
    OF_BERT.append(text)


class Pair(NamedTuple):
    ours: Any
    theirs: transformers.PreTrainedTokenizerFast

    @property
    def hostile(self) -> list[str]:
        return OF_BERT if isinstance(self.ours, BertTokenizer) else HOSTILE


def over_plain_files(folder: Path, **options: object) -> transformers.PreTrainedTokenizerFast:
    # transformers 5 gives <mask> no lstrip where only vocab.json and merges.txt are at hand. The published
    # tokenizer.json, and earlier releases, have it.
    mask = transformers.AddedToken("<mask>", lstrip=True, normalized=False, special=True)
    return transformers.BartTokenizer.from_pretrained(folder, mask_token=mask, **options)


def files_of(kind: str, folder: Path) -> Path:
    """A vocabulary's own files, without tokenizer.json."""
    if kind == "published":
        if not PUBLISHED.is_dir():
            pytest.skip(f"no published vocabulary at {PUBLISHED}")
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(PUBLISHED / name, folder)
        return folder
    if kind in ("trained", "by words"):
        BartTokenizer.train((text[:1000] for text in HOSTILE * 2), vocab_size=700).save_pretrained(folder)
        changes = {"add_prefix_space": kind == "by words"}
    else:
        BertTokenizer.train([text[:400] for text in OF_BERT], 900, lowercase=kind != "cased").save_pretrained(folder)
        changes = {"accents kept": {"strip_accents": False}, "no Chinese": {"tokenize_chinese_chars": False}}.get(kind)
    (folder / "tokenizer.json").unlink()
    fields = json.loads((folder / "tokenizer_config.json").read_text()) | (changes or {})
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    return folder


@pytest.fixture(
    scope="module", params=["published", "trained", "by words", "uncased", "cased", "accents kept", "no Chinese"]
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = files_of(request.param, tmp_path_factory.mktemp("files"))
    if (folder / "vocab.txt").exists():
        return Pair(BertTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder))
    theirs = over_plain_files(folder, add_prefix_space=request.param == "by words")
    return Pair(BartTokenizer.from_pretrained(folder), theirs)


bart = pytest.mark.parametrize("pair", ["published", "trained"], indirect=True)


def assert_same(pair: Pair, *texts: list[str], **options: object) -> None:
    ours, theirs = pair.ours(*texts, **options), pair.theirs(*texts, **options)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        mine, other = (x.tolist() if hasattr(x, "tolist") else x for x in (ours[name], value))
        assert type(ours[name]) is type(value)
        wrong = [text[:80] for text, left, right in zip(texts[0], mine, other, strict=True) if left != right]
        assert not wrong, f"{name} differ for {wrong!r}"


@pytest.mark.parametrize("pair", ["published"], indirect=True)
def test_known_ids(pair: Pair) -> None:
    assert pair.ours("Hello world")["input_ids"] == [0, 31414, 232, 2]
    assert pair.ours(" Hello world")["input_ids"] == [0, 20920, 232, 2]
    assert len(pair.ours) == 50265 and pair.ours.mask_token_id == 50264


def test_vocabulary(pair: Pair) -> None:
    assert len(pair.ours) == pair.ours.vocab_size == len(pair.theirs)
    assert pair.ours.get_vocab() == pair.theirs.get_vocab()
    for name in ("pad", "unk", "cls", "sep", "mask", "bos", "eos"):
        assert getattr(pair.ours, f"{name}_token") == getattr(pair.theirs, f"{name}_token")
    for name in ("cls", "pad", "sep", "unk", "mask"):
        assert getattr(pair.ours, f"{name}_token_id") == getattr(pair.theirs, f"{name}_token_id")


def test_ids_of_texts_and_pairs(pair: Pair) -> None:
    texts, others = pair.hostile, pair.hostile[::-1]
    assert_same(pair, texts)
    assert_same(pair, texts, return_offsets_mapping=True, add_special_tokens=False)
    assert_same(pair, texts, others, return_offsets_mapping=True)
    for length in (4, 9, 16, 64):
        assert_same(pair, texts, max_length=length)
        assert_same(pair, texts, others, max_length=length, truncation=True, return_offsets_mapping=True)
        assert_same(pair, texts, max_length=length, truncation=True, padding="max_length", return_tensors="pt")
        assert_same(pair, texts, others, max_length=length, truncation=True, add_special_tokens=False)
    assert_same(pair, texts, max_length=3, truncation=True)
    assert_same(pair, texts[:50], padding=True, return_tensors="np")
    assert_same(pair, texts[:50], others[-50:], padding="longest", return_tensors="pt", return_offsets_mapping=True)
    for text, other in zip(texts[:60], others, strict=False):
        assert dict(pair.ours(text, other)) == dict(pair.theirs(text, other))
        assert dict(pair.ours(text)) == dict(pair.theirs(text))
        assert pair.ours.tokenize(text) == pair.theirs.tokenize(text)
    assert torch.equal(*(tokenizer.encode("a text", return_tensors="pt") for tokenizer in pair))


def assert_same_text(pair: Pair, rows: list[list[int]]) -> None:
    for skip in (False, True):
        for clean in (None, False, True):
            options = {"skip_special_tokens": skip, "clean_up_tokenization_spaces": clean}
            assert pair.ours.batch_decode(rows, **options) == pair.theirs.batch_decode(rows, **options)
    assert [pair.ours.decode(row) for row in rows] == [pair.theirs.decode(row) for row in rows]


def test_decoded_text(pair: Pair, tmp_path: Path) -> None:
    rows = pair.theirs(["don't stop, ok? it's n't . we 've ' a", *pair.hostile])["input_ids"]
    # Also sequences that no text encodes to: characters cut in half, ids past the vocabulary.
    rows += [row[i : i + 5] for row in rows for i in range(0, min(len(row), 40), 3)] + [[len(pair.ours)], []]
    assert_same_text(pair, rows)
    pair.ours.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**fields, "clean_up_tokenization_spaces": True}))
    readers = type(pair.ours), transformers.AutoTokenizer
    assert_same_text(Pair(*(reader.from_pretrained(tmp_path) for reader in readers)), rows)


@bart
def test_round_trip(pair: Pair) -> None:
    texts = [text for text in HOSTILE if not any(token in text for token in SPECIAL)]
    assert pair.ours.batch_decode(pair.ours(texts)["input_ids"], skip_special_tokens=True) == texts


CHARACTERS = "ab Z9.,'\n\t\0\x1b\x7f\u00a0éÅß ﬁ\u0301\u200d東京한글שलนक😀🗼👩‍👧\ufeff\U0010ffff"
pieces = st.sampled_from([*CHARACTERS, *SPECIAL, *SPECIAL.values(), "'s", "\u2028", "the", "The", "3"])
texts_of_any_kind = st.text(max_size=40) | st.lists(pieces, max_size=30).map("".join)


@settings(max_examples=60, deadline=None, database=None)
@given(texts=st.lists(texts_of_any_kind, min_size=1, max_size=8))
def test_any_text(pair: Pair, texts: list[str]) -> None:
    assert_same(pair, texts, return_offsets_mapping=True)
    assert_same(pair, texts, texts[::-1], max_length=9, truncation=True, padding="max_length")
    assert_same_text(pair, pair.theirs(texts)["input_ids"])
    assert list(map(pair.ours.tokenize, texts)) == list(map(pair.theirs.tokenize, texts))


@pytest.mark.parametrize("with_config", [False, True])
def test_what_we_save_transformers_loads_and_back(pair: Pair, tmp_path: Path, with_config: bool) -> None:
    """With tokenizer.json, and without it."""
    kind = "Bert" if isinstance(pair.ours, BertTokenizer) else "Bart"
    ours = type(pair.ours).from_json(pair.ours.to_json())
    ours.model_max_length = 77
    ours.save_pretrained(tmp_path)
    if with_config:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind.lower()}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.model_max_length == 77
    assert type(theirs) is type(pair.theirs)
    assert_same(Pair(ours, theirs), pair.hostile)
    (tmp_path / "tokenizer.json").unlink()
    assert_same(Pair(ours, transformers.AutoTokenizer.from_pretrained(tmp_path)), pair.hostile)
    pair.theirs.save_pretrained(tmp_path / "theirs")
    assert_same(Pair(type(ours).from_pretrained(tmp_path / "theirs"), pair.theirs), pair.hostile)


@pytest.mark.parametrize("pair", ["trained", "by words", "uncased"], indirect=True)
def test_added_tokens(pair: Pair, tmp_path: Path) -> None:
    pair.ours.save_pretrained(tmp_path / "0")
    readers = type(pair.ours), transformers.AutoTokenizer
    added = Pair(*(reader.from_pretrained(tmp_path / "0") for reader in readers))
    for tokens, special in (
        ("[E1]", False),
        (["[E1]", "new word", "東京"], False),
        ([AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True, normalized=True)], False),
        (["<special>"], True),
        (["a", "[E1]"], False),  # which are there
        ([], False),
    ):
        counts = [tokenizer.add_tokens(tokens, special_tokens=special) for tokenizer in added]
        assert counts[0] == counts[1]
        assert len(added.ours) == len(added.theirs) == len(added.theirs.get_vocab())
    assert len(added.ours) == len(pair.ours) + 6
    texts = ["a [E1] new word in 東京 <left> <right> b<special>", "[e1]<mask>"]
    assert_same(added, texts, return_offsets_mapping=True)
    assert_same_text(added, added.theirs(texts)["input_ids"])
    added.ours.save_pretrained(tmp_path / "again")
    for reader in readers:
        assert_same(Pair(added.ours, reader.from_pretrained(tmp_path / "again")), texts, return_offsets_mapping=True)
