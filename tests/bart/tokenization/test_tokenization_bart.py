from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers

from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer
from bert.tokenization.tokenization_bert import BertTokenizer

ROOT = Path(__file__).resolve().parents[3]
TEXTS = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog", "the mat and the log"]


@pytest.fixture(scope="module")
def tokenizer() -> BartTokenizer:
    return BartTokenizer.train(TEXTS, vocab_size=300)


def folder_of(tokenizer: BartTokenizer, folder: Path, *names: str) -> Path:
    """`folder` with only the named files of the saved tokenizer."""
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        if file.name not in names:
            file.unlink()
    return folder


# Training


def test_trained_ids_lie_as_in_bart(tokenizer: BartTokenizer) -> None:
    vocabulary = json.loads(tokenizer.to_json())["model"]["vocab"]
    assert [vocabulary[token] for token in ("<s>", "<pad>", "</s>", "<unk>")] == [0, 1, 2, 3]
    assert vocabulary["<mask>"] == len(tokenizer) - 1 == tokenizer.vocab_size - 1
    assert sorted(vocabulary.values()) == list(range(len(tokenizer)))
    assert tokenizer.pad_token_id == 1 and tokenizer.unk_token_id == 3
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.mask_token_id) == (0, 2, len(tokenizer) - 1)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (TEXTS, {"vocab_size": 260}, r"vocab_size=260: give a whole number from 261"),
        (TEXTS, {"vocab_size": 300, "min_frequency": 0}, r"min_frequency=0: give a whole number from 1"),
        ([], {"vocab_size": 300}, r"texts is empty"),
        ("one string", {"vocab_size": 300}, r"not one string"),
    ],
)
def test_bad_training_input(texts: list[str], options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BartTokenizer.train(texts, **options)


# Files


def test_padding_truncation_and_dropout_stored_in_tokenizer_json_are_not_applied(tokenizer: BartTokenizer) -> None:
    backend = Tokenizer.from_str(tokenizer.to_json())
    backend.model.dropout = 0.9
    backend.enable_truncation(3)
    backend.enable_padding(length=20)
    assert BartTokenizer.from_json(backend.to_str())(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]


def test_special_tokens_not_declared_as_such_become_so(tokenizer: BartTokenizer) -> None:
    content = json.loads(tokenizer.to_json())
    content["added_tokens"] = []
    assert BartTokenizer.from_json(json.dumps(content)).to_json() == tokenizer.to_json()
    content = json.loads(tokenizer.to_json())
    content["added_tokens"][2]["special"] = False
    loaded = BartTokenizer.from_json(json.dumps(content))
    assert loaded.decode([0, 2], skip_special_tokens=True) == ""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"not JSON", r"tokenizer\.json: not a tokenizer\.json"),
        ("vocab.json", b"[" * 100_000, r"vocab\.json and merges\.txt: .*recursion limit"),
        ("merges.txt", b"#version: 0.2\nt h e\n", r"vocab\.json and merges\.txt: .*Merges .* invalid at line"),
        ("merges.txt", b"q q\n", r"vocab\.json and merges\.txt: .*`qq` out of vocabulary"),
        ("tokenizer_config.json", b"{", r"tokenizer_config\.json: not valid JSON"),
    ],
)
def test_malformed_files(tokenizer: BartTokenizer, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    kept = ["tokenizer.json"] if name == "tokenizer.json" else ["vocab.json", "merges.txt"]
    folder = folder_of(tokenizer, tmp_path, *kept)
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        BartTokenizer.from_pretrained(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids: ids.pop("<mask>"), r"vocab\.json: the vocabulary lacks <mask> \(of <s> <pad> </s> <unk> <mask>\)"),
        (lambda ids: ids.update(a=ids["b"]), r"token ids must be 0 to \d+, each once"),
    ],
    ids=["no special token", "two tokens of one id"],
)
def test_vocabularies_that_cannot_be(
    tokenizer: BartTokenizer, tmp_path: Path, change: Callable[[dict[str, int]], object], message: str
) -> None:
    folder = folder_of(tokenizer, tmp_path, "vocab.json", "merges.txt")
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    change(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(InputError, match=message):
        BartTokenizer.from_pretrained(folder)


def test_tokenizers_of_another_kind(tokenizer: BartTokenizer) -> None:
    lowercasing, undecoded = (Tokenizer.from_str(tokenizer.to_json()) for _ in range(2))
    lowercasing.normalizer = normalizers.Lowercase()
    undecoded.decoder = decoders.BPEDecoder()
    for foreign in (Tokenizer(models.WordPiece({"<s>": 0}, unk_token="<s>")), lowercasing, undecoded):
        with pytest.raises(InputError, match="a pipeline of .*; allowed: that of BartTokenizer"):
            BartTokenizer.from_json(foreign.to_str())


def test_a_file_of_weights_stands_for_its_folder(tokenizer: BartTokenizer, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    for name in ("model.safetensors", "pytorch_model.bin", "model.pt"):
        (tmp_path / name).touch()
        assert BartTokenizer.from_pretrained(tmp_path / name).to_json() == tokenizer.to_json()


# Calls


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("a", {"max_length": 2, "truncation": True}, "max_length=2: give a whole number from 3"),
        ("a", {"max_length": 8, "truncation": False}, "max_length=8 needs truncation=True or padding='max_length'"),
        ("a", {"truncation": "only_first"}, "truncation='only_first': give one of"),
        ("a", {"add_prefix_space": True}, "add_prefix_space, which is bool True; set it in tokenizer_config.json"),
        ("a", {"pad_to_multiple_of": 8}, "BartTokenizer got pad_to_multiple_of, which is int 8; give padding="),
        ("a", {"text_pair": "b", "truncation": True, "max_length": 3}, "max_length=3: give a whole number from 4"),
        ("a", {"text_pair": ["b"]}, "texts and text_pair must both be one text, or both lists"),
        (["a", "b"], {"text_pair": ["c"]}, "text_pair has 1 texts; allowed: 2"),
        ("a", {"return_tensors": "tf"}, "return_tensors='tf': give one of \\(None, 'pt', 'np'\\)"),
        (["a", "a b c"], {"return_tensors": "pt"}, "different lengths, so give padding=True"),
        ([], {}, "texts is empty"),
        (None, {}, "texts must be a string or a list of strings, got NoneType"),
        (["a", None], {}, r"texts\[1\] must be a string, got NoneType"),
        (["a", "b \udfff"], {}, r"texts\[1\]: unpaired surrogate '\\udfff' at character 2"),
    ],
)
def test_bad_calls(tokenizer: BartTokenizer, texts: object, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        tokenizer(texts, **options)
    assert str(caught.value).isprintable()


def test_calls_with_different_options_do_not_meet(tokenizer: BartTokenizer) -> None:
    calls = [
        {"padding": True},
        {"max_length": 4, "truncation": True},
        {"padding": "max_length", "max_length": 40},
        {},
    ] * 40
    expected = [tokenizer(TEXTS, **options) for options in calls[:4]] * 40
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda options: tokenizer(TEXTS, **options), calls)) == expected


