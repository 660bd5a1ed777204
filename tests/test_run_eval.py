"""run_eval.py on a tiny trained model: order, scores, and several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import finetune
import run_eval
from bart.errors import InputError
from bart.generation.cache import DecoderCache
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import write_tiny_run
from utils.evaluation.rouge import rouge

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    argv = write_tiny_run(folder, n_test=9)
    # Large random weights and hardly any training: the summaries then differ from article to article.
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "init_std": 0.6, "min_length": 4}))
    finetune.main([*argv, "--do_train", "--output_dir", str(folder / "run"), "--max_steps", "3"])
    return folder


def evaluate(folder: Path, model: Path, out: str, *options: object) -> dict[str, object]:
    argv = [model, folder / "config.json", folder / "data", folder / out, "--bs", 4, "--gpus", "0"]
    run_eval.main([str(word) for word in [*argv, *options]])
    return json.loads((folder / out / "test_scores.json").read_text())


def test_generations_are_in_order_and_scored(trained: Path) -> None:
    scores = evaluate(trained, trained / "run" / "export", "out", "--eval_beams", 3, "--eval_max_gen_length", 10)
    generations = (trained / "out" / "test_generations.txt").read_text().split("\n")[:-1]
    references = (trained / "data" / "test.target").read_text().split("\n")[:-1]
    model = BartForConditionalGeneration.from_pretrained(trained / "run" / "export")
    tokenizer = BartTokenizer.from_pretrained(trained / "run" / "export")
    expected = []
    for line in (trained / "data" / "test.source").read_text().split("\n")[:-1]:
        ids = tokenizer(line, max_length=64, truncation=True, return_tensors="pt")["input_ids"]
        summary = model.generate(ids, num_beams=3, max_length=10)[0]
        expected.append(tokenizer.decode(summary, skip_special_tokens=True).strip())
    assert generations == expected
    assert len(set(generations)) > 1
    for name, value in rouge(generations, references).items():
        assert scores[name] == pytest.approx(value)
    losses = [
        model(
            tokenizer(source, return_tensors="pt", max_length=64, truncation=True)["input_ids"],
            labels=tokenizer(target, return_tensors="pt", max_length=64, truncation=True)["input_ids"],
        ).loss
        * len(tokenizer(target)["input_ids"])
        for source, target in zip(
            (trained / "data" / "test.source").read_text().split("\n")[:-1], references, strict=True
        )
    ]
    tokens = sum(len(tokenizer(target)["input_ids"]) for target in references)
    assert scores["loss"] == pytest.approx(sum(loss.item() for loss in losses) / tokens, abs=1e-5)
    assert scores["examples"] == 9
    assert scores["generation"]["num_beams"] == 3
    assert scores["latency_ms"]["p50"] <= scores["latency_ms"]["p99"]


def test_a_checkpoint_scores_as_its_export_and_n_obs_cuts(trained: Path) -> None:
    [best] = (trained / "run").glob("_epoch*.ckpt")
    one = evaluate(trained, trained / "run" / "export", "one", "--n_obs", 5)
    two = evaluate(trained, best, "two", "--n_obs", 5)
    assert one["examples"] == 5
    assert one["rouge1"] == two["rouge1"]
    assert (trained / "one" / "test_generations.txt").read_text() == (
        trained / "two" / "test_generations.txt"
    ).read_text()


def test_bf16_and_another_split(trained: Path) -> None:
    argv = [trained / "run" / "export", trained / "config.json", trained / "data", trained / "val_out"]
    run_eval.main([*map(str, argv), "--type_path", "val", "--precision", "bf16", "--gpus", "0"])
    scores = json.loads((trained / "val_out" / "val_scores.json").read_text())
    assert (scores["examples"], scores["precision"]) == (5, "bf16")


def test_several_gpus_are_torchruns_after_all_checks(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def execv(path: str, command: list[str]) -> None:
        started.append(command)
        raise SystemExit

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(os, "execv", execv)
    argv = [trained / "absent.ckpt", trained / "config.json", trained / "data", trained / "out", "--gpus"]
    monkeypatch.setattr(sys, "argv", ["run_eval.py", "its", "arguments"])
    with pytest.raises(InputError, match="--gpus is 3; this machine has 2"):
        run_eval.main([*map(str, argv), "3"])
    with pytest.raises(InputError, match=r"absent\.ckpt"):
        run_eval.main([*map(str, argv), "2"])
    assert started == []
    with pytest.raises(SystemExit):
        run_eval.main([str(word) for word in (trained / "run" / "export", *argv[1:], "2")])
    [command] = started
    assert command[1:] == [
        *"-m torch.distributed.run --standalone --nproc_per_node 2 run_eval.py its arguments".split()
    ]


def test_half_precision_needs_a_gpu_also_where_the_machine_chooses(trained: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match="--precision fp16 needs a GPU"):
        run_eval.main(
            [*map(str, ("model", trained / "config.json", trained / "data", trained / "out")), "--precision", "fp16"]
        )


def test_two_processes_write_what_one_writes(trained: Path) -> None:
    evaluate(trained, trained / "run" / "export", "alone")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "run_eval.py"]
    command += [trained / "run" / "export", trained / "config.json", trained / "data", trained / "shared", "--bs", 4]
    result = subprocess.run(
        [str(word) for word in [*command, "--gpus", "0"]], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stderr
    alone, shared = (json.loads((trained / name / "test_scores.json").read_text()) for name in ("alone", "shared"))
    assert shared["processes"] == 2
    for name in ("examples", "rouge1", "rouge2", "rougeLsum"):
        assert shared[name] == alone[name]
    assert shared["loss"] == pytest.approx(alone["loss"], abs=1e-6)
    texts = [(trained / name / "test_generations.txt").read_text() for name in ("alone", "shared")]
    assert texts[0] == texts[1]


def test_the_snippet_runs(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """README's Python, as it stands, with local files behind its names."""
    readme = (ROOT / "README.md").read_text()
    [snippet] = [
        part.split("```")[0] for part in readme.split("```python\n")[1:] if "BartForConditionalGeneration" in part
    ]
    work = trained / "work"
    (work / "configs").mkdir(parents=True)
    (work / "results").mkdir()
    (work / "facebook").mkdir()
    (work / "configs" / "config.json").write_text((trained / "config.json").read_text())
    (work / "results" / "_epoch1_step2000.ckpt").symlink_to(next((trained / "run").glob("_epoch*.ckpt")))
    (work / "facebook" / "bart-large-cnn").symlink_to(trained / "run" / "export")
    monkeypatch.chdir(work)
    exec(compile(snippet, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("[") and len(printed) > 5
    assert torch.is_grad_enabled()


def test_scarce_memory_changes_nothing_but_the_batch(
    trained: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory that runs out in the teacher-forced pass, and in decoding once some articles are done."""
    enough = evaluate(trained, trained / "run" / "export", "enough")
    forward, decode = BartForConditionalGeneration.forward, BartForConditionalGeneration.decode
    generate_many = BartForConditionalGeneration.generate_many
    calls, done = [], []

    def scarce_forward(self: BartForConditionalGeneration, ids: torch.Tensor, *others: Any, **named: Any) -> Any:
        if len(ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, ids, *others, **named)

    def scarce_decode(self: BartForConditionalGeneration, ids: torch.Tensor, cache: DecoderCache) -> torch.Tensor:
        if done and len(ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return decode(self, ids, cache)

    def watched(self: BartForConditionalGeneration, sources: Any, size: int, **options: Any) -> Iterator[Any]:
        calls.append((len(sources), size))
        for article in generate_many(self, sources, size, **options):
            done.append(article)
            yield article

    monkeypatch.setattr(BartForConditionalGeneration, "forward", scarce_forward)
    monkeypatch.setattr(BartForConditionalGeneration, "decode", scarce_decode)
    monkeypatch.setattr(BartForConditionalGeneration, "generate_many", watched)
    scarce = evaluate(trained, trained / "run" / "export", "scarce")
    (all_of_them, size), (left, half) = calls
    assert (all_of_them, size, half) == (9, 4, 2)
    assert 0 < left < 9
    texts = [(trained / name / "test_generations.txt").read_text() for name in ("enough", "scarce")]
    assert texts[0] == texts[1]
    assert scarce["loss"] == pytest.approx(enough["loss"], abs=1e-6)
    assert (enough["batch_size"], scarce["batch_size"]) == (4, 2)
    warnings = [record.getMessage() for record in caplog.records if "out of memory" in record.getMessage()]
    assert warnings == 2 * [
        "out of memory with 4 examples at once; 2 fit: lower --eval_batch_size (run_eval.py: --bs) to that"
    ]
