"""`python -m utils.export`: what ONNX Runtime and torch make of its files, beside transformers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bart.errors import InputError
from bart.modeling.heads import BartForTokenClassification
from bart.tokenization.tokenization_bart import BartTokenizer
from bert.tokenization.tokenization_bert import BertTokenizer
from tests.tiny_run import SIZES, tiny_bart
from tests.utils.corpora.test_data_directory import fill_and_be_killed
from utils import export
from utils.app.errors import RunError
from utils.models.loading import LoadedModel

TEXTS = ["a text of words he said so who", "a text", ""]
# An fp32 result is the end of some 450 additions in each of two layers, and so is the other one.
ALIKE = 2000 * 2**-24
PAGE = (Path(__file__).parents[2] / "docs/deployment.md").read_text()


@pytest.fixture
def onnxruntime() -> Any:
    for package in export.PACKAGES:
        pytest.importorskip(package, reason=f"{package} is not installed")
    return pytest.importorskip("onnxruntime")


def program(heading: str, folder: Path, **names: Any) -> dict[str, Any]:
    """Run a section's program on a folder; return its names. Lines that stand in `names` are set to other values."""
    text = re.search(rf"^## {heading}\n(?s:.*?)^```python\n((?s:.*?))^```$", PAGE, re.MULTILINE)[1]
    text, count = re.subn(r'^folder = ".*"$', f"folder = {str(folder)!r}", text, flags=re.MULTILINE)
    assert count == 1
    for old, new in names.items():
        text = text.replace(old, new)
    scope: dict[str, Any] = {}
    exec(text, scope)
    return scope


def theirs(head: str, folder: Path) -> transformers.PreTrainedModel:
    """A random model of transformers, which `folder` gets, with a vocabulary."""
    torch.manual_seed(0)
    family = head[:4]
    tokenizer = {"Bert": BertTokenizer, "Bart": BartTokenizer}[family].train(TEXTS * 9, 300)
    tokenizer.save_pretrained(folder)
    labels = {0: "yes", 1: "no", 2: "maybe"}
    sizes: dict[str, Any] = {**SIZES, "decoder_layers": 2, "max_position_embeddings": 40, "init_std": 0.3}
    if family == "Bert":
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
        sizes |= {"max_position_embeddings": 40, "initializer_range": 0.3}
    if "Classification" in head:
        sizes |= {"id2label": labels, "label2id": {name: number for number, name in labels.items()}}
    config = getattr(transformers, f"{family}Config")(**sizes, vocab_size=len(tokenizer))
    model = getattr(transformers, head)(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("head", "outputs"),
    [
        ("BertForSequenceClassification", ["logits"]),
        pytest.param("BertForTokenClassification", ["logits"], marks=pytest.mark.slow),
        pytest.param("BertForQuestionAnswering", ["start_logits", "end_logits"], marks=pytest.mark.slow),
        pytest.param("BartForSequenceClassification", ["logits"], marks=pytest.mark.slow),
    ],
)
def test_onnx_runtime_gives_the_logits_of_transformers(
    head: str, outputs: list[str], onnxruntime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = theirs(head, tmp_path / "model")
    (tmp_path / "out").mkdir()
    export.main([str(tmp_path / "model"), "--output", str(tmp_path / "out")])
    assert re.match(r"model.onnx: differs from torch by \d.*e-0[678]; rounding allows ", capsys.readouterr().out)
    session = onnxruntime.InferenceSession(tmp_path / "out/model.onnx")
    assert [each.name for each in session.get_outputs()] == outputs
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if head.startswith("Bert") else [])]
    assert [(each.name, each.shape) for each in session.get_inputs()] == [
        (name, ["batch_size", "sequence_length"]) for name in inputs
    ]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    pairs = (TEXTS[:1] * 2, TEXTS[1:]) if head.startswith("Bert") else (TEXTS,)  # with two types of tokens
    for texts in (pairs, [[TEXTS[0]]], [[""]]):
        given = dict(tokenizer(*texts, padding=True, return_tensors="pt"))
        actual = session.run(None, {name: value.numpy() for name, value in given.items()})
        with torch.no_grad():
            results = model(**given)
        for name, value in zip(outputs, actual, strict=True):
            assert np.abs(value - results[name].numpy()).max() <= ALIKE * results[name].abs().max()
    if "Sequence" in head:
        text = "The organisers counted 210 visitors."
        printed = program("A classifier", tmp_path / "out", **{text: TEXTS[0]})
        best = int(model(**tokenizer(TEXTS[:1], return_tensors="pt")).logits.argmax())
        assert [printed["labels"][str(row.argmax())] for row in printed["logits"]] == [["yes", "no", "maybe"][best]]
    if head == "BartForSequenceClassification":
        ids = np.full((1, 3), 5)  # there is no </s>
        assert np.isnan(session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]).all()


