"""The scripts of the tasks other than summarisation."""

from __future__ import annotations

import pytest

from tests.scripts.recording import Recorder, eval_settings, presets, train_settings

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
