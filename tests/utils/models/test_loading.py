"""Which vocabulary, config and decoding options a model gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

import finetune
from bart.configuration.configuration_bart import BartConfig
from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError
from bart.modeling.heads import BartForSequenceClassification
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from bert.modeling.modeling_bert import BertForMaskedLM
from bert.tokenization.tokenization_bert import BertTokenizer
from tests.tiny_run import CONFIG, checkpoint_of, write_tiny_run
from utils.models.loading import LoadedModel, load_for_evaluation, vocabulary_at
from utils.models.model_to_train import initial_model
from utils.models.options import ModelOptions
from utils.tasks.head import HeadTask
from utils.text.windows import split_text

TEXTS = ["the dog sat on the mat", "a cat ran", "old men flew over the hill then"]
OWN = {"num_beams": 3, "max_length": 9, "length_penalty": 0.5}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with a vocabulary and decoding options of its own; beside it, others of as many tokens."""
    tokenizers = {
        name: BartTokenizer.train([text] * 9, vocab_size=265) for name, text in zip("ab", TEXTS[::2], strict=True)
    }
    for name, tokenizer in tokenizers.items():
        tokenizer.save_pretrained(tmp_path / name)
    config = {**CONFIG, "vocab_size": 265, "dropout": 0.25}
    assert {len(tokenizer) for tokenizer in tokenizers.values()} == {265}
    BartForConditionalGeneration(BartConfig(**{**config, **OWN})).save_pretrained(tmp_path / "model", tokenizers["a"])
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_beams": 2, "max_length": 20, "min_length": 5}))
    return tmp_path / "model"


def begun(model: Path, dropout: float | None = None, **given: object) -> LoadedModel:
    """A model to train, as options of its weights say."""
    options = ModelOptions(str(model), dropout=dropout, **given)
    return initial_model(options, options.config([BartConfig]), [BartForConditionalGeneration])


def test_another_vocabulary_of_the_same_size_is_refused(model: Path) -> None:
    other, copy = str(model.parent / "b"), str(model.parent / "a")
    message = rf"--tokenizer {other} is another vocabulary \(265 ids\) than that of {model} \(265 ids\)"
    with pytest.raises(InputError, match=f"{message}; leave off --tokenizer$"):
        load_for_evaluation(model, None, other)
    with pytest.raises(InputError, match=f"{message}; leave off --tokenizer$"):
        begun(model, tokenizer=other)
    assert len(load_for_evaluation(model, None, copy)[1]) == len(begun(model, tokenizer=copy).tokenizer)
    for file in (*model.glob("tokenizer*"), *model.glob("*.txt"), model / "vocab.json"):
        file.unlink()
    assert len(load_for_evaluation(model, None, other)[1]) == 265  # nothing to compare with