@pytest.mark.slow
def test_greedy_decoding_gives_the_ids_of_transformers(onnxruntime: Any, tmp_path: Path) -> None:
    model = theirs("BartForConditionalGeneration", tmp_path / "model")
    export.main([str(tmp_path / "model"), "--output", str(tmp_path / "out")])
    later = onnxruntime.InferenceSession(tmp_path / "out/decoder_with_past_model.onnx")
    kinds = [f"0.{side}.{kind}" for side in ("decoder", "encoder") for kind in ("key", "value")]
    names = [each.name for each in later.get_inputs()]
    assert names[:6] == ["input_ids", "encoder_attention_mask", *(f"past_key_values.{kind}" for kind in kinds)]
    assert [each.name for each in later.get_outputs()][:3] == ["logits", *(f"present.{kind}" for kind in kinds[:2])]
    text = "The curtain fell on Tuesday on the opera festival."
    decoded = program("Greedy decoding", tmp_path / "out", **{text: TEXTS[0], "range(60)": "range(19)"})
    options = {"num_beams": 1, "max_length": 20, "do_sample": False, "forced_eos_token_id": None}
    expected = model.generate(torch.from_numpy(decoded["ids"]), **options)[0].tolist()
    assert len(expected) > 5 and decoded["summary"] == expected


def tagger() -> LoadedModel[Any]:
    tokenizer = BartTokenizer.train(TEXTS * 9, 300)
    fields = {"vocab_size": len(tokenizer), "init_std": 0.3, "labels": ["O", "B-X", "I-X"]}
    return LoadedModel(tiny_bart(BartForTokenClassification, **fields).eval(), tokenizer)


def test_torch_runs_its_own_format(tmp_path: Path) -> None:
    loaded = tagger()
    (tmp_path / "out").mkdir()
    fill_and_be_killed(tmp_path / "out", ["config.json", "other"], 1)
    export.export(loaded, tmp_path / "out", "torch_export")
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"config.json", "model.pt2", "tokenizer.json"}
    assert not {path.name for path in (tmp_path / "out").iterdir()} & {"other", ".out.building"}
    run = torch.export.load(tmp_path / "out/model.pt2").module()
    inputs = loaded.tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(run(**inputs)[0], loaded.model(**inputs).logits, rtol=0, atol=1e-5)


def test_other_results_than_torchs_are_an_error_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_another(graph: export.Graph, file: Path, write: Callable[..., None] = export.write_graph) -> None:
        graph.module.model.classifier.bias[0] += 0.01
        write(graph, file)
        graph.module.model.classifier.bias[0] -= 0.01

    monkeypatch.setattr(export, "write_graph", write_another)
    with pytest.raises(RunError, match=r"^model differs from torch by 1\.0e-02; rounding allows .*; nothing"):
        export.export(tagger(), tmp_path / "out", "torch_export")
    assert [*(tmp_path / "out").iterdir()] == []


def test_what_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tagger()
    packed = LoadedModel(loaded.model.for_inference(), loaded.tokenizer)
    with pytest.raises(InputError, match="^the model is a copy for inference"):
        export.export(packed, tmp_path, "torch_export")
    with pytest.raises(InputError, match="^--format is 'tflite'; allowed: onnx, torch_export$"):
        export.export(loaded, tmp_path, "tflite")
    monkeypatch.setattr(export, "PACKAGES", ("numpy", "absent", "none"))
    with pytest.raises(InputError, match="^--format onnx needs absent, none; run: pip install absent none$"):
        export.export(loaded, tmp_path)
    assert [*tmp_path.iterdir()] == []
