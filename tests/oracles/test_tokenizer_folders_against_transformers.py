"""Folders of tokenizers whose files disagree: the ids are those of transformers' class, or the folder is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import transformers

from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer
from bart.tokenization.tokenizer import PretrainedTokenizer
from bert.tokenization.tokenization_bert import BertTokenizer

TEXTS = ["Hello wörld the dog <mask> sat [MASK] on", " a  b</s>c ", "DOG Ünn", "naïve 今天 a", "a"]
KINDS = {"bart": BartTokenizer, "bert": BertTokenizer}
PAIRED = {  # as sentence-transformers and tokenizers' own examples write it
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
}
BART, BERT = ("BartTokenizer", "RobertaTokenizerFast", None), ("BertTokenizer", "DistilBertTokenizerFast", None)
WHOLE = ("PreTrainedTokenizerFast", "TokenizersBackend")  # of which tokenizer.json is taken as it is
# Kind, classes, what tokenizer.json says otherwise, what tokenizer_config.json says otherwise.
READ = [
    ("bart", (*BART, *WHOLE), {}, {}),
    ("bart", ("LEDTokenizer", "MvpTokenizer"), {"post_processor": None}, {}),
    ("bart", (*BART, *WHOLE), {"pre_tokenizer": {"add_prefix_space": True}}, {"add_prefix_space": False}),
    ("bart", (*BART, *WHOLE), {"pre_tokenizer": {"add_prefix_space": True}}, {"add_prefix_space": None}),
    ("bart", (*BART, *WHOLE), {}, {"add_prefix_space": True}),
    ("bart", (*BART, *WHOLE), {"pre_tokenizer": {"use_regex": False}}, {}),
    ("bart", (*BART, *WHOLE), {"model": {"ignore_merges": True}}, {}),
    ("bart", BART, {"post_processor": PAIRED}, {}),
    ("bart", BART, {"post_processor": None}, {}),
    ("bert", (*BERT, *WHOLE), {}, {}),
    ("bert", (*BERT, *WHOLE), {"normalizer": {"lowercase": False}}, {"do_lower_case": None}),
    ("bert", (*BERT, *WHOLE), {"normalizer": {"strip_accents": False, "clean_text": False}}, {}),
    ("bert", (*BERT, *WHOLE), {"model": {"max_input_chars_per_word": 3}}, {"do_lower_case": False}),
    ("bert", BERT, {"post_processor": None}, {}),
]
REFUSED = [
    *[("bart", (name,), {}, {}) for name in ("GPT2Tokenizer", "T5TokenizerFast", "BertTokenizer", "OurTokenizer")],
    *[("bert", (name,), {}, {}) for name in ("MPNetTokenizer", "RobertaTokenizer")],
    *[("bart", WHOLE, {"post_processor": post}, {}) for post in (None, PAIRED)],
    ("bert", WHOLE, {"post_processor": None}, {}),
]


def folder_of(kind: str, name: str | None, pipeline: dict[str, Any], settings: dict[str, Any], folder: Path) -> Path:
    """A folder with a small vocabulary of a kind; None takes a setting away."""
    KINDS[kind].train([text for text in TEXTS for _ in range(3)], 290 if kind == "bart" else 80).save_pretrained(folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    for field, value in pipeline.items():
        content[field] = value if field == "post_processor" else content[field] | value
    (folder / "tokenizer.json").write_text(json.dumps(content))
    named = json.loads((folder / "tokenizer_config.json").read_text()) | settings | {"tokenizer_class": name}
    named = {field: value for field, value in named.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    return folder


def ids_of(tokenizer: PretrainedTokenizer | transformers.PreTrainedTokenizerBase) -> list[list[int]]:
    rows = [tokenizer(text)["input_ids"] for text in TEXTS]
    return rows + [tokenizer(text, pair)["input_ids"] for text in TEXTS for pair in TEXTS[1:4]]


@pytest.mark.parametrize("case", READ, ids=str)
def test_ids_are_those_of_the_class_that_the_folder_names(case: tuple[Any, ...], tmp_path: Path) -> None:
    kind, names, *files = case
    for name in names:
        folder = folder_of(kind, name, *files, tmp_path / str(name))
        assert ids_of(KINDS[kind].from_pretrained(folder)) == ids_of(transformers.AutoTokenizer.from_pretrained(folder))


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_folders_of_other_classes_are_refused(case: tuple[Any, ...], tmp_path: Path) -> None:
    kind, names, *files = case
    for name in names:
        folder = folder_of(kind, name, *files, tmp_path / name)
        message = (
            "its post-processor makes .* of a pair; allowed" if name in WHOLE else f"its tokenizer_class is '{name}'"
        )
        with pytest.raises(InputError, match=message):
            KINDS[kind].from_pretrained(folder)


def test_bytes_that_a_vocabulary_lacks(tmp_path: Path) -> None:
    folder = folder_of("bart", "BartTokenizer", {"model": {"unk_token": "<unk>"}}, {}, tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["another"] = vocabulary.pop("£")
    (folder / "tokenizer.json").write_text(json.dumps(content))
    ours, theirs = BartTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert ours("a £ b")["input_ids"] == theirs("a £ b")["input_ids"]


@pytest.mark.parametrize("kind", KINDS)
def test_padding_on_the_left_is_not_followed(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = folder_of(kind, f"{kind.title()}Tokenizer", {}, {"padding_side": "left"}, tmp_path)
    with caplog.at_level(logging.WARNING):
        tokenizer = KINDS[kind].from_pretrained(folder)
    assert "its padding_side, left, is not followed" in caplog.text
    theirs = transformers.AutoTokenizer.from_pretrained(folder, padding_side="right")
    assert tokenizer(TEXTS, padding=True)["input_ids"] == theirs(TEXTS, padding=True)["input_ids"]
