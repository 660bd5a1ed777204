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
    ours, theirs = (each(texts, add_special_tokens=False, return_offsets_mapping=True) for each in pair)
    assert (ours["input_ids"], ours["offset_mapping"]) == (theirs["input_ids"], theirs["offset_mapping"])


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


VOCABULARY = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nworld\n[unused1]\ne\n##1\n[\n]\n##d\na\n"
WITH_MARKERS = ["hello world [E1] xyz [e1] [unused1] a [E1]", "[pad] [PAD] hello [E2] [E3] a[E1]a [E1]s <unk>[BOS]"]


def typed(**flags: bool) -> dict[str, object]:
    """A token as files hold it."""
    return {"content": "[E1]", **dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False), **flags}


def outcome(tokenizer: BertTokenizer | transformers.BertTokenizer) -> tuple[object, ...]:
    encoded = tokenizer(WITH_MARKERS, padding=True)
    texts = [tokenizer.decode(row, skip_special_tokens=skip) for row in encoded["input_ids"] for skip in (True, False)]
    return dict(encoded), texts, len(tokenizer), tokenizer.pad_token_id, tokenizer.unk_token_id


CONFIG_FILE, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
DECODER = {"14": typed(rstrip=True, normalized=True, special=False)}
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


@pytest.mark.parametrize(
    "files",
    [
        {},
        {ADDED: {"[E1]": 14, "[E2]": 15}},
        {ADDED: {"[E2]": 15, "[E1]": 14}, CONFIG_FILE: {"additional_special_tokens": ["[E1]"]}},
        {ADDED: {"[E1]": 14}, MAP: {"additional_special_tokens": ["[E1]"]}},
        {MAP: {"additional_special_tokens": ["[E1]", "[E2]"], "unk_token": "[UNK]"}},
        {MAP: {"additional_special_tokens": ["[unused1]"]}},
        {CONFIG_FILE: {"additional_special_tokens": ["[E1]"]}, MAP: {"additional_special_tokens": ["[E2]"]}},
        {CONFIG_FILE: {"additional_special_tokens": [{"__type": "AddedToken", **typed(lstrip=True)}]}},
        {CONFIG_FILE: {"extra_special_tokens": {"entity_token": "[E1]"}}},
        {CONFIG_FILE: {"extra_special_tokens": {"a_token": "[E2]"}, "additional_special_tokens": ["[E1]"]}},
        {CONFIG_FILE: {"e1_token": "[E1]", "bos_token": "[BOS]", "eos_token": None, "add_bos_token": True}},
        {CONFIG_FILE: {"added_tokens_decoder": DECODER, "additional_special_tokens": ["[E2]"]}, ADDED: {"[E7]": 14}},
        *({CONFIG_FILE: {"added_tokens_decoder": {"14": typed(**{flag: True})}}} for flag in FLAGS),
        {CONFIG_FILE: {"added_tokens_decoder": {"14": typed(lstrip=True, rstrip=True, normalized=True)}}},
    ],
    ids=str,
)
@pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
def test_added_tokens_of_slow_tokenizers(files: dict[str, dict], lowercase: bool, tmp_path: Path) -> None:
    """Read, saved and read again, by both programs, with and without our tokenizer.json."""
    (tmp_path / "vocab.txt").write_text(VOCABULARY)
    settings = {**files.get(CONFIG_FILE, {}), "do_lower_case": lowercase}
    for name, content in {**files, CONFIG_FILE: settings}.items():
        (tmp_path / name).write_text(json.dumps(content))
    expected = outcome(transformers.BertTokenizer.from_pretrained(tmp_path))
    ours = BertTokenizer.from_pretrained(tmp_path)
    assert outcome(ours) == expected
    assert outcome(BertTokenizer.from_json(ours.to_json())) == expected
    ours.save_pretrained(tmp_path / "saved")
    for reader in (BertTokenizer, transformers.AutoTokenizer):
        assert outcome(reader.from_pretrained(tmp_path / "saved")) == expected
    (tmp_path / "saved" / "tokenizer.json").unlink()
    for reader in (BertTokenizer, transformers.AutoTokenizer):
        assert outcome(reader.from_pretrained(tmp_path / "saved")) == expected


