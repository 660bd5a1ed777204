"""The scripts that pretrain BART: presets, phases that go on, where the data comes from, small recipes."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.recording import PRETRAINS, ROOT, Recorder, preset_rows, presets, settings_of

NVIDIAS = "200 32 5e-3 4e-3 bf16 true 8 2166 200 95040 7560 100 40 120 configs/config.json"


@pytest.mark.parametrize("row", preset_rows("Pretraining"), ids=lambda row: row["preset"])
def test_presets_of_pretraining_have_the_published_batches(row: dict[str, str], pretrain: Any) -> None:
    preset = f"$(source {ROOT}/scripts/params/pretrain_params.sh && {row['preset']})"
    status, runs = pretrain(preset)
    assert (status, len(runs)) == (0, 2)
    for phase, length, published, args in zip((1, 2), ("128", "512"), (64_000, 30_720), runs, strict=True):
        shown = {"train_batch_size": row[f"batch {phase}"], "gradient_accumulation_steps": row[f"accumulation {phase}"]}
        shown |= {"gpus": row["NUM_GPUS"], row["PRECISION"]: None, "max_source_length": length}
        assert shown.items() <= args.items()
        batch = [int(args[name]) for name in ("gpus", "train_batch_size", "gradient_accumulation_steps")]
        assert math.prod(batch) == published == int(row[f"effective batch {phase}"].replace(",", ""))


def test_every_preset_of_pretraining_is_documented() -> None:
    barts, berts = ({row["preset"] for row in preset_rows(title)} for title in ("Pretraining", "BERT"))
    assert set(presets("pretrain")) == barts | {"cpu_smoke", "cpu_small"}
    assert set(presets("bert_pretrain")) == berts | {"cpu_smoke"}
    assert set(presets("bert_squad")) == berts


def test_pretrainings_defaults_and_fixed_flags_are_nvidias(pretrain: Any, tmp_path: Path) -> None:
    shared = {
        **{"config_path": f"{ROOT}/configs/config.json", "seed": "42", "gpus": "8", "num_workers": "1"},
        **dict.fromkeys(["bf16", "pre_ln", "lamb"]),
        **{"lr_scheduler": "polynomial", "weight_decay": "0.1", "dropout": "0.1", "attention_dropout": "0.1"},
        **{"gradient_clip_val": "0.1", "save_checkpoint_steps": "100", "log_freq": "100"},
    }
    status, runs = pretrain()
    assert (status, runs) == (
        0,
        [
            {
                **shared,
                **{"data_dir": "data/pretrain_lddl_128", "max_source_length": "128", "train_batch_size": "200"},
                **{"gradient_accumulation_steps": "40", "learning_rate": "5e-3", "warmup_steps": "2166"},
                **{"max_steps": "95040", "output_dir": "results/bart_pyt_pretraining/phase_1"},
                "resume_from_checkpoint": "last",
            },
            {
                **shared,
                **{"data_dir": "data/pretrain_lddl_512", "max_source_length": "512", "train_batch_size": "32"},
                **{"gradient_accumulation_steps": "120", "learning_rate": "4e-3", "warmup_steps": "200"},
                **{"max_steps": "7560", "output_dir": "results/bart_pyt_pretraining/phase_2"},
                "resume_from_checkpoint": "results/bart_pyt_pretraining/phase_1/last.ckpt",
                **dict.fromkeys(["load_model_weights_only", "overwrite_output_dir"]),
            },
        ],
    )
    shutil.rmtree(tmp_path / "work/results")
    assert pretrain(NVIDIAS) == (0, runs)


def test_a_killed_pretraining_goes_on_and_a_phase_that_is_done_is_not_trained_again(
    pretrain: Any, tmp_path: Path
) -> None:
    results = tmp_path / "work/results/bart_pyt_pretraining"
    status, [first] = pretrain(KILLED="phase_1")
    assert (status, first["resume_from_checkpoint"]) == (143, "last")
    status, [again, second] = pretrain(KILLED="phase_2")
    assert (status, again) == (143, first)
    assert second["resume_from_checkpoint"] == "results/bart_pyt_pretraining/phase_1/last.ckpt"
    (results / "phase_2/last.ckpt").unlink()  # as if it was killed before its first one
    (results / "phase_2/metrics.csv").touch()
    assert pretrain(KILLED="phase_2") == (143, [second])
    status, [third] = pretrain()
    assert (status, third["resume_from_checkpoint"]) == (0, "last")
    assert not {"load_model_weights_only", "overwrite_output_dir"} & third.keys()
    assert pretrain() == (0, [])
    (results / "phase_2/train_summary.json").unlink()
    results.rename(tmp_path / "work/[a] b")  # checkpoints are found whatever the name
    _, [second] = pretrain(RESULTS_DIR="[a] b")
    assert (second["output_dir"], second["resume_from_checkpoint"]) == ("[a] b/phase_2", "last")
    (tmp_path / "work/[a] b").rename(results)
    (results / "phase_1/last.ckpt").unlink()  # its export is enough
    shutil.rmtree(results / "phase_2")
    _, [second] = pretrain(script="run_pretraining_phase2.sh")
    assert second["resume_from_checkpoint"] == "results/bart_pyt_pretraining/phase_1"
    _, [longer, _] = pretrain(f"{' '.join(NVIDIAS.split()[:9])} 95041 7561")
    assert (longer["max_steps"], longer["resume_from_checkpoint"]) == ("95041", "last")


def test_each_phase_has_a_script(recorded: Recorder, pretrain: Any, tmp_path: Path) -> None:
    status, [first] = pretrain(NVIDIAS, "run_pretraining_phase1.sh", PHASE1_CKPT=tmp_path)
    assert (status, first["output_dir"]) == (0, "results/bart_pyt_pretraining/phase_1")
    status, [second] = pretrain(NVIDIAS, "run_pretraining_phase2.sh")
    assert (status, second["output_dir"]) == (0, "results/bart_pyt_pretraining/phase_2")
    shutil.rmtree(tmp_path / "work/results")
    for script in ("run_pretraining.sh", "run_pretraining_phase2.sh"):
        done, calls = recorded(f"bash {ROOT}/scripts/{script}", tmp_path / "work", PHASE1_CKPT="gone/last.ckpt")
        assert (done.returncode, calls) == (2, [])
        assert done.stderr == f"{script}: error: PHASE1_CKPT is 'gone/last.ckpt'; no such file or folder\n"
        assert "0 positional values: NVIDIA's are used, which --help lists, on 8 GPUs\n" in done.stdout
    for script in ("run_pretraining.sh", "run_pretraining_phase2.sh"):
        _, [second] = pretrain(script=script, PHASE1_CKPT=tmp_path, RESULTS_DIR=script)
        assert (second["resume_from_checkpoint"], second["output_dir"]) == (str(tmp_path), f"{script}/phase_2")
    _, [second] = pretrain(
        NVIDIAS.replace("7560", "7561"), "run_pretraining_phase2.sh", PHASE1_CKPT="gone", RESULTS_DIR=script
    )
    assert second["resume_from_checkpoint"] == "last"  # it goes on, and no longer needs phase 1
    unfinished = tmp_path / "work/results/bart_pyt_pretraining/phase_1"
    unfinished.mkdir(parents=True)
    (unfinished / "last.ckpt").touch()
    assert pretrain(script="run_pretraining_phase2.sh") == (2, [])
    (unfinished / "train_summary.json").write_text("{}")
    os.utime(unfinished / "train_summary.json", (0, 0))  # of fewer steps, before it went on
    assert pretrain(script="run_pretraining_phase2.sh") == (2, [])


def test_where_pretraining_finds_its_data(pretrain: Any, tmp_path: Path) -> None:
    (tmp_path / "work/data").rename(tmp_path / "work/more")
    assert pretrain() == (2, [])
    for words, data in (("", "more"), ("--data-dir=more/ --seed 3", "data"), ("--data_dir more", "data")):
        variables = {"SHARDS_PHASE1": "other", "SHARDS_PHASE2": "other"} if words else {}
        _, runs = pretrain(words, RESULTS_DIR=f"results{len(words)}", DATA_DIR=data, **variables)
        assert [args["data_dir"] for args in runs] == ["more/pretrain_lddl_128", "more/pretrain_lddl_512"]
    (tmp_path / "work/more/pretrain_lddl_512").rename(tmp_path / "work/more/pretrain_lddl_1024")
    assert pretrain("--data_dir more", RESULTS_DIR="new") == (2, [])  # before phase 1 is trained
    _, runs = pretrain("--data_dir more", RESULTS_DIR="new", LENGTH_PHASE2=1024)
    assert [args["max_source_length"] for args in runs] == ["128", "1024"]


def test_the_smoke_preset_of_pretraining_makes_all_it_needs(recorded: Recorder, clone: Path) -> None:
    recorded.stand_in("python", PRETRAINS)
    command = "bash scripts/run_pretraining.sh $(source scripts/params/pretrain_params.sh && cpu_smoke)"
    corpus, vocabulary, *shards, first, second = recorded.succeed(command, clone)
    assert (corpus[2], vocabulary[2]) == ("utils.corpora.sample_corpus", "utils.corpora.train_tokenizer")
    documents = "data/sample/documents"
    for length, call in zip(("128", "512"), shards, strict=True):
        given = ["--input", f"{documents}/train.txt", "--val_input", f"{documents}/val.txt"]
        made = ["--output", f"data/sample/pretrain_lddl_{length}", "--sequence_length", length]
        assert call[2:] == ["utils.corpora.make_shards", *given, "--tokenizer", "data/sample/tokenizer", *made]
    texts = (clone / documents / "train.txt").read_text().split("\n\n")
    assert [text.split() for text in texts] == [[str(n) for n in range(a, min(a + 8, 21))] for a in (1, 9, 17)]
    for args, length in ((settings_of(first), "128"), (settings_of(second), "512")):
        assert (args["data_dir"], args["gpus"]) == (f"data/sample/pretrain_lddl_{length}", "0")
    shutil.rmtree(clone / "results")
    assert recorded.succeed(command, clone) == [first, second]
    # Texts that are there are not written again: shards of them that a killed run has begun would be refused.
    os.utime(clone / documents / "train.txt", (1, 1))
    (clone / "data/sample/pretrain_lddl_128/manifest.json").unlink()
    shutil.rmtree(clone / "results")
    assert recorded.succeed(command, clone) == [shards[0], first, second]
    assert (clone / documents / "train.txt").stat().st_mtime == 1
    assert {path.name for path in (clone / documents).iterdir()} == {"train.txt", "val.txt"}
