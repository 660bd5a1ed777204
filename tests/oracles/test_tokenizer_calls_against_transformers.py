"""Tokenizers' methods and offsets against transformers' fast tokenizers, over published vocabularies where they lie."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration, BartModel
from bart.tokenization.tokenization_bart import BartTokenizer
from bert.configuration.configuration_bert import BertConfig
from bert.modeling.modeling_bert import BertForMaskedLM, BertModel
from bert.tokenization.tokenization_bert import BertTokenizer
from tests.oracles.test_bert_against_transformers import SIZES, WEIGHTS
from tests.oracles.test_model_against_transformers import TINY
from tests.oracles.test_tokenizer_against_transformers import HOSTILE, PUBLISHED, over_plain_files

CHARACTERS = "ab Z9.,'\n\t\0\x1b\x7f\u00a0éÅß ﬁ\u0301\u200d東京한글שلนक😀🗼👩‍👧\ufeff\U0010ffff<mask>[MASK]"
RANDOM = st.lists(
    st.text(st.sampled_from(CHARACTERS) | st.characters(codec="utf-8"), max_size=30), min_size=2, max_size=2
)
NAMES = ("bart", "bart by words", "bert")


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Ours and theirs."""
    folder = tmp_path_factory.mktemp("files")
    if request.param == "bert":
        if os.path.isdir(WEIGHTS):
            folder = Path(WEIGHTS)
        else:
            BertTokenizer.train([text[:400] for text in HOSTILE], 900).save_pretrained(folder)
        return BertTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder)
    by_words = request.param != "bart"
    if PUBLISHED.is_dir():
        for name in ("vocab.json", "merges.txt"):
            (folder / name).write_bytes((PUBLISHED / name).read_bytes())
    else:
        BartTokenizer.train([text[:400] for text in HOSTILE * 2], 700).save_pretrained(folder)
        (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": by_words}))
    return BartTokenizer.from_pretrained(folder), over_plain_files(folder, add_prefix_space=by_words)


def assert_same_calls(ours: Any, theirs: Any, text: str, other: str) -> None:
    for given_texts in ((text,), (text, other), ([text, other],), ([text, other], [other, "a " + text])):
        for options in (
            {"return_offsets_mapping": True},
            {"return_offsets_mapping": True, "add_special_tokens": False},
            {"return_offsets_mapping": True, "max_length": 9, "truncation": True, "padding": "max_length"},
            {"add_special_tokens": False, "max_length": 7, "truncation": True},
            {"return_special_tokens_mask": True, "padding": "longest", "pad_to_multiple_of": 8},
            {"return_special_tokens_mask": True, "padding": "do_not_pad", "add_special_tokens": False},
        ):
            expected = dict(theirs(*given_texts, **options))
            assert dict(ours(*given_texts, **options)) == expected, (given_texts, options)
    ids = theirs.encode(text, other)
    assert ours.encode(text, other) == ids
    assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    assert ours.tokenize(text) == theirs.tokenize(text)
    assert ours.tokenize(text, other, add_special_tokens=True) == theirs.tokenize(text, other, add_special_tokens=True)
    assert ours.convert_ids_to_tokens(ids) == theirs.convert_ids_to_tokens(ids)
    assert ours.convert_ids_to_tokens(ids, True) == theirs.convert_ids_to_tokens(ids, skip_special_tokens=True)
    tokens = [*theirs.convert_ids_to_tokens(ids), text]
    assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)


