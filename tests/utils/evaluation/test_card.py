"""The model card of an export: what the Hub reads from it, and that what it shows can be run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

import run_eval
from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests.tiny_run import Train
from utils.app.unfinished import model_identity
from utils.evaluation.card import write_card


def test_a_scored_run_has_a_card_that_the_hub_can_read(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = train("base", "--max_steps", 1) / "export"
    output = train("run", "--max_steps", 2, "--model_name_or_path", base, "--do_predict", "--bf16")
    scores = json.loads((output / "test_scores.json").read_text())
    card = ModelCard.load(output / "export" / "README.md")
    assert (card.data.license, card.data.pipeline_tag, card.data.base_model) == ("unknown", "summarization", None)
    results = {result.metric_name: result for result in card.data.eval_results}
    assert {"ROUGE-1", "ROUGE-2", "ROUGE-Lsum", "Loss"} <= results.keys()
    assert results["ROUGE-2"].metric_value == pytest.approx(scores["rouge2"], abs=1e-4)
    assert (results["ROUGE-2"].metric_type, results["ROUGE-2"].dataset_split) == ("rouge", "test")
    text = card.text
    assert "summarization, fine-tuned from base on the data “data” (22 examples) for 2 optimizer steps" in text
    assert "| train_batch_size | 4 |" in text and "| bf16 | True |" in text and "LoRA" not in text
    low, high = (f"{end:.2f}" for end in scores["intervals"]["rouge1"])
    assert f"| ROUGE-1 | {scores['rouge1']:.2f} | {low} to {high} |" in text
    assert "By ROUGE-1, the model is" in text and card.data.language is None and card.data.datasets is None
    known = json.loads((output / "export" / "examples.json").read_text())
    rows = [json.loads(line) for line in (output / "test_articles.jsonl").open()]
    names = ("source", "reference", "summary")
    assert known["examples"] == [{name: row[name] for name in names} for row in rows[:3]]
    assert known["trained"] == "fine-tuned from base on the data “data”" and f"text = {rows[0]['source']!r}\n" in text
    before = model_identity(output)
    (output / "export" / "examples.json").unlink()
    assert model_identity(output) == before  # a run that was broken off goes on
    assert re.search(r"Versions: python [\d.]+, torch 2", text) and "Decoding: 2 beams." in text
    assert str(tmp_path) not in str(card)
    [snippet] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(output.parent)
    (output / "export").rename(output.parent / "moved")
    for code in (snippet, snippet.replace("# from", "from")):
        capsys.readouterr()
        used: dict[str, object] = {}
        exec(code.replace('"run"', '"moved"'), used)
        assert capsys.readouterr().out.startswith("['")
    assert type(used["model"]) is BartForConditionalGeneration


def test_scoring_a_run_later_updates_its_card_until_someone_edits_it(
    train: Train, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = train("run", "--max_steps", 1)
    path = output / "export" / "README.md"
    assert "Not scored yet" in path.read_text() and ModelCard.load(path).data.eval_results is None

    def score() -> str:
        run_eval.main([str(output), str(tmp_path / "config.json"), str(tmp_path / "data"), str(output)])
        return path.read_text()

    assert "| ROUGE-1 |" in score()
    # A new export has not been scored.
    train("run", "--max_steps", 2, "--resume_from_checkpoint", "last")
    assert "Not scored yet" in path.read_text()
    mine = re.sub(r"<!-- .*-->", "", path.read_text()).replace("license: unknown", "license: mit")
    path.write_text(mine)
    assert score() == mine
    # A card that cannot be made is no reason to lose the scores.
    (output / "arguments.yaml").unlink()
    path.unlink()
    run_eval.main([str(output / "export"), str(tmp_path / "config.json"), str(tmp_path / "data"), str(output)])
    assert not path.exists() and "README.md was not written: FileNotFoundError" in caplog.text


@pytest.mark.parametrize(
    ("made_of", "data_set"), [("xsum", "EdinburghNLP/xsum"), ("cnn_dm", "abisee/cnn_dailymail"), ("sample", None)]
)
def test_the_card_names_the_data_set_that_get_data_made(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_of: str, data_set: str | None
) -> None:
    """A run whose folder is a relative path is used from where it was trained."""
    monkeypatch.chdir(tmp_path)
    output = train("run", "--max_steps", 1)
    (tmp_path / "data" / "provenance.json").write_text(json.dumps({"set": made_of}))
    write_card(Path("run"), Path("run/export"), lambda _: ["seed"])
    card = ModelCard.load(output / "export" / "README.md")
    assert (card.data.language, card.data.datasets) == ("en", data_set)
    assert f"on the data “{data_set or 'data'}” (22" in card.text and 'name = "run/export"' in card.text
    assert not (output / "export" / "examples.json").exists()  # nothing is scored


def test_names_are_no_html(train: Train) -> None:
    card = (train("<img src=x>", "--max_steps", 1) / "export" / "README.md").read_text()
    assert "# &lt;img src=x&gt;\n" in card and "<img" not in ModelCard(card).text
