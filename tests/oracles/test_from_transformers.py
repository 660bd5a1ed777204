"""Each row of docs/from_transformers.md: its calls are made with transformers and with this project."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch import Tensor

from bart.errors import InputError
from bart.modeling.heads import BartForSequenceClassification
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from bert.modeling.modeling_bert import BertModel
from tests.oracles.test_encoders_against_transformers import theirs_of
from tests.oracles.test_model_against_transformers import TINY

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]
PAGE = (Path(__file__).parents[2] / "docs/from_transformers.md").read_text()
TEXTS = ["A dog sat on the warm stone.", "Nobody saw the train.", "A dog."]
OURS: dict[str, Any] = {
    **{"Model": BartForConditionalGeneration, "Tokenizer": BartTokenizer},
    **{"Classifier": BartForSequenceClassification, "BertModel": BertModel},
}
THEIRS: dict[str, Any] = {
    **{"Model": transformers.BartForConditionalGeneration, "Tokenizer": transformers.BartTokenizer},
    **{"Classifier": transformers.BartForSequenceClassification, "BertModel": transformers.BertModel},
}


def rows(section: str) -> list[tuple[str, str]]:
    """The first two cells of each row of a section's table, without the marks of code around a whole cell."""
    [table] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^\| (`.*?) \|(.*)\|$", table, re.MULTILINE)
    return [(call.strip("`"), re.sub(r"^`([^`]*)`$", r"\1", here.strip())) for call, here in cells]


def no_repeated_id(ids: Tensor, scores: Tensor) -> Tensor:
    return scores.scatter(1, ids[:, -1:], -torch.inf)


def stops(ids: Tensor, scores: object, **_: object) -> Tensor:
    """A row ends behind an even id from its fourth id on."""
    return (ids[:, -1] % 2 == 0) & (ids.shape[1] > 3)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A BART with its tokenizer, one in half precision that classifies, and a BERT."""
    names = {name: str(tmp_path_factory.mktemp(name)) for name in ("name", "classifier", "bert")}
    tokenizer = BartTokenizer.train(TEXTS * 3, vocab_size=290)
    tokenizer.save_pretrained(names["name"])
    theirs_of("BartForConditionalGeneration", vocab_size=len(tokenizer)).save_pretrained(names["name"])
    theirs_of("BartForSequenceClassification").half().save_pretrained(names["classifier"])
    theirs_of("BertModel").save_pretrained(names["bert"])
    return names


def run(call: str, classes: dict[str, Any], folders: dict[str, str], place: Path) -> Any:
    """The value of the last statement of a call, which knows the page's names."""
    torch.manual_seed(0)
    tokenizer = classes["Tokenizer"].from_pretrained(folders["name"])
    model = classes["Model"].from_pretrained(folders["name"]).eval()
    ids = torch.tensor([[0, 9, 8, 40, 2], [0, 7, 2, 1, 1], [0, 30, 31, 2, 1]])
    inputs = dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))
    table = torch.randn(3, 5, TINY["d_model"])
    labels = ids.masked_fill(ids == 1, -100)
    theirs = THEIRS["Model"].from_pretrained(folders["name"]).eval()
    encoder_outputs = theirs.get_encoder()(**inputs)
    names: dict[str, Any] = {**folders, **classes, "model": model, "tokenizer": tokenizer, "inputs": inputs, "ids": ids}
    names |= {"folder": str(place / classes["Model"].__module__), "embeddings": table, "labels": labels, "torch": torch}
    names |= {"texts": TEXTS, "summaries": ["A dog.", "No train.", "It sat."], "encoder_outputs": encoder_outputs}
    names |= {"mask": inputs["attention_mask"] if "encoder_outputs" in call else (ids != 1).long()}
    names |= {"criteria": [stops], "processors": [no_repeated_id], "Accelerator": Accelerator, "load_file": load_file}
    names |= {"LoraConfig": LoraConfig, "get_peft_model": get_peft_model}
    names |= {"bert_model": classes["BertModel"].from_pretrained(folders["bert"]).eval()}
    names |= {name: getattr(transformers, name) for name in ("GenerationConfig", "MinPLogitsWarper", "Trainer")}
    options = {"max_steps": 3, "report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True}
    names["arguments"] = transformers.TrainingArguments(str(place / "trainer"), **options)
    names["data"] = [{"input_ids": row, "labels": row} for row in ids] * 3
    *statements, last = ast.parse(call).body
    exec(compile(ast.Module(statements, []), call, "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), call, "eval"), names)
    exec(compile(ast.Module([last], []), call, "exec"), names)
    return None


def assert_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    elif isinstance(expected, Mapping):
        assert [*actual] == [name for name in expected if name != "past_key_values"]
        for name in actual:
            assert_same(actual[name], expected[name])
    else:
        assert actual == expected


@pytest.mark.parametrize("call", [call for call, _ in rows("Same")])
def test_same(call: str, folders: dict[str, str], tmp_path: Path) -> None:
    expected = run(call, THEIRS, folders, tmp_path)
    assert expected is not None
    assert_same(run(call, OURS, folders, tmp_path), expected)


@pytest.mark.parametrize(("call", "here"), rows("Other"))
def test_other(call: str, here: str, folders: dict[str, str], tmp_path: Path) -> None:
    assert_same(run(here, OURS, folders, tmp_path), run(call, THEIRS, folders, tmp_path))
    refusal(call, folders, tmp_path)


def refusal(call: str, folders: dict[str, str], place: Path) -> str:
    """The one line by which a call is refused here."""
    with pytest.raises((InputError, AttributeError)) as error:
        run(call, OURS, folders, place)
    message = str(error.value)
    assert "\n" not in message and "object has no attribute" not in message
    return message


@pytest.mark.parametrize(("call", "line"), rows("Missing"))
def test_missing(call: str, line: str, folders: dict[str, str], tmp_path: Path) -> None:
    assert line in refusal(call, folders, tmp_path)


def test_there_are_rows() -> None:
    assert [len(rows(section)) // 9 for section in ("Same", "Other", "Missing")] == [4, 1, 1]
