"""The scripts of the tasks other than summarisation, and the one that repeats a task's with several seeds."""

from __future__ import annotations

import shlex
import statistics
import sys
from pathlib import Path

import pytest

from tests.scripts.recording import ROOT, Recorder, eval_settings, presets, train_settings

LEFT_TO_MODEL = {"config_path"}  # whose own config counts
TASK_SCRIPTS = {"glue": "classification", "tagging": "tagging", "squad": "question_answering"}


@pytest.mark.parametrize("data", TASK_SCRIPTS)
def test_presets_of_tasks_train_and_score_in_one_program(data: str, recorded: Recorder) -> None:
    """GLUE's predictions for its test sets, and MNLI's mismatched sets, are further runs of run_eval.py."""
    for preset in presets(data):
        started = recorded.succeed(
            f"bash scripts/run_{data}.sh $(source scripts/params/{data}_params.sh && {preset}) --seed 7",
            RESULTS_DIR="out",
        )
        [train] = [call for call in started if any("finetune.py" in word for word in call)]
        scored = [call for call in started if any("run_eval.py" in word for word in call)]
        trained = train_settings(train)
        assert (trained["task"], trained["seed"], trained["output_dir"]) == (TASK_SCRIPTS[data], 7, "out")
        is_glue = data == "glue" and preset != "cpu_smoke"
        split = "val" if is_glue or (data == "squad" and preset != "cpu_smoke") else "test"
        assert (trained["do_train"], trained["do_predict"], trained["type_path"]) == (True, True, split)
        assert len(scored) == (3 if preset == "mnli" else int(is_glue))
        for call in scored:
            settings = eval_settings(call)
            assert settings["model"] == "out/export"
            same = trained.keys() & settings.keys() - {"seed", "tokenizer", "overwrite_output_dir", *LEFT_TO_MODEL}
            assert {name: settings[name] for name in same} == {
                **{name: trained[name] for name in same},
                **{"mismatched": settings["mismatched"], "type_path": settings["type_path"]},
            }
            assert settings["device"] == "cuda"


def test_translation_is_scored_with_its_beams(recorded: Recorder) -> None:
    values = "data/x '' 0 1e-4 8 1 fp32 100 10 128 32 64 4"
    [train] = recorded.succeed(f"bash scripts/run_translation.sh {values} --n_test=5 --n_val 9", RESULTS_DIR="out")
    trained = train_settings(train)
    assert (trained["config_path"], trained["max_target_length"], trained["n_val"]) == (
        "configs/config_translation.json",
        64,
        9,
    )
    assert (trained["pred_beams"], trained["eval_max_gen_length"], trained["n_test"], trained["task"]) == (
        4,
        64,
        5,
        "translation",
    )
    [train] = recorded.succeed(f"bash scripts/run_translation.sh {values}", SCORE=0)
    assert not train_settings(train)["do_predict"]


@pytest.mark.parametrize("script", ["glue", "tagging", "squad"])
def test_a_mistyped_preset_of_a_task_lists_them(script: str, recorded: Recorder) -> None:
    done, started = recorded(f"bash scripts/run_{script}.sh $(source scripts/params/{script}_params.sh && typo)")
    assert (done.returncode, started) == (2, [])
    assert all(f" {preset}" in done.stderr for preset in presets(script))


def test_seeds_are_trained_and_compared(recorded: Recorder, tmp_path: Path) -> None:
    """The runs' stand-in scores each seed with another accuracy."""
    scores = '{"examples": 7, "accuracy": \'$SEED\'.5}'
    recorded.stand_in(
        "python",
        f'[[ $1 != - ]] || exec {shlex.quote(sys.executable)} "$@"\n'
        f'mkdir -p "$RESULTS_DIR" && echo \'{scores}\' >"$RESULTS_DIR/test_scores.json"',
    )
    command = f"bash {ROOT}/scripts/run_stability.sh 3 scripts/run_glue.sh data configs/config_tiny.json 0"
    done, calls = recorded(command, tmp_path, RESULTS_DIR=tmp_path / "out", SEED=7)
    assert done.returncode == 0, done.stderr
    *trained, _ = calls
    for seed, call in zip((7, 8, 9), trained, strict=True):
        values = [call[call.index(f"--{name}") + 1] for name in ("seed", "output_dir")]
        assert values == [str(seed), str(tmp_path / f"out/seed_{seed}")]
        assert call[-2:] == ["--resume_from_checkpoint", "last"]  # if it was killed before
    table = (tmp_path / "out/stability.txt").read_text()
    assert done.stdout.endswith(table)
    assert statistics.stdev((7.5, 8.5, 9.5)) == 1
    assert [line.split() for line in table.splitlines()] == [
        ["score", "mean", "deviation", "least", "greatest"],
        ["test", "accuracy", "8.50", "1.00", "7.50", "9.50"],
    ]