# Decoding


def test_decode_takes_lists_and_tensors(tokenizer: BartTokenizer) -> None:
    ids = tokenizer("the cat")["input_ids"]
    assert tokenizer.decode(ids) == "<s>the cat</s>"
    assert tokenizer.decode(torch.tensor(ids)) == tokenizer.decode(tuple(ids)) == "<s>the cat</s>"
    assert tokenizer.decode(torch.tensor(ids), skip_special_tokens=True) == "the cat"
    assert tokenizer.decode(0) == tokenizer.decode(torch.tensor(0)) == "<s>"
    assert tokenizer.decode([]) == ""
    batch = tokenizer(["the cat", "a"], padding=True, return_tensors="pt")["input_ids"]
    assert tokenizer.batch_decode(batch, skip_special_tokens=True) == ["the cat", "a"]
    assert tokenizer.batch_decode(list(batch), True) == tokenizer.batch_decode(batch.tolist(), True) == ["the cat", "a"]
    assert tokenizer.batch_decode([]) == []


# Processes


def test_training_of_bert() -> None:
    texts = ["Low lower lowest", "new newer newest", "wide wider widest"] * 3
    ours = BertTokenizer.train(texts, 45)
    assert ours.decode(ours("Lowest newest")["input_ids"]) == "[CLS] lowest newest [SEP]"
    assert [ours.pad_token_id, ours.unk_token_id, ours.cls_token_id, ours.sep_token_id, ours.mask_token_id] == [
        *range(5)
    ]
    assert ours.get_vocab() == BertTokenizer.train(iter(texts), 45).get_vocab()
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