def test_a_trained_model_decodes_by_its_own_options(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    own = load_for_evaluation(model, None)[0].generation_config
    assert own.choices() == OWN
    assert load_for_evaluation(model, tmp_path / "config.json")[0].generation_config == own
    assert f"decoding options of {tmp_path / 'config.json'} are not used: the model has its own" in caplog.text
    # Ids are no choice of how to decode. A model without any takes those of the config.
    ids = {"decoder_start_token_id": 2, "forced_eos_token_id": 2, "pad_token_id": 1}
    (model / "generation_config.json").write_text(json.dumps(ids))
    assert load_for_evaluation(model, None)[0].generation_config == GenerationConfig(**ids)
    found = load_for_evaluation(model, tmp_path / "config.json")[0].generation_config
    assert found.choices() == {"num_beams": 2, "max_length": 20, "min_length": 5}


def test_training_starts_by_the_config_that_is_given_or_else_by_the_models_own(model: Path, tmp_path: Path) -> None:
    new = begun(model, dropout=0.5).model
    assert (new.config.dropout, new.config.vocab_size, new.generation_config.choices()) == (0.5, 265, OWN)
    assert begun(model).model.config.dropout == 0.25
    given = begun(model, config_path=str(tmp_path / "config.json")).model
    assert given.generation_config.choices() == {"num_beams": 2, "max_length": 20, "min_length": 5}
    (model / "config.json").unlink()
    with pytest.raises(InputError, match=f"--model_name_or_path {model}: no config there; give --config_path"):
        begun(model)


def test_a_run_needs_neither_config_nor_lengths_nor_gpus(
    tmp_path: Path, no_pictures: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The model names no longest summary, so that of the training targets is taken, also when it is resumed."""
    caplog.set_level("INFO")
    named = dict(zip(*[iter(write_tiny_run(tmp_path))] * 2, strict=True))
    tokenizer = BartTokenizer.from_pretrained(named["--tokenizer"])
    config = {**CONFIG, "vocab_size": len(tokenizer), "max_length": None}
    BartForConditionalGeneration(BartConfig(**config)).save_pretrained(tmp_path / "model", tokenizer)
    argv = ["--do_train", "--model_name_or_path", str(tmp_path / "model"), "--data_dir", named["--data_dir"]]
    argv += ["--eval_beams", "0", "--num_workers", "0"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    finetune.main([*argv, "--max_steps", "1", "--lr_scheduler", "constant"])
    [run] = (tmp_path / "results").iterdir()
    arguments = (run / "arguments.yaml").read_text()
    assert "max_source_length: 64\n" in arguments and "val_max_target_length: 64\n" in arguments
    assert "learning_rate: 3.0e-05\n" in arguments and f"output_dir: results/{run.name}\n" in arguments
    log = caplog.text
    assert f"writing to results/{run.name}" in log and f"report: results/{run.name}/report.html" in log
    assert "no CUDA device here: running on the CPU in fp32" in log
    assert f"architecture and decoding options: those of {tmp_path / 'model'}" in log
    resume = ["--output_dir", str(run), "--resume_from_checkpoint", "last", "--max_source_length", "64"]
    finetune.main([*argv, "--max_steps", "2", "--lr_scheduler", "constant", *resume])
    stored = checkpoint_of(run)
    assert (stored["global_step"], stored["generation_config"]["max_length"]) == (2, 64)
    assert stored["identity"]["max_source_length"] == 64
    assert stored["generation_config"]["num_beams"] == 2


def test_a_bart_may_have_berts_vocabulary(tmp_path: Path) -> None:
    """As Chinese BART has, whose files are BERT's; BERT's network has no byte-level BPE."""
    vocabulary = BertTokenizer.train(TEXTS * 9, 80)
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3}
    config = BartConfig(**{**CONFIG, **special, "vocab_size": len(vocabulary), "num_labels": 3})
    for model_class in (BartForConditionalGeneration, BartForSequenceClassification):
        model_class(config).save_pretrained(tmp_path, vocabulary)
        model, tokenizer = load_for_evaluation(tmp_path, None, model_classes=[model_class])
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert dict(tokenizer(TEXTS[0], TEXTS[1])) == dict(theirs(TEXTS[0], TEXTS[1]))
    batch = {name: torch.tensor([ids]) for name, ids in tokenizer(TEXTS[0], TEXTS[1]).items()}
    assert HeadTask.output_of(None, model, batch).logits.shape == (1, 3)  # BART reads no types
    windows = split_text(" ".join(TEXTS * 2), tokenizer, 12)
    assert [part for ids in windows for part in ids[1:-1]] == tokenizer(" ".join(TEXTS * 2))["input_ids"][1:-1]
    torch.save({"tokenizer_json": tokenizer.to_json()}, tmp_path / "last.ckpt")
    read = vocabulary_at(BartForConditionalGeneration, tmp_path / "last.ckpt")
    assert (type(read), read.get_vocab()) == (BertTokenizer, tokenizer.get_vocab())
    BartTokenizer.train(TEXTS, 265).save_pretrained(tmp_path / "bart")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="its tokenizer_class is 'BartTokenizer'; allowed: BertTokenizer"):
        vocabulary_at(BertForMaskedLM, tmp_path / "bart")
    with pytest.raises(InputError, match="holds neither tokenizer.json nor vocab.json with merges.txt"):
        vocabulary_at(BartForConditionalGeneration, tmp_path / "empty")