def test_calls(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    assert ours.get_vocab() == theirs.get_vocab()
    for text, other in zip(HOSTILE, HOSTILE[::-1], strict=True):
        assert_same_calls(ours, theirs, text[:300], other[:300])
    for name in ("pad", "unk", "cls", "sep", "mask", "bos", "eos"):
        assert getattr(ours, f"{name}_token") == getattr(theirs, f"{name}_token")
    for token in ("a", "no token", "[SEP]", "</s>"):
        assert ours.convert_tokens_to_ids(token) == theirs.convert_tokens_to_ids(token)
    assert ours.convert_ids_to_tokens(5) == theirs.convert_ids_to_tokens(5)
    assert ours.convert_ids_to_tokens(torch.tensor([5, 6])) == theirs.convert_ids_to_tokens([5, 6])
    encoded = ours.encode("a text", return_tensors="pt")
    assert torch.equal(encoded, theirs.encode("a text", return_tensors="pt"))
    offsets = [x(["a text", "b"], padding=True, return_tensors="pt", return_offsets_mapping=True) for x in pair]
    assert all(torch.equal(value, offsets[1][name]) for name, value in offsets[0].items())


@settings(max_examples=60, deadline=None)
@given(texts=RANDOM)
def test_random_texts(pair: tuple[Any, Any], texts: list[str]) -> None:
    assert_same_calls(*pair, *texts)


def test_words_and_arrays(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    texts = [["Hello", "worlds"], ["naïve café", " lead", "😀", "", "東京"], ["<mask>", "[MASK]", "</s>"], [""]]
    for options in (
        {"padding": True, "return_tensors": "np"},
        {"max_length": 9, "truncation": True, "return_offsets_mapping": True},
        {"add_special_tokens": False, "return_special_tokens_mask": True},
    ):
        for given_texts in ((texts[:2],), (texts, texts[::-1]), (texts[1],), (texts[0], texts[2])):
            expected = dict(theirs(*given_texts, is_split_into_words=True, **options))
            actual = dict(ours(*given_texts, is_split_into_words=True, **options))
            assert actual.keys() == expected.keys()
            for name, value in expected.items():
                assert type(actual[name]) is type(value)
                assert (
                    (np.asarray(actual[name]) == np.asarray(value)).all()
                    if "padding" in options
                    else (actual[name] == value)
                )


PADS = [
    {},
    {"padding": "longest", "pad_to_multiple_of": 8},
    {"padding": "max_length", "max_length": 12},
    {"padding": "max_length", "max_length": 10, "pad_to_multiple_of": 8, "return_tensors": "pt"},
    {"return_tensors": "pt"},
    {"return_tensors": "np"},
    {"padding": False},
    {"padding": "do_not_pad"},
]


@pytest.mark.parametrize("options", PADS)
def test_padding(pair: tuple[Any, Any], options: dict[str, Any]) -> None:
    ours, theirs = pair
    texts = ["a text", "another, longer text", ""]
    rows = [{**theirs(text), "labels": number} for number, text in enumerate(texts)]
    batches: list[Any] = [
        dict(theirs(texts)),
        rows,
        [{"input_ids": row["input_ids"]} for row in rows],
        [{name: torch.tensor(value) for name, value in row.items()} for row in rows],
    ]
    if "return_tensors" not in options:
        batches.append(dict(theirs("a text")))
    for batch in batches:
        try:
            expected = dict(theirs.pad(batch, **options))
        except ValueError:  # of different lengths
            with pytest.raises(InputError, match="different lengths"):
                ours.pad(batch, **options)
            continue
        actual = dict(ours.pad(batch, **options))
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            assert type(actual[name]) is type(value)
            assert actual[name] == value if isinstance(value, list) else bool((actual[name] == value).all())


def test_spaces_that_are_left_out(pair: tuple[Any, Any], tmp_path: Path) -> None:
    rows = pair[1](["don't stop, ok? it's n't . we 've ' a", *HOSTILE])["input_ids"]
    pair[0].save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "clean_up_tokenization_spaces": True}))
    cleaning = type(pair[0]).from_pretrained(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for ours, theirs in (pair, cleaning):
        for cleans in (None, False, True):
            options = {"clean_up_tokenization_spaces": cleans}
            assert ours.batch_decode(rows, **options) == theirs.batch_decode(rows, **options)
            assert ours.decode(rows[0], **options) == theirs.decode(rows[0], **options)


def test_added_tokens(pair: tuple[Any, Any], tmp_path: Path) -> None:
    fresh = []
    for number, tokenizer in enumerate(pair):
        tokenizer.save_pretrained(tmp_path / str(number))
    ours = type(pair[0]).from_pretrained(tmp_path / "0")
    fresh = transformers.AutoTokenizer.from_pretrained(tmp_path / "0")
    for tokens, special in (
        ("[E1]", False),
        (["[E1]", "new word", "東京"], False),
        ([AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True, normalized=True)], False),
        (["<special>"], True),
        (["a", "[E1]"], False),  # which are there
        ([], False),
    ):
        assert ours.add_tokens(tokens, special_tokens=special) == fresh.add_tokens(tokens, special_tokens=special)
        assert len(ours) == len(fresh) == len(fresh.get_vocab())
    assert len(ours) == len(pair[0]) + 6
    text = "a [E1] new word in 東京 <left> <right> b"
    assert_same_calls(ours, fresh, text, "[e1]<mask>")
    ids = ours.encode(text + "<special>")
    assert ids == fresh.encode(text + "<special>")
    assert "<special>" not in ours.convert_ids_to_tokens(ids, skip_special_tokens=True)  # as decode, on both sides
    long = "word new word <right> " * 40
    assert ours.encode_many([long], 60)[0] == fresh(long, max_length=60, truncation=True)["input_ids"]
    assert ours.decode(ids, skip_special_tokens=True) == fresh.decode(ids, skip_special_tokens=True)
    ours.save_pretrained(tmp_path / "again")
    for again in (
        type(ours).from_pretrained(tmp_path / "again"),
        transformers.AutoTokenizer.from_pretrained(tmp_path / "again"),
    ):
        assert_same_calls(ours, again, text, "new word")


