"""run_eval.py on a tiny trained model: order, scores, and several processes."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
import yaml

from bart.generation.cache import DecoderCache
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.scoring import ROOT, SECONDS, articles, evaluate, files, lines, speed, torchrun, words
from utils.metrics.facts import facts_of
from utils.metrics.rouge import leads, rouge, rouge_per_example
from utils.metrics.rouge_pairs import RougeRule


def test_generations_are_in_order_and_scored(trained: Path) -> None:
    export = trained / "run" / "export"
    scores = evaluate(trained, export, "out", "--eval_beams", 3, "--eval_max_gen_length", 10)
    generations = lines(trained / "out" / "test_generations.txt")
    sources, references = (lines(trained / "data" / f"test.{side}") for side in ("source", "target"))
    model, tokenizer = BartForConditionalGeneration.from_pretrained(export), BartTokenizer.from_pretrained(export)

    def encoded(text: str) -> torch.Tensor:
        return tokenizer(text, max_length=64, truncation=True, return_tensors="pt")["input_ids"]

    summaries = [model.generate(encoded(source), num_beams=3, max_length=10)[0] for source in sources]
    assert generations == [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in summaries]
    assert len(set(generations)) > 1
    for name, value in rouge(generations, references).items():
        assert scores[name] == pytest.approx(value)
    first = [source.split(". ")[0] for source in sources]
    assert scores["baselines"]["first 1 sentence"] == rouge(first, references)
    tokens = [encoded(target).shape[1] for target in references]
    pairs = zip(sources, references, strict=True)
    losses = [model(encoded(source), labels=encoded(target)).loss.item() for source, target in pairs]
    assert scores["loss"] == round(sum(map(math.prod, zip(losses, tokens, strict=True))) / sum(tokens), 4)
    assert scores["examples"] == 9
    assert scores["generation"]["num_beams"] == 3
    assert (scores["split"], scores["task"], scores["rouge_mode"]) == ("test", "summarization", "rouge-score")
    assert (scores["max_source_length"], scores["max_target_length"], scores["prefix"]) == (64, 64, "")
    each = rouge_per_example(generations, references)
    for index, row in enumerate(articles(trained, "out")):
        assert row == {
            "index": index,
            "source": sources[index],
            "reference": references[index],
            "summary": generations[index],
            "source_tokens": encoded(sources[index]).shape[1],
            "reference_tokens": tokens[index],
            "summary_tokens": len(summaries[index]) - 1,
            **{name: values[index] for name, values in each.items()},
        }
    assert [path.name for path in (trained / "out").glob(".*")] == [".test_progress.lock"]


def test_scores_are_shown_as_a_short_table_and_empty_summaries_with_a_warning(
    trained: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    export = trained / "run" / "export"
    facts_of.cache_clear()
    scores = evaluate(trained, export, "shown", "--n_obs", 5)
    assert (facts_of.cache_info().hits, facts_of.cache_info().misses) == (1, 1)  # the report takes those of the scores
    shown = capsys.readouterr().out
    rows = dict(re.split("  +", line.strip(), maxsplit=1) for line in shown.splitlines()[1:])
    assert shown.startswith("test: 5 examples, fp32 on cpu\n") and max(map(len, shown.splitlines())) <= 80
    assert rows["rouge1"] == f"{scores['rouge1']:.2f}"
    assert rows["loss"] == f"{scores['loss']:.4f}"
    assert rows["unsupported"] == scores["unsupported_facts"]["text"] and "of 5 summaries (" in rows["unsupported"]
    assert re.fullmatch(r"[\d,.]+ examples/s, [\d,.]+ generated tokens/s", rows["speed"])
    assert "are empty" not in caplog.text
    evaluate(trained, export, "empty", "--n_obs", 5, "--eval_max_gen_length", 2, "--min_length", 0)
    assert "5 of 5 predictions are empty" in caplog.text


@pytest.mark.slow
def test_two_processes_write_the_bytes_that_one_writes(trained: Path) -> None:
    """9 articles in batches of 4, which neither 2 nor 4 divides."""
    export = trained / "run" / "export"
    evaluate(trained, export, "alone", "--num_return_sequences", "2")
    command = torchrun(*words(trained, export, "shared", "--num_return_sequences", "2"))
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert result.returncode == 0, result.stderr
    assert files(trained, "alone") == files(trained, "shared")
    alone, shared = (speed(trained, name) for name in ("alone", "shared"))
    assert (alone["processes"], shared["processes"]) == (1, 2)
    for report in (alone, shared):
        assert report["warmup_articles"] + report["timed_articles"] == 9


def test_options_of_generate_by_name(trained: Path) -> None:
    export = trained / "run" / "export"
    scores = evaluate(
        trained, export, "named", "--length_penalty", "-2.0", "--eval_beams", 4, "--eval-max-gen-length", 9,
        "--min-length", 3, "--num_return_sequences", 3, "--early_stopping", "never",
    )  # fmt: skip
    options = {
        "length_penalty": -2.0, "num_beams": 4, "max_length": 9, "min_length": 3, "num_return_sequences": 3,
        "early_stopping": "never",
    }  # fmt: skip
    assert {name: scores["generation"][name] for name in options} == options
    model = BartForConditionalGeneration.from_pretrained(export)
    tokenizer = BartTokenizer.from_pretrained(export)
    for row in articles(trained, "named"):
        ids = tokenizer(row["source"], max_length=64, truncation=True, return_tensors="pt")["input_ids"]
        texts = tokenizer.batch_decode(model.generate(ids, **options), skip_special_tokens=True)
        assert [row["summary"], *row["alternatives"]] == [text.strip() for text in texts]
    assert [row["summary"] for row in articles(trained, "named")] == lines(trained / "named" / "test_generations.txt")


def test_prediction_without_references(trained: Path, capsys: pytest.CaptureFixture[str], no_pictures: None) -> None:
    """A run's directory stands for its export."""
    options = ("--eval_max_gen_length", 6, "--no_repeat_ngram_size", 2)
    scored = evaluate(trained, trained / "run" / "export", "scored", *options)
    expected = articles(trained, "scored")
    (trained / "only").mkdir()
    shutil.copy(trained / "data" / "test.source", trained / "only")
    capsys.readouterr()
    record = evaluate(trained, trained / "run", "predicted", "--no_references", *options, data="only")
    assert "none without references" in capsys.readouterr().out
    assert not any(isinstance(value, float) for value in record.values())
    assert record["generation"] == scored["generation"] and record["generation"]["no_repeat_ngram_size"] == 2
    assert record["examples"] == 9
    names = ("index", "source", "summary", "source_tokens", "summary_tokens")
    assert articles(trained, "predicted") == [{name: row[name] for name in names} for row in expected]
    assert lines(trained / "predicted" / "test_generations.txt") == [row["summary"] for row in expected]
    assert all(row["summary_tokens"] < 6 for row in expected)
    assert (trained / "predicted" / "report.html").is_file()


