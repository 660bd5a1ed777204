"""Ids and decoded text equal to transformers' BartTokenizer over the same files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer

transformers = pytest.importorskip("transformers")

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "bart-vocab"
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
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


class Pair(NamedTuple):
    ours: BartTokenizer
    theirs: transformers.PreTrainedTokenizerFast


def over_plain_files(folder: Path, **options: object) -> transformers.PreTrainedTokenizerFast:
    # transformers 5 gives <mask> no lstrip where only vocab.json and merges.txt are at hand. The published
    # tokenizer.json, and earlier releases, have it.
    mask = transformers.AddedToken("<mask>", lstrip=True, normalized=False, special=True)
    return transformers.BartTokenizer.from_pretrained(folder, mask_token=mask, **options)


@pytest.fixture(scope="module")
def plain_files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    if request.param == "published":
        if not PUBLISHED.is_dir():
            pytest.skip(f"no published vocabulary at {PUBLISHED}")
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(PUBLISHED / name, folder)
    else:
        BartTokenizer.train((text[:1000] for text in HOSTILE * 2), vocab_size=700).save_pretrained(folder)
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer_config.json").unlink()
    return folder


@pytest.fixture(scope="module")
def pair(plain_files: Path) -> Pair:
    return Pair(BartTokenizer.from_pretrained(plain_files), over_plain_files(plain_files))


both = pytest.mark.parametrize("plain_files", ["published", "trained"], indirect=True)


def assert_same(pair: Pair, texts: list[str], add_prefix_space: bool | None = None, **options: object) -> None:
    ours = pair.ours(texts, add_prefix_space=add_prefix_space, **options)
    theirs = pair.theirs(texts, **options)
    for key in ("input_ids", "attention_mask"):
        mine, other = ours[key], theirs[key]
        if torch.is_tensor(mine):
            assert mine.dtype == other.dtype
            mine, other = mine.tolist(), other.tolist()
        wrong = [text[:80] for text, left, right in zip(texts, mine, other, strict=True) if left != right]
        assert not wrong, f"{key} differ for {wrong!r}"


@pytest.mark.parametrize("plain_files", ["published"], indirect=True)
def test_known_ids(pair: Pair) -> None:
    assert pair.ours("Hello world")["input_ids"] == [0, 31414, 232, 2]
    assert pair.ours(" Hello world")["input_ids"] == [0, 20920, 232, 2]
    assert len(pair.ours) == 50265 and pair.ours.mask_token_id == 50264


@both
def test_vocabulary(pair: Pair) -> None:
    assert len(pair.ours) == pair.ours.vocab_size == len(pair.theirs)
    for name in ("bos", "pad", "eos", "unk", "mask"):
        assert getattr(pair.ours, f"{name}_token_id") == getattr(pair.theirs, f"{name}_token_id")


@both
def test_ids(pair: Pair) -> None:
    assert_same(pair, HOSTILE)
    for text in HOSTILE[:60]:
        assert dict(pair.ours(text)) == dict(pair.theirs(text))


@both
def test_ids_with_prefix_space(pair: Pair, plain_files: Path) -> None:
    spaced = over_plain_files(plain_files, add_prefix_space=True)
    assert_same(Pair(pair.ours, spaced), HOSTILE, add_prefix_space=True)
    assert_same(pair, HOSTILE)


@both
def test_truncation_and_padding(pair: Pair) -> None:
    for length in (3, 4, 16, 64):
        assert_same(pair, HOSTILE, max_length=length)
        assert_same(pair, HOSTILE, max_length=length, truncation=True)
        assert_same(pair, HOSTILE, max_length=length, truncation=True, padding=True, return_tensors="pt")
        assert_same(pair, HOSTILE, max_length=length, truncation=True, padding="max_length", return_tensors="pt")
    short = HOSTILE[:50]
    assert_same(pair, short, padding=True)
    assert_same(pair, short, padding="longest", return_tensors="pt")
    assert_same(pair, short, padding="max_length", max_length=600, return_tensors="pt")


@both
def test_decoded_text(pair: Pair) -> None:
    ids = pair.ours(HOSTILE)["input_ids"]
    # Also sequences that no text encodes to: characters cut in half, ids past the vocabulary.
    ids += [row[i : i + 5] for row in ids for i in range(0, min(len(row), 40), 3)] + [[len(pair.ours)], []]
    for skip in (False, True):
        theirs = [pair.theirs.decode(row, skip_special_tokens=skip, clean_up_tokenization_spaces=False) for row in ids]
        for clean in (False, True):
            assert pair.ours.batch_decode(ids, skip, clean_up_tokenization_spaces=clean) == theirs
    assert [pair.ours.decode(row) for row in ids] == [pair.theirs.decode(row) for row in ids]


@both
def test_round_trip(pair: Pair) -> None:
    texts = [text for text in HOSTILE if not any(token in text for token in SPECIAL)]
    assert pair.ours.batch_decode(pair.ours(texts)["input_ids"], skip_special_tokens=True) == texts


pieces = st.sampled_from(
    [*SPECIAL, " ", "  ", "\n", "'s", "'", "\u2028", "\u200d", "\U0001f468", "é", "\u0301", "the", "The", "3"]
)


@both
@settings(max_examples=60, deadline=None, database=None)
@given(texts=st.lists(st.text() | st.lists(pieces).map("".join), min_size=1, max_size=20))
def test_any_text(pair: Pair, texts: list[str]) -> None:
    assert_same(pair, texts)
    ids = pair.ours(texts)["input_ids"]
    for skip in (False, True):
        theirs = [pair.theirs.decode(row, skip_special_tokens=skip) for row in ids]
        assert pair.ours.batch_decode(ids, skip_special_tokens=skip) == theirs
    for text, row in zip(texts, ids, strict=True):
        if not any(token in text for token in SPECIAL):
            assert pair.ours.decode(row, skip_special_tokens=True) == text


words = st.sampled_from(
    "the don't 3rd x_y naïve ключ 中文 a. (b) -- <mask> </s> <s> _ 's é e\u0301 \u200b \u180e \x1c".split(" ")
)
gaps = st.sampled_from([" ", " ", " ", "  ", "\n", "\t", "\u2028", "\xa0", " \n ", ""])


@both
@settings(max_examples=150, deadline=None, database=None)
@given(
    texts=st.lists(st.lists(st.tuples(words, gaps).map("".join), max_size=60).map("".join), min_size=1, max_size=6),
    max_length=st.integers(3, 40),
)
def test_long_texts_in_parts(pair: Pair, texts: list[str], max_length: int) -> None:
    assert (
        pair.ours.encode_many(texts, max_length) == pair.theirs(texts, max_length=max_length, truncation=True).input_ids
    )


@both
def test_hostile_texts_in_parts(pair: Pair) -> None:
    for length in (3, 4, 16, 64):
        theirs = pair.theirs(HOSTILE, max_length=length, truncation=True).input_ids
        assert pair.ours.encode_many(HOSTILE, length) == theirs


@both
def test_texts_whose_tokens_span_words_are_not_cut(pair: Pair) -> None:
    for token in (AddedToken("the cat", special=False), AddedToken("word", rstrip=True, special=False)):
        backend = Tokenizer.from_str(pair.ours.to_json())
        backend.add_tokens([token])
        ours = BartTokenizer.from_json(backend.to_str())
        text = "a word the cat sat " * 30
        for length in range(3, 60):
            expected = ours([text], max_length=length, truncation=True)["input_ids"]
            assert ours.encode_many([text], length) == expected


@both
@pytest.mark.parametrize(("with_config", "prefix"), [(False, True), (True, False)])
def test_what_we_save_transformers_loads(pair: Pair, tmp_path: Path, with_config: bool, prefix: bool) -> None:
    marked = '"add_prefix_space":false'
    ours = BartTokenizer.from_json(pair.ours.to_json().replace(marked, marked.replace("false", str(prefix).lower())))
    assert ours.add_prefix_space is prefix
    ours.model_max_length = 77
    ours.save_pretrained(tmp_path)
    if with_config:
        (tmp_path / "config.json").write_text(
            '{"model_type": "bart", "architectures": ["BartForConditionalGeneration"]}'
        )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.model_max_length == 77
    assert type(theirs) is type(pair.theirs)
    assert_same(Pair(ours, theirs), HOSTILE)
    (tmp_path / "tokenizer.json").unlink()
    assert_same(Pair(ours, transformers.AutoTokenizer.from_pretrained(tmp_path)), HOSTILE)


@both
def test_what_transformers_saves_we_load(pair: Pair, tmp_path: Path) -> None:
    pair.theirs.save_pretrained(tmp_path)
    assert_same(Pair(BartTokenizer.from_pretrained(tmp_path), pair.theirs), HOSTILE)


QUESTION, CONTEXT = "Who won <mask> it?", "The jury gave the prize to Favin Tanmann, the violinist. </s> Ägypten"


@both
def test_pairs(pair: Pair) -> None:
    assert dict(pair.ours(QUESTION, CONTEXT)) == dict(pair.theirs(QUESTION, CONTEXT))
    assert dict(pair.ours(QUESTION, "")) == dict(pair.theirs(QUESTION, ""))
    firsts, seconds = HOSTILE, HOSTILE[::-1]
    for inputs in ((firsts, seconds), (list(zip(firsts, seconds, strict=True)),), ([[QUESTION, CONTEXT], ["a", ""]],)):
        assert dict(pair.ours(*inputs)) == dict(pair.theirs(*inputs))
        ours, theirs = (reader(*inputs, padding=True, truncation=True, max_length=24) for reader in pair)
        assert dict(ours) == dict(theirs)
    ours, theirs = (reader(firsts[:9], seconds[:9], return_tensors="pt", padding=True) for reader in pair)
    assert ours.keys() == theirs.keys() and torch.equal(ours["input_ids"], theirs["input_ids"])


@both
@pytest.mark.parametrize("strategy", [True, "longest_first", "only_first", "only_second", "do_not_truncate"])
def test_strategies_of_truncation(pair: Pair, strategy: bool | str) -> None:
    rows = [(QUESTION, CONTEXT), (CONTEXT, QUESTION), (CONTEXT, CONTEXT), ("", CONTEXT), (QUESTION, ""), (CONTEXT,)]
    refused = 0
    for texts in rows:
        for length in (4, 5, 8, 13, 21, 40, 80):
            given = {"truncation": strategy, "max_length": length}
            if strategy == "do_not_truncate":
                given = {"truncation": strategy, "max_length": length, "padding": "max_length"}
            try:
                expected = dict(pair.theirs(*texts, **given))
            except Exception:  # the library's own: nothing would be left of a text
                refused += 1
                with pytest.raises(InputError, match="truncation='only_"):
                    pair.ours(*texts, **given)
            else:
                assert dict(pair.ours(*texts, **given)) == expected, (texts, given)
    assert (refused > 0) is (strategy in ("only_first", "only_second"))


@pytest.mark.parametrize("plain_files", ["trained"], indirect=True)
def test_settings_go_before_tokenizer_json(pair: Pair, tmp_path: Path) -> None:
    pair.ours.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"add_prefix_space": True}))
    assert '"add_prefix_space":false' in (tmp_path / "tokenizer.json").read_text()
    assert_same(
        Pair(BartTokenizer.from_pretrained(tmp_path), transformers.BartTokenizer.from_pretrained(tmp_path)), HOSTILE
    )


ENTITY = {"content": "<ent>", "lstrip": False, "rstrip": True, "single_word": False, "normalized": True}
MASK = {"content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": False}


@both
@pytest.mark.parametrize(
    "files",
    [
        {
            "added_tokens.json": {"[E2]": 1, "<ent>": 0},  # behind the vocabulary
            "special_tokens_map.json": {"mask_token": MASK, "additional_special_tokens": ["<ent>"]},
        },
        {"special_tokens_map.json": {"mask_token": MASK, "additional_special_tokens": ["<ent>", "[E1]"]}},
        {"tokenizer_config.json": {"mask_token": {**MASK, "__type": "AddedToken"}, "add_prefix_space": True}},
        {"tokenizer_config.json": {"mask_token": {**MASK, "__type": "AddedToken", "lstrip": False}}},
        {"tokenizer_config.json": {"added_tokens_decoder": {"0": ENTITY, "-1": MASK}}},
    ],
    ids=["added_tokens.json", "special_tokens_map.json", "a mask", "a mask without lstrip", "added_tokens_decoder"],
)
def test_added_tokens_of_slow_tokenizers(pair: Pair, plain_files: Path, files: dict[str, dict], tmp_path: Path) -> None:
    size = len(pair.ours)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(plain_files / name, tmp_path)
    for name, content in files.items():
        if name == "added_tokens.json":
            content = {token: size + number for token, number in content.items()}
        if "added_tokens_decoder" in content:
            tokens = content["added_tokens_decoder"]
            content = {"added_tokens_decoder": {str(size + int(number)): token for number, token in tokens.items()}}
        (tmp_path / name).write_text(json.dumps(content))
    texts = ["hello <ent> x <ent>y <Ent> [E1] a", "a <mask> b<ent>  <ent><unk> </s> [E2] <unusedx>", *HOSTILE[:40]]

    def outcome(tokenizer: object) -> tuple[object, ...]:
        rows = tokenizer(texts)["input_ids"]
        return rows, [tokenizer.decode(row, skip_special_tokens=skip) for row in rows for skip in (True, False)]

    theirs, ours = transformers.BartTokenizer.from_pretrained(tmp_path), BartTokenizer.from_pretrained(tmp_path)
    expected = outcome(theirs)
    assert outcome(ours) == expected
    assert len(ours) == len(theirs) >= size
    assert ours.encode_many(texts, 1000) == expected[0]
    ours.save_pretrained(tmp_path / "saved")
    for reader in (BartTokenizer, transformers.AutoTokenizer):
        assert outcome(reader.from_pretrained(tmp_path / "saved")) == expected
    (tmp_path / "saved" / "tokenizer.json").unlink()
    for reader in (BartTokenizer, transformers.AutoTokenizer):
        assert outcome(reader.from_pretrained(tmp_path / "saved")) == expected