@pytest.mark.parametrize(
    ("vocabulary", "settings"),
    [
        (VOCABULARY.replace("[UNK]", "<unk>"), {CONFIG_FILE: {"unk_token": "<unk>"}}),
        (VOCABULARY.replace("[UNK]", "<unk>"), {MAP: {"unk_token": {**typed(), "content": "<unk>"}}}),
        (VOCABULARY.replace("\n", "\r\n"), {}),
        (VOCABULARY.replace("world\n", "world \n\n"), {}),
        (VOCABULARY[:-1], {}),
    ],
    ids=["unk_token", "unk_token of the map", "CRLF", "a blank line", "no last line end"],
)
def test_other_vocabularies(vocabulary: str, settings: dict[str, dict], tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(vocabulary, newline="")
    for name, content in settings.items():
        (tmp_path / name).write_text(json.dumps(content))
    expected = outcome(transformers.BertTokenizer.from_pretrained(tmp_path))
    ours = BertTokenizer.from_pretrained(tmp_path)
    assert outcome(ours) == outcome(BertTokenizer.from_json(ours.to_json())) == expected
    ours.save_pretrained(tmp_path / "saved")
    assert outcome(BertTokenizer.from_pretrained(tmp_path / "saved")) == expected


def test_repeated_lines_keep_the_ids_of_the_others(tmp_path: Path) -> None:
    """transformers counts tokens, 14 for ids up to 14; a table needs a row for each id."""
    (tmp_path / "vocab.txt").write_text(VOCABULARY.replace("world\n", "world\nhello\n"))
    theirs, ours = transformers.BertTokenizer.from_pretrained(tmp_path), BertTokenizer.from_pretrained(tmp_path)
    assert outcome(ours)[:2] == outcome(theirs)[:2]
    assert (len(ours), len(theirs), ours("hello a")["input_ids"]) == (15, 14, [2, 7, 14, 3])
    ours.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "tokenizer.json").unlink()
    for reader in (BertTokenizer, transformers.AutoTokenizer):
        assert outcome(reader.from_pretrained(tmp_path / "saved")) == outcome(ours)


def test_a_byte_order_mark_is_no_part_of_the_first_token(tmp_path: Path) -> None:
    """transformers takes it for one, and adds a second [PAD] behind the vocabulary; other ids are equal."""
    (tmp_path / "vocab.txt").write_text("\ufeff" + VOCABULARY)
    theirs, ours = transformers.BertTokenizer.from_pretrained(tmp_path), BertTokenizer.from_pretrained(tmp_path)
    assert ours(WITH_MARKERS[0])["input_ids"] == theirs(WITH_MARKERS[0])["input_ids"]
    assert (ours.pad_token_id, theirs.pad_token_id, len(ours)) == (0, 14, 14)


@pytest.mark.parametrize(
    "settings",
    [
        {"do_lower_case": False},
        {"strip_accents": False},
        {"tokenize_chinese_chars": False},
        {"max_len": 77},
        {"max_len": 77.0},
    ],
    ids=str,
)
def test_settings_go_before_tokenizer_json(settings: dict[str, object], tmp_path: Path) -> None:
    BertTokenizer.train(["Ångström ÀÉ 你好 hello Hello a \u00c0"] * 3, 60, lowercase=False).save_pretrained(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace('"lowercase":false', '"lowercase":true'))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **settings}))
    ours, theirs = BertTokenizer.from_pretrained(tmp_path), transformers.BertTokenizer.from_pretrained(tmp_path)
    for text in ("Ångström ÀÉ", "你好 Hello", "hello"):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    assert ours.model_max_length == (theirs.model_max_length if "max_len" in settings else 512)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({CONFIG_FILE: {"truncation_side": "left"}}, "truncation_side is 'left'; allowed: 'right'"),
        ({CONFIG_FILE: {"do_lower_case": "no"}}, "tokenizer_config.json: .*bool"),
        ({CONFIG_FILE: {"padding_side": "both"}}, "padding_side is 'both'; allowed: 'right'"),
        (
            {CONFIG_FILE: {"model_max_length": "128"}},
            "its model_max_length is '128'; allowed: a number of",
        ),
        ({CONFIG_FILE: {"model_max_length": True}}, "config.json: its model_max_length is True; allowed: a number of"),
        ({CONFIG_FILE: {"max_len": 2}}, "config.json: its model_max_length is 2; allowed: a number of at least 3"),
        (
            {CONFIG_FILE: {"unk_token": {"lstrip": False}}},
            "its unk_token is {'lstrip': False}; allowed: a token",
        ),
        ({MAP: {"unk_token": 3}}, "its unk_token is 3; allowed: a token, or an object with its content"),
        ({ADDED: {"[E1]": 20}}, r"its added token '\[E1\]' has id 20; allowed: 14"),
        ({CONFIG_FILE: {"added_tokens_decoder": {"7": typed()}}}, r"its added token '\[E1\]' has id 7; allowed: 14"),
        ({CONFIG_FILE: {"cls_token": "<s>"}}, r"its cls_token is '<s>'; allowed: '\[CLS\]'"),
        ({ADDED: {"[E1]": None}}, "its added tokens cannot be read"),
        ({CONFIG_FILE: {"added_tokens_decoder": {"14": "[E1]"}}}, "its added tokens cannot be read"),
        ({CONFIG_FILE: {"added_tokens_decoder": ["[E1]"]}}, "its added tokens cannot be read"),
        ({MAP: {"additional_special_tokens": [3]}}, "its added tokens cannot be read"),
        ({CONFIG_FILE: {"additional_special_tokens": "[E1]"}}, "its added tokens cannot be read"),
    ],
    ids=str,
)
def test_added_tokens_that_cannot_be(files: dict[str, dict], message: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(VOCABULARY)
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(InputError, match=message) as error:
        BertTokenizer.from_pretrained(tmp_path)
    assert "\n" not in str(error.value)