def test_sampling_has_a_seed(trained: Path) -> None:
    texts = {}
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        scores = evaluate(trained, trained / "run" / "export", name, "--do_sample", "--eval_beams", 1, "--seed", seed)
        texts[name] = lines(trained / name / "test_generations.txt")
        assert scores["seed"] == seed
    assert texts["first"] == texts["again"] != texts["other"]


def test_a_prefix_stands_before_each_source(trained: Path) -> None:
    export = trained / "run" / "export"
    data = trained / "prefixed"
    data.mkdir()
    (data / "test.target").write_bytes((trained / "data" / "test.target").read_bytes())
    (data / "test.source").write_text("".join(f"dog: {line}\n" for line in lines(trained / "data" / "test.source")))
    scores = evaluate(trained, export, "with_prefix", "--prefix", "dog: ")
    evaluate(trained, export, "in_the_data", data="prefixed")
    assert scores["prefix"] == "dog: "
    kept = [[{**row, "source": ""} for row in articles(trained, out)] for out in ("with_prefix", "in_the_data")]
    assert kept[0] == kept[1]
    assert articles(trained, "with_prefix")[0]["source"] == lines(trained / "data" / "test.source")[0]


def test_translation_is_scored_by_sacrebleu(trained: Path) -> None:
    scores = evaluate(trained, trained / "run" / "export", "translated", "--task", "translation", "--info", "a note")
    generations = lines(trained / "translated" / "test_generations.txt")
    expected = sacrebleu.corpus_bleu(generations, [lines(trained / "data" / "test.target")])
    assert scores["bleu"] == expected.score
    assert "version:" in scores["bleu_signature"]
    assert scores["info"] == "a note"
    assert not any(name.startswith("rouge") for name in [*scores, *articles(trained, "translated")[0]])


FORMS = {"ran": "run", "sat": "sit", "men": "man"}


