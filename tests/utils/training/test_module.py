"""What one optimizer step and one validation do."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard

from bart.cpu.backend import CpuBackend
from bart.generation import cache, graphs
from bart.modeling import layers
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests import forked
from tests.bart.generation.test_graphs import repeat
from tests.tiny_run import ALIKE, Train, compute_in_double, rows, weights
from utils.data.batches import TokenPairs, collate_pairs
from utils.data.tables import read_pairs
from utils.models.loading import LoadedModel, for_inference
from utils.tasks.summarization import Summarization
from utils.tasks.text_to_text import smoothed_loss, teacher_forced
from utils.training.module import TrainingModule

NO_DROPOUT = ("--dropout", 0, "--attention_dropout", 0)


def cut(batch_size: int, accumulation: int, *others: object) -> tuple[object, ...]:
    return ("--train_batch_size", batch_size, "--gradient_accumulation_steps", accumulation, *others)


def assert_trained_alike(output: Path, other: Path) -> None:
    """The same losses, gradients (whose scale Adam does not show in the weights), validations and weights."""
    for column, names in (("train_loss", {"train_loss", "grad_norm", "lr", "epoch", "step"}), ("val_loss", None)):
        ours, theirs = (rows(place, column) for place in (output, other))
        assert len(ours) == len(theirs) > 3
        for row, same in zip(ours, theirs, strict=True):
            kept = {name: same[name] for name in names or same}
            assert {name: row[name] for name in kept} == pytest.approx(kept, abs=ALIKE, rel=0)
    torch.testing.assert_close(weights(output), weights(other), rtol=0, atol=ALIKE)


@pytest.mark.parametrize(
    ("whole", "cuts", "on_two"),
    [
        pytest.param(
            cut(8, 1),
            [cut(4, 2), cut(1, 8)],
            [cut(2, 2), cut(4, 1, "--strategy", "fsdp", "--num_sanity_val_steps", 2)],
            marks=pytest.mark.slow,
        ),
        pytest.param(cut(8, 1, "--no_sortish_sampler"), [cut(2, 4)], [cut(1, 4)], marks=pytest.mark.slow),
        (cut(8, 4, "--max_tokens_per_batch", 160), [], [cut(8, 2)]),
    ],
    ids=["like lengths", "random", "tokens"],
)
@pytest.mark.usefixtures("double")
def test_training_does_not_depend_on_how_a_step_is_cut(
    train: Train, tiny: list[str], tmp_path: Path, whole: tuple[object, ...], cuts: list[Any], on_two: list[Any]
) -> None:
    """Two epochs of 22 examples, in steps of 8, 8 and 6: at once, in micro-batches, and on 2 processes.

    Where a micro-batch is one example, the last step has fewer examples than micro-batches. One of the two processes
    has more to validate than the other.
    """
    common = (*NO_DROPOUT, "--learning_rate", 1e-3, "--lr_scheduler", "constant", "--max_epochs", 2, "--n_val", 3)
    common += ("--eval_batch_size", 1, "--eval_beams", 2, "--eval_max_gen_length", 6, "--val_check_interval", 0.34)
    common += ("--freeze_embeds", *whole)
    expected = train("whole", *common)
    for number, options in enumerate(cuts):
        assert_trained_alike(expected, train(f"cut{number}", *common, *options))
    for number, options in enumerate(on_two):
        output = tmp_path / f"two{number}"
        forked.run([*tiny, *common, *options], output, ranks=2, before=compute_in_double)
        assert_trained_alike(expected, output)


def check_shards(strategy: str) -> None:
    """Compute in double precision, and let a step fail where a machine's processes do not hold shards of one copy."""
    compute_in_double()
    step = TrainingModule.training_step

    def checked(self: TrainingModule, *arguments: Any) -> Tensor:
        meshes = {str(parameter.device_mesh.mesh.tolist()) for parameter in self.model.parameters()}
        placed = {parameter.placements for parameter in self.model.parameters()}
        if strategy == "hsdp":
            assert (meshes, placed) == ({"[[0, 1], [2, 3]]"}, {(Replicate(), Shard(0))})
        else:
            assert (meshes, placed) == ({"[0, 1]"}, {(Shard(0),)})
        return step(self, *arguments)

    TrainingModule.training_step = checked