@pytest.mark.parametrize("model_class", [BartModel, BartForConditionalGeneration, BertModel, BertForMaskedLM])
@pytest.mark.parametrize("size", [101, 90])
def test_resized_embeddings(model_class: type, size: int, tmp_path: Path) -> None:
    """transformers computes the same from what is stored; ids that both vocabularies have keep what they had."""
    torch.manual_seed(0)
    config = BertConfig(**SIZES) if "Bert" in model_class.__name__ else BartConfig(**TINY)
    model = model_class(config).eval()
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 2]])}
    if model_class is BartForConditionalGeneration:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    before = model(**inputs)[0]
    assert model.resize_token_embeddings(size) is model.get_input_embeddings()
    model.save_pretrained(tmp_path)
    theirs = getattr(transformers, model_class.__name__).from_pretrained(tmp_path)
    given_ids = {name: torch.tensor([[5, 6, size - 1, 2]]) for name in inputs}
    torch.testing.assert_close(model(**given_ids)[0], theirs(**given_ids)[0])
    after, kept = model(**inputs)[0], min(size, 97) if "For" in model_class.__name__ else None
    torch.testing.assert_close(after[..., :kept], before[..., :kept])
    assert after.shape[-1] == (size if kept else 32)
    with pytest.raises(InputError, match="vocab_size"):
        model.resize_token_embeddings(0)


def test_wrong_calls(pair: tuple[Any, Any]) -> None:
    ours, _ = pair
    for call, message in (
        (lambda: ours.encode(["a", "b"]), "text must be a string, got list; the tokenizer itself takes a list"),
        (lambda: ours.pad({"labels": [1]}), "pad\\(\\) got labels; allowed: input_ids"),
        (lambda: ours.pad([]), "pad\\(\\) got nothing"),
        (lambda: ours.pad({"input_ids": [[1]]}, padding="most"), "padding='most': give one of"),
        (
            lambda: ours("a", truncation=True, max_length=10, padding=True, pad_to_multiple_of=8),
            "pad_to_multiple_of=8: max_length is 10, no multiple of it",
        ),
        (lambda: ours.pad({"input_ids": [[1]]}, pad_to_multiple_of=0), "pad_to_multiple_of=0: give a whole number"),
        (
            lambda: ours.pad({"input_ids": [[1], [2]], "labels": [[1], [2, 3]]}, return_tensors="pt"),
            "return_tensors='pt': input_ids, labels, attention_mask make no tensors",
        ),
        (lambda: ours.add_tokens([3]), "new_tokens has 3; allowed: strings"),
        (lambda: ours("a text", is_split_into_words=True), "texts\\[0\\] must be a list of words .*got 'a text'"),
        (lambda: ours([["a"]], ["b"], is_split_into_words=True), "must both be one text, or both lists of texts"),
        (lambda: setattr(ours, "padding_side", "left"), "padding_side is 'left'; allowed: 'right'"),
        (lambda: setattr(ours, "truncation_side", "left"), "truncation_side is 'left'; allowed: 'right'"),
        (lambda: ours.convert_tokens_to_ids(5), "tokens is 5; allowed: a token, or a list of tokens"),
        (lambda: ours.batch_decode([5, 6]), "cannot decode: expected integer ids from 0, one list"),
        (lambda: ours.convert_ids_to_tokens([-1]), "cannot convert: expected integer ids from 0"),
        (lambda: ours.convert_ids_to_tokens(["a"]), "cannot convert: expected integer ids from 0"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    with pytest.raises(InputError, match="return_length"):
        ours("a", return_length=True)