def test_rouge_as_the_perl_script_has_it(trained: Path) -> None:
    lists = trained / "lists"
    lists.mkdir()
    for name in ("adj", "adv", "noun", "verb"):
        (lists / f"{name}.exc").write_text("ran run\nsat sit\n" if name == "verb" else "men man\n")
    mode = ("--rouge_mode", "rouge-1.5.5", "--wordnet_exceptions", lists)
    scores = evaluate(trained, trained / "run" / "export", "perl", *mode)
    generations = lines(trained / "perl" / "test_generations.txt")
    sources, references = (lines(trained / "data" / f"test.{side}") for side in ("source", "target"))
    assert scores["rouge_mode"] == "rouge-1.5.5" and scores["wordnet_exceptions"] == 3
    expected = rouge_per_example(generations, references, RougeRule("rouge-1.5.5", exceptions=FORMS))
    assert {name: scores[name] for name in expected} == {name: values.mean() for name, values in expected.items()}
    assert "rougeLsum" not in scores
    baselines = {
        name: rouge(texts, references, RougeRule("rouge-1.5.5", exceptions=FORMS))
        for name, texts in leads(sources).items()
    }
    assert scores["baselines"] == baselines


def test_arguments_and_summary_are_written_and_shown(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = trained / "summary.json"
    options = ("--dump-args", "--json-summary", summary, "--eval_beams", 3)
    scores = evaluate(trained, trained / "run" / "export", "dumped", *options)
    arguments = yaml.safe_load((trained / "dumped" / "eval_arguments.yaml").read_text())
    assert (arguments["eval_beams"], arguments["bf16"], arguments["bs"]) == (3, False, 4)
    assert (trained / "dumped" / "eval_arguments.yaml").read_text() in capsys.readouterr().out
    assert json.loads(summary.read_text()) == {**scores, "speed": speed(trained, "dumped"), "arguments": arguments}


def test_the_snippet_runs(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A page's Python, as it stands, with local files behind its names."""
    parts = (ROOT / "docs/decoding.md").read_text().split("```python\n")[1:]
    [snippet] = [part.split("```")[0] for part in parts if "_epoch1_step2000.ckpt" in part]
    work = trained / "work"
    (work / "configs").mkdir(parents=True)
    (work / "results").mkdir()
    (work / "facebook").mkdir()
    (work / "configs" / "config.json").write_text((trained / "config.json").read_text())
    (work / "results" / "_epoch1_step2000.ckpt").symlink_to(next((trained / "run").glob("_epoch*.ckpt")))
    (work / "facebook" / "bart-large-cnn").symlink_to(trained / "run" / "export")
    monkeypatch.chdir(work)
    exec(compile(snippet, "docs/decoding.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("[") and len(printed) > 5
    assert torch.is_grad_enabled()


def test_scarce_memory_changes_nothing_but_the_batch(
    trained: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory that runs out once some articles are done."""
    enough = evaluate(trained, trained / "run" / "export", "enough", "--warmup_batches", 0)
    decode, generate_many = BartForConditionalGeneration.decode, BartForConditionalGeneration.generate_many
    calls, done = [], []

    def scarce_decode(self: BartForConditionalGeneration, ids: torch.Tensor, cache: DecoderCache) -> torch.Tensor:
        if done and len(ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return decode(self, ids, cache)

    def watched(self: BartForConditionalGeneration, sources: Any, size: int, **options: Any) -> Iterator[Any]:
        calls.append((len(sources), size))
        for article in generate_many(self, sources, size, **options):
            done.append(article)
            yield article

    monkeypatch.setattr(BartForConditionalGeneration, "decode", scarce_decode)
    monkeypatch.setattr(BartForConditionalGeneration, "generate_many", watched)
    scarce = evaluate(trained, trained / "run" / "export", "scarce", "--warmup_batches", 0)
    (all_of_them, size), (left, half) = calls
    assert (all_of_them, size, half) == (9, 4, 2)
    assert 0 < left < 9
    texts = [(trained / name / "test_generations.txt").read_text() for name in ("enough", "scarce")]
    assert texts[0] == texts[1]
    assert scarce["loss"] == enough["loss"]
    assert (speed(trained, "enough")["batch_size"], speed(trained, "scarce")["batch_size"]) == (4, 2)
    warnings = [record.getMessage() for record in caplog.records if "out of memory" in record.getMessage()]
    assert warnings == ["out of memory with 4 examples at once; going on with 2: lower --bs to what fits"]