@pytest.mark.parametrize(
    ("strategy", "ranks", "machines"), [("hsdp", 4, 2), pytest.param("fsdp", 2, 1, marks=pytest.mark.slow)]
)
@pytest.mark.usefixtures("double")
def test_lamb_trains_shards_as_it_trains_whole_matrices(
    train: Train, tiny: list[str], tmp_path: Path, strategy: str, ranks: int, machines: int
) -> None:
    """Also a run that goes on, and shards on each of two machines, whose copies are kept alike."""
    common = (*NO_DROPOUT, "--optimizer", "lamb", "--nvlamb", "--learning_rate", 1e-2, "--lr_scheduler", "constant")
    common += ("--max_steps", 6, "--weight_decay", 0.1, "--n_val", 4, "--train_batch_size")
    expected = train("whole", *common, 8)
    options = (*tiny, *common, 8 // ranks, "--strategy", strategy, "--resume_from_checkpoint", "last")
    for steps in (3, 6):
        shards = {"ranks": ranks, "machines": machines, "before": partial(check_shards, strategy)}
        forked.run([*options, "--max_steps", steps], tmp_path / "shards", **shards)
    ours, theirs = ([row["train_loss"] for row in rows(place)] for place in (tmp_path / "shards", expected))
    assert ours == pytest.approx(theirs, abs=ALIKE, rel=0) and len(ours) == 6
    torch.testing.assert_close(weights(tmp_path / "shards"), weights(expected), rtol=0, atol=ALIKE)


def test_training_runs_in_training_mode(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """from_pretrained gives eval mode; dropout must be on all the same, also after a validation.

    A validation makes no tensors of inference mode, which FSDP could not train on.
    """
    first = train("first", "--max_steps", 1)
    seen: dict[str, list[Any]] = {}

    def spy(name: str) -> None:
        original = getattr(TrainingModule, name)

        def call(self: TrainingModule, *arguments: Any) -> Any:
            modes = {module.training for module in self.model.modules()}
            seen.setdefault(name, []).append((*modes, torch.is_inference_mode_enabled()))
            return original(self, *arguments)

        monkeypatch.setattr(TrainingModule, name, call)

    spy("training_step")
    spy("validation_step")
    options = ("--max_steps", 4, "--val_check_interval", 0.3, "--num_sanity_val_steps", 1)
    train("second", "--model_name_or_path", first / "export", *options)
    assert seen == {"training_step": [(True, False)] * 4, "validation_step": [(False, False)] * 5}


@pytest.mark.parametrize("drops", [{}, {"encoder": 0.5}, {"encoder": 0.9, "decoder": 0.5}])
def test_layerdrop_skips_layers_in_training_alone(
    drops: dict[str, float], train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One layer in each stack: in how many of 30 steps it ran; in validation it always does."""
    counts: dict[tuple[str, bool], int] = {}

    def count(layer_class: type[torch.nn.Module], name: str) -> None:
        forward = layer_class.forward

        def counting(self: torch.nn.Module, *arguments: object) -> Tensor:
            counts[name, self.training] = counts.get((name, self.training), 0) + 1
            return forward(self, *arguments)

        monkeypatch.setattr(layer_class, "forward", counting)

    count(layers.BartEncoderLayer, "encoder")
    count(layers.BartDecoderLayer, "decoder")
    train("run", "--max_steps", 30, *(word for name in drops for word in (f"--{name}_layerdrop", drops[name])))
    for name in ("encoder", "decoder"):
        chance = drops.get(name, 0.0)
        tolerance = 9 if chance else 0  # 3 standard deviations at least
        assert abs(counts[name, True] - 30 * (1 - chance)) <= tolerance, name
    assert counts["encoder", False] == counts["decoder", False] > 0


BEAMS = ("--eval_beams", 2, "--eval_max_gen_length", 24, "--max_steps", 2, "--val_check_interval", 4)


def decode_by_a_copy() -> None:
    """Let validation in fp32 on CPUs decode as that in half precision does on GPUs."""

    def with_copy(task: Summarization, loaded: LoadedModel, precision: str) -> LoadedModel:
        loaded.model.generate = lambda *_, **__: pytest.fail("not by the copy")
        return replace(loaded, decoder=for_inference(loaded.model, precision))

    Summarization.for_validation = with_copy


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_validation_decodes_by_a_copy_what_the_model_itself_decodes(
    tiny: list[str], tmp_path: Path, ranks: int
) -> None:
    """With the weights of that time; two processes share the model by FSDP."""
    options = [*tiny, *map(str, BEAMS), *["--strategy", "fsdp"] * (ranks > 1)]
    for name, before in (("itself", None), ("copy", decode_by_a_copy)):
        forked.run(options, tmp_path / name, ranks=ranks, before=before)
    expected, copied = (rows(tmp_path / name, "val_rouge2") for name in ("itself", "copy"))
    assert copied == [pytest.approx(row, rel=1e-5) for row in expected] and len(expected) == 2


def test_validation_keeps_no_memory_of_recordings(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = []
    monkeypatch.setattr(graphs, "recorder_for", lambda *_: lambda *given: recorded.append(given) or repeat(*given))
    monkeypatch.setattr(cache, "has_fixed_shapes", lambda device: True)
    train("run", *BEAMS)
    assert recorded and not any(graphs._kept.values())


@pytest.mark.gpu
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_validation_with_beams_records_its_steps(train: Train, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under autocast they could not be recorded."""
    made, record = [], graphs.cuda_recorder
    monkeypatch.setattr(graphs, "cuda_recorder", lambda *given: made.append(given) or record(*given))
    output = train("run", "--gpus", 1, "--bf16", "--amp_level", level, *BEAMS)
    assert made and len(rows(output, "val_rouge2")) == 2


@pytest.mark.parametrize("beams", [0, 2])
def test_validation_scores_the_same_where_memory_is_scarce(
    train: Train, beams: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, double: None
) -> None:
    options = ("--max_steps", 2, "--val_check_interval", 4, "--eval_batch_size", 5, "--eval_beams", beams)
    enough = rows(train("enough", *options), "val_loss")
    assert "out of memory" not in caplog.text
    name = "decode" if beams else "forward"
    original = getattr(BartForConditionalGeneration, name)
    sizes = []

    def scarce(self: BartForConditionalGeneration, *given: Any, **named: Any) -> Any:
        ids = given[0] if given else named["input_ids"]
        if not self.training:
            sizes.append(len(ids))
            if len(ids) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(self, *given, **named)

    monkeypatch.setattr(BartForConditionalGeneration, name, scarce)
    assert rows(train("scarce", *options), "val_loss") == [pytest.approx(row, abs=ALIKE) for row in enough]
    assert len(enough) == 2
    assert sizes.count(5) == 1  # the second validation begins with what worked
    assert caplog.text.count("out of memory with 5 examples at once; going on with 2: lower --eval_batch_size") == 1


def test_half_precision_sums_losses_in_full(train: Train, tmp_path: Path) -> None:
    """bf16 sums of 8 bits would be off by percents; the logged mean must be that of the batches' own losses."""
    output = train("run", "--bf16", "--amp_level", "O2", "--max_steps", 1, "--eval_batch_size", 1)
    summary = json.loads((output / "train_summary.json").read_text())
    model = BartForConditionalGeneration.from_pretrained(output / "last.ckpt").to(torch.bfloat16)
    model.compute_with(CpuBackend())  # as the recipe does
    tokenizer = BartTokenizer.from_pretrained(output / "last.ckpt")
    data = TokenPairs.from_texts(*read_pairs(tmp_path / "data", "val"), (tokenizer, tokenizer), 40, 40)
    with torch.no_grad():
        batches = [collate_pairs([data[number]], tokenizer.pad_token_id) for number in range(len(data))]
        losses = [smoothed_loss(teacher_forced(model, batch).logits, batch["labels"]).double() for batch in batches]
    assert summary["val_loss"] == pytest.approx(float(sum(losses)) / data.lengths[:, 1].sum(), rel=1e-6)


def test_frozen_parts_do_not_move(train: Train) -> None:
    start = train("start", "--max_steps", 1) / "export"
    for option in ("--freeze_embeds", "--freeze_encoder"):
        output = train(option, "--model_name_or_path", start, "--max_steps", 3, "--learning_rate", 1e-2, option)
        moved = BartForConditionalGeneration.from_pretrained(output / "last.ckpt").state_dict()
        for name, tensor in BartForConditionalGeneration.from_pretrained(start).state_dict().items():
            is_table = "embed_tokens" in name or "shared" in name or "lm_head" in name
            in_encoder = name.startswith("model.encoder") and not is_table
            frozen = is_table or "embed_positions" in name if option == "--freeze_embeds" else in_encoder
            assert name == "final_logits_bias" or torch.equal(moved[name], tensor) == frozen, name
