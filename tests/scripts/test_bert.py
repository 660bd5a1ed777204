"""The scripts that pretrain BERT and fine-tune it on SQuAD."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.recording import PRETRAINS, ROOT, Recorder, eval_settings, preset_rows, settings_of, train_settings


@pytest.mark.parametrize("row", preset_rows("BERT"), ids=lambda row: row["preset"])
def test_presets_of_bert_have_nvidias_batches_and_schedule(row: dict[str, str], pretrain: Any, tmp_path: Path) -> None:
    for length in (128, 512):
        (tmp_path / f"work/data/pretrain_lddl_{length}").rename(tmp_path / f"work/data/pretrain_mlm_nsp_{length}")
    preset = f"$(source {ROOT}/scripts/params/bert_pretrain_params.sh && {row['preset']})"
    status, (first, second) = pretrain(preset, "bert/run_pretraining.sh")
    shared = {
        **{"task": "mlm_nsp", "config_path": f"{ROOT}/configs/bert_large.json", "seed": "42", "gpus": row["NUM_GPUS"]},
        **{"lr_scheduler": "poly_sqrt", "weight_decay": "0.01", "gradient_clip_val": "1", "adam_epsilon": "1e-6"},
        **{"num_workers": "4", "lamb": None, "save_checkpoint_steps": "200"},
    } | ({} if row["PRECISION"] == "fp32" else {row["PRECISION"]: None})
    expected = [
        shared | {"max_source_length": "128", "learning_rate": "6e-3", "max_steps": "7038", "warmup_steps": "2001"},
        shared | {"max_source_length": "512", "learning_rate": "4e-3", "max_steps": "1563", "warmup_steps": "200"},
    ]
    assert status == 0
    for phase, published, args, asked in zip((1, 2), (65_536, 32_768), (first, second), expected, strict=True):
        assert asked.items() <= args.items() and not {"pre_ln", "no_pre_ln", "nvlamb"} & {*args}
        assert args["data_dir"] == f"data/pretrain_mlm_nsp_{args['max_source_length']}"
        assert args["output_dir"] == f"results/bert_lamb_pretraining/phase_{phase}"
        assert args["gradient_accumulation_steps"] == row[f"accumulation {phase}"]
        micro_batch = int(row[f"batch {phase}"]) // int(row[f"accumulation {phase}"])
        assert int(args["train_batch_size"]) == micro_batch
        assert int(row["NUM_GPUS"]) * int(row[f"batch {phase}"]) == published


def test_bert_begins_with_given_weights_and_makes_shards_that_are_missing(
    recorded: Recorder, pretrain: Any, tmp_path: Path
) -> None:
    (tmp_path / "work/texts").mkdir()
    words = (
        "64 6e-3 fp32 0 .5 7 3 true false true 8 5 job true true 32 4e-3 0 9 8 made/a made/b /code weights texts 3 2"
    )
    done, calls = recorded(
        f"bash {ROOT}/scripts/bert/run_pretraining.sh {words}", tmp_path / "work", VOCAB_FILE="words"
    )
    assert done.returncode == 0, done.stderr
    *shards, first, second = calls
    made = ["--task", "mlm_nsp", "--input", "texts", "--output"]
    further = ["--tokenizer", "words", "--sequence_length"]
    counted = ["--workers", "3", "--shards", "6"]
    bins = ["--bins", *(str(length) for length in range(64, 513, 64))]
    assert [call[3:] for call in shards] == [
        [*made, "made/a", *further, "128", *counted], [*made, "made/b", *further, "512", *counted, *bins],
    ]  # fmt: skip
    begun = {"resume_from_checkpoint": "weights", "load_model_weights_only": None, "seed": "5", "warmup_steps": "4"}
    begun |= {"train_batch_size": "8", "output_dir": "results/job/phase_1"}
    assert begun.items() <= settings_of(first).items()
    assert settings_of(second)["resume_from_checkpoint"] == "results/job/phase_1/last.ckpt"
    without = words.replace("true true 32", "true true 64").replace("true false true", "true false false")
    without = without.replace("weights", "None")
    _, [first, _] = pretrain(f"{without} --n_val 3", "bert/run_pretraining.sh", RESULTS_DIR="other")
    assert (first["gradient_accumulation_steps"], first["train_batch_size"]) == ("1", "64")
    assert (first["resume_from_checkpoint"], first["n_val"]) == ("last", "3")


@pytest.mark.parametrize("name", [row["preset"] for row in preset_rows("BERT")])
def test_presets_of_bert_for_squad(name: str, recorded: Recorder) -> None:
    [train] = recorded.succeed(
        f"bash scripts/bert/run_squad.sh $(source scripts/params/bert_squad_params.sh && {name}) --n_val 7"
    )
    args = train_settings(train)
    expected = {
        **{"task": "question_answering", "model_name_or_path": "google-bert/bert-large-uncased", "max_epochs": 2},
        **{"max_steps": -1, "learning_rate": 4.6e-5, "warmup_proportion": 0.2, "warmup_steps": 0, "seed": 1},
        **{"data_dir": "hub:rajpurkar/squad", "n_val": 7, "do_predict": True, "type_path": "val"},
    }
    assert expected.items() <= args.items()
    assert args["gpus"] * args["train_batch_size"] == (128 if "fp32" in name else 256)
    precision = name.rsplit("_", 1)[1]
    assert precision == "fp32" or args[precision]


def test_berts_squad_trains_or_scores_alone(recorded: Recorder) -> None:
    words = "ckpt 3 4 5e-5 .1 bf16 1 9 data/x vocab out"
    [train] = recorded.succeed(f"bash scripts/bert/run_squad.sh {words} train configs/bert_base.json 50")
    expected = {"max_steps": 50, "tokenizer": "vocab", "seed": 9, "train_batch_size": 4, "output_dir": "out"}
    assert expected.items() <= train_settings(train).items()
    assert train_settings(train)["max_epochs"] is None
    [score] = recorded.succeed(f"bash scripts/bert/run_squad.sh {words} eval configs/bert_base.json -1 --n_obs 3")
    expected = {"model": "ckpt", "save_dir": "out", "tokenizer": "vocab", "bs": 8, "n_obs": 3, "device": "cuda"}
    assert expected.items() <= eval_settings(score).items()


def test_the_smoke_preset_of_bert_has_a_vocabulary_of_its_own(recorded: Recorder, clone: Path) -> None:
    recorded.stand_in("python", PRETRAINS)
    command = "bash scripts/bert/run_pretraining.sh $(source scripts/params/bert_pretrain_params.sh && cpu_smoke)"
    corpus, vocabulary, *shards, first, second = recorded.succeed(command, clone)
    tokenizer = "data/sample/bert_tokenizer"
    assert corpus[2] == "utils.corpora.sample_corpus"
    assert vocabulary[5:] == ["--output_dir", tokenizer, "--vocab_size", "1600", "--model_type", "bert"]
    for call in shards:
        assert call[-2:] == ["--task", "mlm_nsp"] and call[call.index("--tokenizer") + 1] == tokenizer
    assert [settings_of(call)["data_dir"] for call in (first, second)] == [
        call[call.index("--output") + 1] for call in shards
    ]
    assert recorded.succeed(command, clone) == []
    # And so have shards of BERT that are asked for by an option.
    shutil.rmtree(clone / "data")
    shutil.rmtree(clone / "results")
    command = "bash scripts/run_pretraining.sh $(source scripts/params/pretrain_params.sh && cpu_smoke) --task=mlm_nsp"
    _, _, *shards, _, _ = recorded.succeed(command, clone)
    assert [call[-2:] for call in shards] == [["--task", "mlm_nsp"]] * 2
