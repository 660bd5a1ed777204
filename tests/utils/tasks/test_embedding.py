"""Vectors of texts against the recipe of sentence-transformers, written out with transformers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.heads import BartForSequenceClassification
from bart.modeling.modeling_bart import BartModel
from bart.tokenization.tokenization_bart import BartTokenizer
from bert.configuration.configuration_bert import BertConfig
from bert.modeling.modeling_bert import BertForMaskedLM, BertModel
from bert.tokenization.tokenization_bert import BertTokenizer
from tests.oracles.test_bert_against_transformers import SIZES, WEIGHTS
from tests.oracles.test_model_against_transformers import TINY
from utils.predict import main
from utils.tasks import task_of

TEXTS = ["A dog sat on the mat.", "Two dogs, 東京 and Grüße", "words " * 300, "a"]
MODELS = {
    "BertModel": (BertModel, BertConfig, SIZES, BertTokenizer, 97),
    "BertForMaskedLM": (BertForMaskedLM, BertConfig, SIZES, BertTokenizer, 97),
    "BartModel": (BartModel, BartConfig, TINY, BartTokenizer, 290),
    "BartForSequenceClassification": (BartForSequenceClassification, BartConfig, TINY, BartTokenizer, 290),
}


def made(name: str, folder: Path) -> Path:
    """A tiny model and its vocabulary."""
    torch.manual_seed(0)
    model_class, config_class, sizes, tokenizer_class, ids = MODELS[name]
    tokenizer = tokenizer_class.train(TEXTS, ids, min_frequency=1)
    model_class(config_class(**{**sizes, "vocab_size": len(tokenizer)})).save_pretrained(folder, tokenizer)
    return folder


def by_recipe(folder: Path | str, length: int, pooling: str = "mean", normalize: bool = True) -> np.ndarray:
    """The vectors (B, D) of TEXTS as sentence-transformers computes them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    given = tokenizer(TEXTS, padding=True, truncation=True, max_length=length, return_tensors="pt")
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        encoder = model.get_encoder() if model.config.is_encoder_decoder else model
        states = encoder(**given).last_hidden_state
    mask = given["attention_mask"][:, :, None].float()
    vectors = states[:, 0] if pooling == "cls" else (states * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
    return (torch.nn.functional.normalize(vectors, p=2, dim=1) if normalize else vectors).numpy()


def embedded(folder: Path | str, place: Path, *options: str) -> list[dict[str, object]]:
    (place / "texts").write_text("\n".join(TEXTS) + "\n")
    words = [str(folder), "--task", "embedding", str(place / "texts"), "--gpus", "0", *options]
    main([*words, "--output", str(place / "vectors")])
    main([*words, "--output", str(place / "rows"), "--json"])
    rows = [json.loads(line) for line in (place / "rows").read_text().splitlines()]
    assert np.array_equal(np.loadtxt(place / "vectors"), [row["prediction"] for row in rows])
    return rows


@pytest.mark.parametrize("name", MODELS)
def test_vectors(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = made(name, tmp_path / "model")
    length = 40 if name.startswith("Bert") else 30
    for pooling, normalize in (("mean", True), ("cls", False)):
        rows = embedded(
            *(model, tmp_path, "--pooling", pooling, "--normalize" if normalize else "--no_normalize"),
            *("--max_source_length", str(length)),
        )
        expected = by_recipe(model, length, pooling, normalize)
        np.testing.assert_allclose([row["prediction"] for row in rows], expected, rtol=0, atol=1e-5)
    assert f"1 of 4 texts are longer than {length} tokens (--max_source_length) and are cut there" in caplog.text
    others = {"BartForSequenceClassification": "classification", "BartModel": "summarization"}
    assert task_of(str(model)) == others.get(name, "embedding")


def test_files_of_sentence_transformers_choose(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = made("BertModel", tmp_path / "model")
    options = model / "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": False}
    options[0].write_text(json.dumps(options[1]))
    (model / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (model / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (model / "2_Dense").mkdir()
    (model / "2_Dense" / "config.json").write_text("{}")
    rows = embedded(model, tmp_path)
    np.testing.assert_allclose([row["prediction"] for row in rows], by_recipe(model, 12, "cls"), rtol=0, atol=1e-5)
    assert "the layer 2_Dense of sentence-transformers is not applied" in caplog.text
    # Since its version 6 the length is the tokenizer's, and pooling is one field.
    settings = json.loads((model / "tokenizer_config.json").read_text()) | {"model_max_length": 9}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    options[0].write_text('{"transformer_task": "feature-extraction"}')
    for mode in ("cls", ["cls"]):
        (model / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 32, "pooling_mode": mode}))
        rows = embedded(model, tmp_path)
        np.testing.assert_allclose([row["prediction"] for row in rows], by_recipe(model, 9, "cls"), rtol=0, atol=1e-5)
    options[0].write_text(json.dumps(options[1]))
    for changes in (
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_cls_token": False, "pooling_mode_lasttoken": True},
        {"pooling_mode": "max"},
        {"pooling_mode": ["cls", "mean"]},
    ):
        (model / "1_Pooling" / "config.json").write_text(json.dumps({**pooling, **changes}))
        with pytest.raises(InputError, match=r"its pooling is .*; allowed: mean or cls, or --pooling mean"):
            embedded(model, tmp_path)
    rows = embedded(model, tmp_path, "--pooling", "mean")
    np.testing.assert_allclose([row["prediction"] for row in rows], by_recipe(model, 12), rtol=0, atol=1e-5)


def test_tables_and_wrong_calls(tmp_path: Path) -> None:
    model = made("BertModel", tmp_path / "model")
    rows = embedded(model, tmp_path)
    for name, options in (("text", []), ("body", ["--text_field", "body"])):
        table = tmp_path / f"{name}.jsonl"
        table.write_text("".join(json.dumps({"id": 1, name: text}) + "\n" for text in TEXTS))
        main([str(model), str(table), "--json", "--output", str(tmp_path / "rows"), "--gpus", "0", *options])
        of_table = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
        assert [row["prediction"] for row in of_table] == [row["prediction"] for row in rows]
    with pytest.raises(InputError, match="no text column; name one with --text_field .columns: body, id"):
        main([str(model), str(table)])
    with pytest.raises(InputError, match="--max_source_length is 41; the model has 40 positions"):
        embedded(model, tmp_path, "--max_source_length", "41")


@pytest.mark.skipif(not os.path.isdir(WEIGHTS), reason="BERT_WEIGHTS names no folder of BERT's weights")
def test_real_weights(tmp_path: Path) -> None:
    folder = WEIGHTS
    assert task_of(folder) == "embedding"
    rows = embedded(folder, tmp_path)
    np.testing.assert_allclose([row["prediction"] for row in rows], by_recipe(folder, 256), rtol=0, atol=1e-6)
