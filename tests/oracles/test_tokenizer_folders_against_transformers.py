"""Folders of tokenizers, whose files may disagree: ids are those of transformers' class, or the folder is refused."""

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
from tests.oracles.test_tokenizer_against_transformers import HOSTILE

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
    ("bert", (*BERT, *WHOLE), {}, {"do_lower_case": False}),
    ("bert", (*BERT, *WHOLE), {}, {"strip_accents": False}),
    ("bert", (*BERT, *WHOLE), {}, {"tokenize_chinese_chars": False}),
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
    assert "padding_side is left; batches are padded on the right" in caplog.text
    theirs = transformers.AutoTokenizer.from_pretrained(folder, padding_side="right")
    assert tokenizer(TEXTS, padding=True)["input_ids"] == theirs(TEXTS, padding=True)["input_ids"]


VOCABULARY = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nworld\n[unused1]\ne\n##1\n[\n]\n##d\na\n"
WITH_MARKERS = ["hello world [E1] xyz [e1] [unused1] a [E1]", "[pad] [PAD] hello [E2] [E3] a[E1]a [E1]s <unk>[BOS]"]


def typed(**flags: bool) -> dict[str, object]:
    """A token as files hold it."""
    return {"content": "[E1]", **dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False), **flags}


def outcome(tokenizer: Any, texts: list[str] = WITH_MARKERS) -> tuple[object, ...]:
    encoded = tokenizer(texts, padding=True)
    texts = [tokenizer.decode(row, skip_special_tokens=skip) for row in encoded["input_ids"] for skip in (True, False)]
    return dict(encoded), texts, len(tokenizer), tokenizer.pad_token_id, tokenizer.unk_token_id


def assert_read_alike(
    ours: type[PretrainedTokenizer],
    theirs: transformers.PreTrainedTokenizerBase,
    folder: Path,
    texts: list[str] = WITH_MARKERS,
) -> None:
    """A folder read, saved and read again, by both programs, with and without our tokenizer.json."""
    expected, read = outcome(theirs, texts), ours.from_pretrained(folder)
    assert outcome(read, texts) == outcome(ours.from_json(read.to_json()), texts) == expected
    read.save_pretrained(folder / "saved")
    for reader in (ours, transformers.AutoTokenizer):
        assert outcome(reader.from_pretrained(folder / "saved"), texts) == expected
    (folder / "saved" / "tokenizer.json").unlink()
    for reader in (ours, transformers.AutoTokenizer):
        assert outcome(reader.from_pretrained(folder / "saved"), texts) == expected


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
    (tmp_path / "vocab.txt").write_text(VOCABULARY)
    settings = {**files.get(CONFIG_FILE, {}), "do_lower_case": lowercase}
    for name, content in {**files, CONFIG_FILE: settings}.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert_read_alike(BertTokenizer, transformers.BertTokenizer.from_pretrained(tmp_path), tmp_path)


@pytest.mark.parametrize(
    "vocabulary",
    [VOCABULARY.replace("\n", "\r\n"), VOCABULARY.replace("world\n", "world \n\n"), VOCABULARY[:-1]],
    ids=["CRLF", "a blank line", "no last line end"],
)
def test_other_vocabularies(vocabulary: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(vocabulary, newline="")
    expected = outcome(transformers.BertTokenizer.from_pretrained(tmp_path))
    assert outcome(BertTokenizer.from_pretrained(tmp_path)) == expected


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


@pytest.mark.parametrize("length", [77, 77.0])
def test_the_longest_sequence_as_transformers_2_called_it(length: float, tmp_path: Path) -> None:
    folder = folder_of("bert", "BertTokenizer", {}, {"max_len": length, "model_max_length": None}, tmp_path)
    ours, theirs = BertTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder)
    assert ours.model_max_length == theirs.model_max_length == 77


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({CONFIG_FILE: {"truncation_side": "left"}}, "truncation_side is 'left'; allowed: 'right'"),
        ({CONFIG_FILE: {"do_lower_case": "no"}}, "tokenizer_config.json: .*bool"),
        ({CONFIG_FILE: {"max_len": 2}}, "config.json: its model_max_length is 2; allowed: a number of at least 3"),
        ({CONFIG_FILE: {"unk_token": {"lstrip": False}}}, r"its unk_token is {'lstrip': False}; allowed: '\[UNK\]'"),
        ({ADDED: {"[E1]": 20}}, r"its added token '\[E1\]' has id 20; allowed: 14"),
        ({CONFIG_FILE: {"added_tokens_decoder": {"7": typed()}}}, r"its added token '\[E1\]' has id 7; allowed: 14"),
        ({CONFIG_FILE: {"cls_token": "<s>"}}, r"its cls_token is '<s>'; allowed: '\[CLS\]'"),
        ({CONFIG_FILE: {"added_tokens_decoder": ["[E1]"]}}, "its added tokens cannot be read"),
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


ENTITY = {"content": "<ent>", "lstrip": False, "rstrip": True, "single_word": False, "normalized": True}
MASK = {"content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": False}


@pytest.mark.parametrize(
    "files",
    [
        {
            ADDED: {"[E2]": 1, "<ent>": 0},  # behind the vocabulary
            MAP: {"mask_token": MASK, "additional_special_tokens": ["<ent>"]},
        },
        {MAP: {"mask_token": MASK, "additional_special_tokens": ["<ent>", "[E1]"]}},
        {CONFIG_FILE: {"mask_token": {**MASK, "__type": "AddedToken"}, "add_prefix_space": True}},
        {CONFIG_FILE: {"mask_token": {**MASK, "__type": "AddedToken", "lstrip": False}}},
        {CONFIG_FILE: {"added_tokens_decoder": {"0": ENTITY, "-1": MASK}}},
    ],
    ids=["added_tokens.json", "special_tokens_map.json", "a mask", "a mask without lstrip", "added_tokens_decoder"],
)
def test_added_tokens_of_slow_tokenizers_of_bart(files: dict[str, dict], tmp_path: Path) -> None:
    made = BartTokenizer.train(TEXTS * 3, 300)
    made.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / CONFIG_FILE).unlink()
    size = len(made)
    for name, content in files.items():
        if name == ADDED:
            content = {token: size + number for token, number in content.items()}
        if "added_tokens_decoder" in content:
            tokens = content["added_tokens_decoder"]
            content = {"added_tokens_decoder": {str(size + int(number)): token for number, token in tokens.items()}}
        (tmp_path / name).write_text(json.dumps(content))
    texts = ["hello <ent> x <ent>y <Ent> [E1] a", "a <mask> b<ent>  <ent><unk> </s> [E2] <unusedx>", *HOSTILE[:40]]
    assert_read_alike(BartTokenizer, transformers.BartTokenizer.from_pretrained(tmp_path), tmp_path, texts)
