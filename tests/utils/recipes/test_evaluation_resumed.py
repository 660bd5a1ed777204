"""run_eval.py where another run, or an earlier part of the same one, has left something."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import run_eval
from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests.scoring import evaluate, files, words
from utils.app.cli import run_main


def watch(monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> list[Any]:
    """The articles decoded from now on; after so many of them the run is broken off."""
    generate_many = BartForConditionalGeneration.generate_many
    decoded: list[Any] = []

    def watched(self: BartForConditionalGeneration, sources: Any, size: int, **options: Any) -> Iterator[Any]:
        for article in generate_many(self, sources, size, **options):
            if len(decoded) == stop_after:
                signal.raise_signal(signal.SIGINT)
            decoded.append(article)
            yield article

    monkeypatch.setattr(BartForConditionalGeneration, "generate_many", watched)
    return decoded


def test_an_interrupted_run_goes_on_where_it_was(
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Another run does not touch what it had done."""
    export = trained / "run" / "export"
    evaluate(trained, export, "uninterrupted")
    with monkeypatch.context() as patch:
        watch(patch, stop_after=5)
        patch.setattr(sys, "argv", ["run_eval.py", *words(trained, export, "interrupted")])
        with pytest.raises(SystemExit) as stop:
            run_main(run_eval.main)
    assert stop.value.code == 130
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == "run_eval.py: ended by Ctrl-C; the same command goes on with the examples that are left"
    shutil.copytree(trained / "interrupted", trained / "kept")
    with pytest.raises(InputError, match="holds the progress of another run .*(its prefix|its content)"):
        evaluate(trained, export, "interrupted", "--prefix", "the ")
    noted = trained / "interrupted" / ".test_progress" / "rank0.jsonl"
    for options, damage, left in (
        ((), b"", 5),
        ((), b'"loss"', 2),  # of the third example
        (("--bs", 3), b"", 5),
        (("--task", "translation"), b"", 5),
    ):
        shutil.rmtree(trained / "interrupted")
        shutil.copytree(trained / "kept", trained / "interrupted")
        if damage:
            before, *others = noted.read_bytes().rsplit(damage, 3)
            noted.write_bytes(before + damage.join([b"\x80loss", *others]))
        caplog.clear()
        with monkeypatch.context() as patch:
            decoded = watch(patch)
            scores = evaluate(trained, export, "interrupted", *options)
        assert len(decoded) == 9 - left
        assert f"{left} of 9 examples were predicted before" in caplog.text
        if scores["task"] == "summarization":
            assert files(trained, "interrupted") == files(trained, "uninterrupted")


def test_scores_of_another_run_are_replaced_on_demand_alone(trained: Path) -> None:
    export, out = trained / "run" / "export", trained / "used"
    [other] = (trained / "run").glob("_epoch*.ckpt")
    evaluate(trained, export, "used")
    evaluate(trained, export, "used", "--bs", 3)  # the same run
    kept = files(trained, "used")
    for model, options, difference in (
        (other, (), f"its model is '{export}', this run's is '{other}'"),
        (other, ("--type_path", "val"), f"its model is '{export}', this run's is '{other}'"),
        (export, ("--eval_beams", 3), "its generation num_beams is 2, this run's is 3"),
        (export, ("--n_obs", 3), "its examples is 9, this run's is 3"),
        (export, ("--bf16",), "its precision is 'fp32', this run's is 'bf16'"),
        (export, ("--task", "translation"), "its task is 'summarization', this run's is 'translation'"),
    ):
        named = rf"^{out}/test_scores.json holds the scores of another run \({difference}\): .* --overwrite_output_dir$"
        with pytest.raises(InputError, match=named):
            evaluate(trained, model, "used", *options)
    assert files(trained, "used") == kept
    (out / "notes.txt").touch()
    assert evaluate(trained, export, "used", "--n_obs", 3, "--overwrite_output_dir")["examples"] == 3
    run_eval.main(words(trained, other, "used", "--type_path", "val", "--overwrite_output_dir"))
    assert (out / "notes.txt").exists() and not list(out.glob("test_*"))
    assert json.loads((out / "val_scores.json").read_text())["model"] == str(other)
