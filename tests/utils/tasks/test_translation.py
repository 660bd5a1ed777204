"""Translation from a language of its own vocabulary, in the paper's two stages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import run_eval
from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests import forked
from tests.fake_cuda.device import needs_compiler
from tests.fake_cuda.training import waits_in_a_step
from tests.tiny_run import Train, checkpoint_of, compute_in_double, same, weights
from tests.utils.training.test_interruption import Interrupt
from tests.utils.training.test_module import assert_trained_alike
from tests.utils.training.test_stopping import add_callback
from utils.predict import main as predict
from utils.summarize import main as summarize


@pytest.fixture
def source_tokenizer(tmp_path: Path) -> Path:
    """A vocabulary larger than that of the targets."""
    words = (tmp_path / "data" / "train.source").read_text().split()
    BartTokenizer.train(
        [word * 3 for word in words] + ["other words of another language " * 3], 400, 1
    ).save_pretrained(tmp_path / "source_tokenizer")
    return tmp_path / "source_tokenizer"


@pytest.fixture
def base(train: Train) -> Path:
    return train("base", "--max_steps", 4)


@pytest.fixture
def translate(train: Train, base: Path, tmp_path: Path) -> Callable[..., Path]:
    def run(name: str, start: Path, *options: object) -> Path:
        weights = ("--model_name_or_path", start, "--tokenizer", start / "export")
        config = ("--config_path", base / "export/config.json")
        given = (*weights, *config, *options)
        return train(name, "--task", "translation", "--max_steps", 5, "--learning_rate", 1e-2, *given)

    return run


def test_two_stages(
    translate: Callable[..., Path], base: Path, source_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ("--source_encoder_layers", 2, "--source_tokenizer", source_tokenizer)
    first = translate("first", base, *source, "--translation_stage", 1)
    before = BartForConditionalGeneration.from_pretrained(base).state_dict()
    after = BartForConditionalGeneration.from_pretrained(first).state_dict()
    moved = {name for name in before.keys() & after.keys() if not torch.equal(before[name], after[name])}
    parts = ("q_proj", "k_proj", "v_proj")
    expected = {f"model.encoder.layers.0.self_attn.{part}.{kind}" for part in parts for kind in ("weight", "bias")}
    expected |= {f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}
    # A bias of keys adds the same to all scores of a query: its gradient is rounding.
    noise = {"model.encoder.layers.0.self_attn.k_proj.bias"}
    assert moved | noise == expected | noise
    own = {name for name in after if name.startswith("model.encoder.embed_tokens.")}
    assert own and not own & before.keys()
    assert after["model.encoder.embed_tokens.embed_tokens.weight"].shape[0] == len(
        BartTokenizer.from_pretrained(source_tokenizer)
    )
    assert sum(name.endswith("fc1.weight") for name in own) == 2

    second = translate("second", first, "--translation_stage", 2)
    last = BartForConditionalGeneration.from_pretrained(second).state_dict()
    still = {name for name in last if torch.equal(last[name], after[name])}
    assert all("bias" in name for name in still), still  # those of keys, and the buffer final_logits_bias
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        add_callback(patch, Interrupt("asked", 3, in_validation=False))
        translate("parts", first, "--translation_stage", 2)
    parts_of = translate("parts", first, "--translation_stage", 2, "--resume_from_checkpoint", "last")
    assert same(weights(parts_of), weights(second))
    assert "source_tokenizer_json" in checkpoint_of(second)
    frozen = BartForConditionalGeneration.from_pretrained(translate("frozen", first, "--freeze_embeds")).state_dict()
    positions = {name: torch.equal(frozen[name], after[name]) for name in frozen if "embed_positions" in name}
    assert [*positions.values()] == [".embed_tokens." not in name for name in positions]  # those of sources move

    given = [str(second), str(base / "export/config.json"), str(tmp_path / "data"), str(tmp_path / "scores")]
    for precision in ((), ("--bf16",)):
        run_eval.main([*given, "--task", "translation", "--eval_beams", "2", "--overwrite_output_dir", *precision])
    scores = json.loads((tmp_path / "scores" / "test_scores.json").read_text())
    assert {"bleu", "chrf", "bleu_signature", "chrf_signature"} <= scores.keys()
    texts = str(tmp_path / "data" / "test.source")
    for program, words in ((run_eval.main, [*given, "--overwrite_output_dir"]), (predict, [given[0], texts])):
        with pytest.raises(InputError, match="reads another language than it writes; allowed: --task translation"):
            program([*words, "--task", "summarization"])
    with pytest.raises(InputError, match="reads another language"):
        summarize([str(second), texts])


@pytest.mark.slow
@needs_compiler
def test_a_step_waits_for_no_gpu(tiny: list[str], base: Path, source_tokenizer: Path, tmp_path: Path) -> None:
    model = ["--model_name_or_path", base, "--tokenizer", base / "export", "--config_path", base / "export/config.json"]
    source = ["--source_encoder_layers", 2, "--source_tokenizer", source_tokenizer, "--translation_stage", 2]
    options = [*tiny, "--task", "translation", *model, *source, "--max_steps", 1, "--output_dir", tmp_path / "run"]
    assert waits_in_a_step(options) == [{}]


@pytest.mark.usefixtures("double")
def test_two_processes_train_as_one(train: Train, tiny: list[str], source_tokenizer: Path, tmp_path: Path) -> None:
    options = ["--task", "translation", "--source_encoder_layers", 2, "--source_tokenizer", source_tokenizer]
    options += ["--translation_stage", 1, "--dropout", 0, "--attention_dropout", 0, "--max_steps", 8]
    options += ["--n_val", 3, "--eval_batch_size", 1, "--val_check_interval", 8, "--train_batch_size"]
    forked.run([*tiny, *options, 2], tmp_path / "two", ranks=2, before=compute_in_double)
    assert_trained_alike(train("one", *options, 4), tmp_path / "two")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--source_encoder_layers", 2), "--source_encoder_layers and --source_tokenizer: give both or neither"),
        (("--translation_stage", 1), "--translation_stage needs --source_encoder_layers, or weights that have"),
        (
            ("--source_encoder_layers", 2, "--source_tokenizer", "T", "--translation_stage", 1, "--freeze_embeds"),
            "--translation_stage 1 excludes --freeze_embeds",
        ),
    ],
)
def test_what_is_refused(
    options: tuple[object, ...], message: str, translate: Callable[..., Path], base: Path, source_tokenizer: Path
) -> None:
    with pytest.raises(InputError, match=message):
        translate("run", base, *(source_tokenizer if word == "T" else word for word in options))
