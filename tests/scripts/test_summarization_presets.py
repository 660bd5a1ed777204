"""The presets of summarisation: what docs/presets.md says, mistyped ones, and the one for laptops."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.recording import (
    SETS,
    TORCHRUN,
    Recorder,
    eval_settings,
    place_of,
    preset_rows,
    presets,
    section_of,
    train_settings,
)

PRECISIONS = ("fp16", "bf16", "tf32")


@dataclass(frozen=True)
class Documented:
    """A preset for one data set as the documented table has it: options by their names in the programs."""

    effective_batch: int
    train: dict[str, Any]
    eval_preset: dict[str, Any]


def documented_rows() -> dict[tuple[str, str], Documented]:
    """The presets of docs/presets.md, by data set and name."""
    rows = {}
    for data, title in SETS.items():
        section = section_of(title)
        source, target, beams = map(int, re.search(r"source (\d+), target (\d+), (\d+) beams", section).groups())
        eval_batch = re.search(r"`(\w+)_eval` has a PRED_BS\s+of\s+(\d+)", section)
        for of in preset_rows(title):
            flags = {flag: flag == of["PREC"] for flag in PRECISIONS}
            lengths = {"max_source_length": source, "max_target_length": target}
            train = {
                "gpus": int(of["NUM_GPU"]),
                "train_batch_size": int(of["BS"]),
                "gradient_accumulation_steps": int(of["ACCUM"]),
                "learning_rate": float(of["LR"]),
                "max_steps": int(of["TRAIN_STEPS"]),
                "warmup_steps": int(of["WARMUP_STEPS"]),
                "eval_batch_size": int(of["EVAL_BS"]),
                "val_check_interval": float(of["VAL_CHECK_INTERVAL"]),
                "early_stopping_patience": int(of["PATIENCE"]),
                "val_max_target_length": target,
                **lengths,
                **flags,
            }
            train |= {"pred_batch_size": int(of["PRED_BS"]), "pred_beams": beams, "eval_max_gen_length": target}
            score = {"bs": int(of["PRED_BS"]), "eval_beams": beams, "eval_max_gen_length": target, "device": "cuda"}
            score |= {**lengths, **flags}
            other = {"bs": int(eval_batch[2])} if eval_batch and eval_batch[1] == of["preset"] else {}
            rows[data, of["preset"]] = Documented(int(of["effective batch"]), train, score | other)
    return rows


@pytest.mark.parametrize("data", SETS)
def test_every_preset_stands_in_the_docs_and_has_an_eval_twin(data: str) -> None:
    names = {name for of, name in documented_rows() if of == data}
    assert {"dgxa100_8gpu_fp16", "dgxa100_8gpu_bf16", "h200_1gpu_bf16"} < names
    names.add("cpu_smoke")
    assert set(presets(data)) == names | {f"{name}_eval" for name in names}


@pytest.mark.parametrize(("data", "name"), documented_rows())
def test_presets_give_the_programs_what_the_docs_say(data: str, name: str, recorded: Recorder) -> None:
    row = documented_rows()[data, name]
    source = f"source scripts/params/{data}_params.sh"
    [train] = recorded.succeed(f"bash scripts/run_summarization.sh $({source} && {name})", RESULTS_DIR="out")
    args = train_settings(train)
    assert row.train.items() <= args.items()
    assert args["processes"] * args["train_batch_size"] * args["gradient_accumulation_steps"] == row.effective_batch
    assert (args["do_train"], args["do_predict"], args["output_dir"]) == (True, True, "out")
    files = {"data_dir": args["data_dir"], "config_path": args["config_path"], "save_dir": "out"}
    [score] = recorded.succeed(
        f"bash scripts/run_eval_summarization.sh ckpt $({source} && {name}_eval)", RESULTS_DIR="out"
    )
    assert (row.eval_preset | files | {"model": "ckpt"}).items() <= eval_settings(score).items()
    gpus = row.train["gpus"]
    assert score[: place_of("run_eval.py", score)] == ([*TORCHRUN, str(gpus)] if gpus > 1 else ["python"])


@pytest.mark.parametrize("preset", ["$(source scripts/params/xsum_params.sh && dgxa100_8gpu_fp61)", "$(false)", '""'])
def test_a_mistyped_preset_trains_nothing(preset: str, recorded: Recorder) -> None:
    done, started = recorded(f"bash scripts/run_summarization.sh {preset} --n_train 7")
    assert (done.returncode, started) == (2, [])
    last = done.stderr.splitlines()[-1]
    assert last.startswith("run_summarization.sh: error: 0 positional values; ")
    assert all(f" {name}" in last for name in presets("xsum") if not name.endswith("_eval"))


def test_the_preset_for_laptops_makes_its_data_and_needs_no_further_words(recorded: Recorder, clone: Path) -> None:
    def succeed(data: str) -> list[list[str]]:
        preset = f"$(source scripts/params/{data}_params.sh && cpu_smoke)"
        return recorded.succeed(f"bash scripts/run_summarization.sh {preset}", clone, RESULTS_DIR="out")

    corpus, vocabulary, train = succeed("cnn_dm")
    assert corpus[2:] == ["utils.corpora.sample_corpus", "--output_dir", "data/sample"]
    assert vocabulary[2:4] == ["utils.corpora.train_tokenizer", "--data_dir"]
    expected = {"data_dir": "data/sample", "tokenizer": "data/sample/tokenizer", "model_name_or_path": "scratch"}
    assert (expected | {"gpus": 0, "max_target_length": 64, "max_steps": 600}).items() <= train_settings(train).items()
    for name in ("questions/test.jsonl", "tokenizer/tokenizer_config.json"):
        (clone / "data/sample" / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / "data/sample" / name).write_text("there")
    assert succeed("cnn_dm") == succeed("xsum") == [train]
    preset = "$(source scripts/params/xsum_params.sh && cpu_smoke_eval)"
    command = f"bash scripts/run_eval_summarization.sh out/export {preset} --overwrite_output_dir"
    [alone] = recorded.succeed(command, clone, RESULTS_DIR="out")
    trained, scored = train_settings(train), eval_settings(alone)
    assert (scored["bs"], scored["eval_beams"]) == (trained["pred_batch_size"], trained["pred_beams"])
    assert scored["eval_max_gen_length"] == trained["eval_max_gen_length"] == 64
