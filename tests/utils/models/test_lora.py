"""LoRA: adapters are trained alone, resumed to the last bit, and merged into whatever is loaded from the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests import forked
from tests.tiny_run import ALIKE, Train, checkpoint_of, compute_in_double, rows, same
from utils.models.options import LORA_TARGETS
from utils.training.optim import build_optimizer

Lora = Callable[..., Path]  # the fixture `lora`
TARGETS = ("--lora_targets", *LORA_TARGETS)


@pytest.fixture
def lora(train: Train, tmp_path: Path) -> Lora:
    """Trains adapters of a stored model, with dropout."""
    torch.manual_seed(0)
    base = BartForConditionalGeneration(BartConfig.from_pretrained(tmp_path / "config.json"))
    base.save_pretrained(tmp_path / "base", BartTokenizer.from_pretrained(tmp_path / "tokenizer"))

    def run(name: str, *options: object) -> Path:
        start = ("--model_name_or_path", tmp_path / "base", "--lora_rank", 3, "--learning_rate", 0.05)
        return train(name, *start, "--dropout", 0.1, "--lr_scheduler", "constant", *options)

    return run


def logits(model: nn.Module) -> Tensor:
    ids = torch.arange(3, 23).view(2, 10)
    with torch.no_grad():
        return model(input_ids=ids, decoder_input_ids=ids[:, :7]).logits


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Gets the model of every run: with its adapters, as training holds it."""
    models: list[nn.Module] = []

    def build(model: nn.Module, *options: Any) -> Any:
        models.append(model)
        return build_optimizer(model, *options)

    monkeypatch.setattr("utils.training.module.build_optimizer", build)
    return models


@pytest.mark.parametrize(
    ("options", "scale"),
    [
        ([*TARGETS, "--lora_dropout", 0.2], 2.0),
        (["--lora_alpha", 12, "--freeze_encoder"], 4.0),
        (["--distill", "sft", "--layers", "0", "--do_decoder"], 2.0),
    ],
)
def test_whatever_is_loaded_computes_as_the_trained_model(
    options: list[object], scale: float, lora: Lora, trained: list[nn.Module], double: None, tmp_path: Path
) -> None:
    output = lora("run", "--max_steps", 3, *options)
    [model] = trained
    layer = model.model.decoder.layers[0].self_attn.v_proj
    assert layer.scaling == {"default": scale}
    assert not torch.equal(
        logits(model.eval()), logits(BartForConditionalGeneration.from_pretrained(tmp_path / "base"))
    )
    theirs = AutoModelForSeq2SeqLM.from_pretrained(output / "export")
    ours = (BartForConditionalGeneration.from_pretrained(output / name) for name in ("export", "last.ckpt"))
    for merged in (*ours, theirs.double()):
        torch.testing.assert_close(logits(merged), logits(model), rtol=0, atol=1e-10)


def test_adapters_alone_are_trained(
    lora: Lora, trained: list[nn.Module], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    options = ("--weight_decay", 0.1, "--eval_beams", 2, "--do_predict", "--learning_rate", 3e-4)
    output = lora("run", "--max_steps", 2, *options)
    base = BartForConditionalGeneration.from_pretrained(tmp_path / "base").state_dict()
    [model] = trained
    moving = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    # Of queries and values of three attentions: the usual ones.
    assert len(moving) == 3 * 2 * 2 and all(".lora_" in name for name in moving)
    for name, tensor in model.state_dict().items():
        if ".lora_" in name:
            assert tensor.abs().max() > 0
        else:
            assert torch.equal(tensor, base[name.replace(".base_layer.", ".")])
    assert "training 576 of 13," in caplog.text
    assert "; the peak learning rate is 0.0003, ten times the usual one, for --lora_rank" in caplog.text
    card = (output / "export" / "README.md").read_text()
    assert "LoRA adapters of rank 3 were trained and merged into the weights." in card and "| ROUGE-1 |" in card


@pytest.mark.parametrize(
    "options", [["--lora_dropout", 0.2], pytest.param(["--bf16", "--amp_level", "O2"], marks=pytest.mark.slow)]
)
def test_a_run_in_parts_ends_as_the_whole_one(options: list[object], lora: Lora) -> None:
    whole = lora("whole", "--max_steps", 4, *options)
    parts = lora("parts", "--max_steps", 2, *options)
    for other, message in (
        (("--lora_rank", 4), "its lora_rank is 3, this run's is 4"),
        (("--lora_alpha", 4), "its lora_alpha is None, this run's is 4.0"),
        (("--lora_targets", "fc2"), r"its lora_targets is None, this run's is \('fc2',\)"),
    ):
        with pytest.raises(InputError, match=message):
            lora("parts", "--max_steps", 4, *options, "--resume_from_checkpoint", "last", *other)
    lora("parts", "--max_steps", 4, *options, "--resume_from_checkpoint", "last")
    one, two = checkpoint_of(whole), checkpoint_of(parts)
    assert one["global_step"] == two["global_step"] == 4
    assert same(one["state_dict"], two["state_dict"]) and same(one["optimizer_states"], two["optimizer_states"])
    assert [row["train_loss"] for row in rows(whole)] == [row["train_loss"] for row in rows(parts)]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.usefixtures("double")
def test_processes_train_adapters_as_one_would(strategy: str, lora: Lora, tiny: list[str], tmp_path: Path) -> None:
    common = "--dropout 0 --attention_dropout 0 --max_steps 4 --sortish_sampler --val_check_interval 8".split()
    one = lora("one", *common)
    start = ["--model_name_or_path", tmp_path / "base", "--lora_rank", 3, "--learning_rate", 0.05, *common]
    two = [*tiny, *start, "--lr_scheduler", "constant", "--train_batch_size", 2, "--strategy", strategy]
    forked.run([*map(str, two)], tmp_path / "two", ranks=2, before=compute_in_double)
    for column in ("train_loss", "val_loss"):
        ours, theirs = ([row[column] for row in rows(output, column)] for output in (one, tmp_path / "two"))
        assert ours == pytest.approx(theirs, abs=ALIKE, rel=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lora_alpha", 4], "--lora_alpha is about --lora_rank, which is not given"),
        (["--lora_targets", "fc1"], "--lora_targets is about --lora_rank"),
        (["--lora_rank", 17], r"--lora_rank is 17; allowed: at most 16, its d_model"),
        (["--lora_rank", 4, "--model_name_or_path", "scratch"], "--lora_rank is about trained weights; .* is scratch"),
        (["--lora_rank", 4, "--new_vocabulary"], "--new_vocabulary and --lora_rank exclude each other"),
        (["--lora_rank", 4, "--do_predict", "--no_do_train"], "--lora_rank is 4; it needs --do_train"),
    ],
)
def test_what_does_not_fit(options: list[object], message: str, train: Train, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        train("run", "--model_name_or_path", tmp_path / "base", *options)
    assert {path.name for path in (tmp_path / "run").glob("*")} <= {"log.txt", ".lock"}  # which go with the process
