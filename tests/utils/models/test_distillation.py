from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM
from transformers import BartConfig as TheirConfig
from transformers import BartForConditionalGeneration as TheirBart

import finetune
from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import CONFIG, checkpoint_of, same, write_tiny_run
from utils.models.model_to_train import shrink

LAYERS = {"encoder_layers": 4, "decoder_layers": 3}


@pytest.mark.parametrize(
    ("layers", "stacks", "counts"),
    [([0, 2], ["encoder", "decoder"], (2, 2)), ([1], ["decoder"], (4, 1)), ([0, 1, 3], ["encoder"], (3, 3))],
)
def test_logits_are_those_of_a_transformers_model_cut_alike(
    layers: list[int], stacks: list[str], counts: tuple[int, int], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    theirs = TheirBart(TheirConfig(**{**CONFIG, **LAYERS}, vocab_size=50)).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)  # biases and norms too
    theirs.save_pretrained(tmp_path / "teacher")
    # As published configs have it, where it would count against encoder_layers.
    config = BartConfig(**{**CONFIG, **LAYERS}, vocab_size=50, num_hidden_layers=4)
    ours = BartForConditionalGeneration.from_pretrained(tmp_path / "teacher", config).double()
    shrink(ours, layers, stacks)
    assert (ours.config.encoder_layers, ours.config.decoder_layers) == counts
    ours.save_pretrained(tmp_path / "student")

    for stack in [getattr(theirs.model, name) for name in stacks]:
        stack.layers = nn.ModuleList(copy.deepcopy(stack.layers[i]) for i in layers)
    source, target = torch.randint(3, 50, (2, 9)), torch.randint(3, 50, (2, 5))
    with torch.no_grad():
        expected = theirs.double()(input_ids=source, decoder_input_ids=target).logits
        for student in (ours, AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "student").double()):
            actual = student(input_ids=source, decoder_input_ids=target).logits
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    stored = json.loads((tmp_path / "student" / "config.json").read_text())
    assert (stored["encoder_layers"], stored["decoder_layers"]) == counts


@pytest.fixture
def argv(tmp_path: Path, no_pictures: None) -> list[str]:
    """Options of a run that starts from a model of 4 and 3 layers."""
    argv = write_tiny_run(tmp_path)
    config = {**json.loads((tmp_path / "config.json").read_text()), **LAYERS}
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    tokenizer = BartTokenizer.from_pretrained(tmp_path / "tokenizer")
    BartForConditionalGeneration(BartConfig(**config)).save_pretrained(tmp_path / "teacher", tokenizer)
    return [*argv, "--model_name_or_path", str(tmp_path / "teacher"), "--do_train", "--lr_scheduler", "constant"]


def test_a_whole_run_trains_saves_and_scores_the_smaller_model(argv: list[str], tmp_path: Path) -> None:
    output = tmp_path / "run"
    argv += ["--distill", "sft", "--layers", "0-2", "--do_encoder", "--do_decoder", "--output_dir", str(output)]
    finetune.main([*argv, "--max_steps", "2", "--learning_rate", "1e-9", "--do_predict"])
    teacher = BartForConditionalGeneration.from_pretrained(tmp_path / "teacher").state_dict()
    assert json.loads((output / "test_scores.json").read_text())["examples"] == 7
    for place in (output / "export", output / "last.ckpt"):
        student = BartForConditionalGeneration.from_pretrained(place)
        assert (student.config.encoder_layers, student.config.decoder_layers) == (2, 2)
        for name, tensor in student.state_dict().items():
            origin = name.replace("layers.1.", "layers.2.")
            # Two steps of at most ten times the learning rate each, and one rounding of numbers below 4 for each.
            torch.testing.assert_close(tensor, teacher[origin], rtol=0, atol=2 * (1e-8 + 2**-23), msg=name)
    AutoModelForSeq2SeqLM.from_pretrained(output / "export")


def test_a_distilled_run_resumes(argv: list[str], tmp_path: Path) -> None:
    distill = ["--distill", "sft", "--layers", "1-2", "--do_decoder"]
    common = [*argv, "--learning_rate", "1e-3", "--optimizer", "lamb", "--weight_decay", "0.1"]
    finetune.main([*common, *distill, "--max_steps", "4", "--output_dir", str(tmp_path / "whole")])
    output = tmp_path / "parts"
    finetune.main([*common, *distill, "--max_steps", "2", "--output_dir", str(output)])
    resume = ["--max_steps", "4", "--output_dir", str(output), "--resume_from_checkpoint", str(output / "last.ckpt")]
    with pytest.raises(InputError, match="its decoder_layers is 2, this run's is 3"):
        finetune.main([*common, *resume])
    finetune.main([*common, *distill, *resume])
    whole, parts = (checkpoint_of(tmp_path / run) for run in ("whole", "parts"))
    assert whole["global_step"] == parts["global_step"] == 4
    assert same(whole["state_dict"], parts["state_dict"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "0-3", "--do_encoder", "--do_decoder"], "--layers is 0-3; the decoder has 3 layers.*0 to 2"),
        (["--layers", "2-1", "--do_encoder"], "--layers is '2-1'.*rising"),
        (["--layers", "0", "--do_encoder", "--no_do_train", "--do_predict"], "--distill is sft; it needs --do_train"),
    ],
)
def test_layers_that_are_not_there(options: list[str], message: str, argv: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        finetune.main([*argv, "--distill", "sft", *options, "--output_dir", str(tmp_path / "run")])
    assert {path.name for path in (tmp_path / "run").glob("*")} <= {"log.txt", ".lock"}  # which go with the process
