"""Tasks that turn a text into another with the whole network: summarization, translation and their like."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bart.errors import InputError
from bart.modeling.modeling_bart import (
    IGNORE_INDEX,
    BartForConditionalGeneration,
    Seq2SeqOutput,
    shift_tokens_right,
    training_operations,
)
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.app.cli import option
from utils.app.progress import Clock
from utils.corpora.prepare import prepared
from utils.data.batches import Batch, Inputs, pad
from utils.data.options import DataOptions
from utils.data.pairs import StreamedPairs, TokenPairs, collate_pairs
from utils.data.parallel_text import Pairs
from utils.data.places import check_fields, is_streamed
from utils.data.tables import Table, open_split, read_sources, read_split
from utils.data.token_cache import PairFiles, TextFile, check_pairs
from utils.models import loading, model_to_train
from utils.models.generation_options import GenerationOptions, check_generation, with_lengths
from utils.models.loading import check_lengths
from utils.models.model_to_train import ModelOptions
from utils.tasks.task import Prediction, Scores, Task, text_of
from utils.text.sentences import without_repeats

logger = logging.getLogger(__name__)
# Articles whose loss is computed at once while others are decoded; bounds the memory of the logits.
LOSSES_AT_ONCE = 8


@dataclass(frozen=True)
class _FieldOptions:
    """Which columns a table's examples are made of."""

    source_field: str | None = option(
        None,
        section="texts",
        help="column of the sources where data_dir is no directory; by default as published sets do it",
    )
    target_field: str | None = option(None, help="column of the targets where data_dir is no directory")


@dataclass(frozen=True)
class TextToTextOptions(_FieldOptions, ModelOptions):
    """The options of finetune.py."""

    label_smoothing: float = option(
        0.0, section="regularisation", least=0, most=1, help="probability spread over the vocabulary"
    )
    max_source_length: int | None = option(
        None, section="texts", least=3, help="tokens a source is cut to; by default 1024 at most"
    )
    max_target_length: int | None = option(None, least=3, help="tokens of a training target; by default 142 at most")
    val_max_target_length: int | None = option(None, least=3, help="of a validation target; by default as in training")
    test_max_target_length: int | None = option(None, least=3, help="of a test target, for its loss; the same default")
    eval_beams: int | None = option(
        None,
        least=0,
        help="beams in validation and test; by default the config's num_beams; 0 scores validation by the "
        "teacher-forced arg-max, without search, and leaves the test split at the config's num_beams",
    )
    eval_max_gen_length: int | None = option(
        None,
        least=2,
        help="tokens to generate at most; by default the config's max_length or --max_target_length",
    )

    # run_eval.py has options of these names
    prefix, references, drop_repeated_sentences = "", True, False

    @property
    def generation(self) -> dict[str, Any]:
        """The options of generate that the command line gave."""
        given = {"num_beams": self.eval_beams or None, "max_length": self.eval_max_gen_length}
        return with_lengths({name: value for name, value in given.items() if value is not None})

    def fitted(self, positions: int) -> TextToTextOptions:
        """These options with the lengths that are not given, for a model of so many positions."""
        target = self.max_target_length or min(142, positions)  # as in the published recipe for CNN-DM
        lengths = {"max_source_length": min(1024, positions), "max_target_length": target}
        lengths |= {"val_max_target_length": target, "test_max_target_length": target}
        return dataclasses.replace(self, **{name: getattr(self, name) or most for name, most in lengths.items()})

    def target_length(self, split: str) -> int | None:
        """Tokens that a split's targets are cut to."""
        lengths = {"train": self.max_target_length, "val": self.val_max_target_length}
        return lengths.get(split, self.test_max_target_length)


@dataclass(frozen=True)
class TextToTextEvalOptions(_FieldOptions, GenerationOptions):
    """The options of run_eval.py."""

    only_predict: ClassVar[dict[str, Any]] = {"references": False}

    references: bool = option(
        True,
        help="score predictions by their references; --no_references only predicts, for which {split}.source, a file "
        "of one source a line, or a table without targets will do",
    )
    prefix: str = option("", help="put before each source text, as some models want it")
    max_source_length: int | None = option(
        None, least=3, help="tokens a source is cut to; by default the model's positions"
    )
    max_target_length: int | None = option(
        None, least=3, help="tokens a target is cut to for its loss; by default the model's positions"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target_field is not None and not self.references:
            raise InputError(f"--target_field is {self.target_field}, and --no_references reads no targets")

    def target_length(self, split: str) -> int | None:
        """Tokens that a split's targets are cut to; None for the model's positions."""
        return self.max_target_length


class TextToText(Task[TextToTextOptions | TextToTextEvalOptions]):
    """Turns a source text into a target text.

    A subclass names its `figures` and gives `scores_of_each`, or overrides `score` where a figure is not a mean over
    examples.
    """

    Options = TextToTextOptions
    EvalOptions = TextToTextEvalOptions
    streams = True
    prediction_name = "summary"
    model_class = BartForConditionalGeneration
    tokenizer: BartTokenizer
    source_tokenizer: BartTokenizer  # the same one, unless the model reads sources in a vocabulary of their own
    positions: int  # of the model

    def __init__(self, options: TextToTextOptions | TextToTextEvalOptions, data: DataOptions) -> None:
        super().__init__(options, data)
        check_fields(data.data_dir, source_field=options.source_field, target_field=options.target_field)
        if isinstance(options, ModelOptions):
            config = options.config()
            self.options = options = options.fitted(config.max_position_embeddings)
            names = ("max_source", "max_target", "val_max_target", "test_max_target", "eval_max_gen")
            check_lengths(config, **{f"{n}_length": getattr(options, f"{n}_length") for n in names})

    def validation_name(self, figure: str) -> str:
        return super().validation_name(figure) + "_forced" * (self.options.eval_beams == 0 and figure != "loss")

    def scores_of_each(self, predictions: Sequence[str], references: Sequence[str]) -> Mapping[str, Sequence[float]]:
        """The `figures` of each example."""
        return {}

    # ---- Data

    def read(self, split: str, for_scoring: bool = False) -> PairFiles | Pairs | Table:
        data, fields = self.data, (self.options.source_field, self.options.target_field)
        if not self.options.references:
            return read_sources(data.data_dir, split, data.limit(split), fields[0]), None
        data_dir = prepared(data.data_dir, fields, data.cache_dir)
        if not for_scoring and split == "train" and is_streamed(data_dir):
            return open_split(data_dir, split, fields)
        if for_scoring or is_streamed(data_dir):
            return read_split(data_dir, split, data.limit(split), fields)
        return check_pairs(data_dir, split, data.limit(split), data.cache_dir)

    def given(self, inputs: Sequence[Any]) -> Pairs:
        return [text_of(one, number, "text") for number, one in enumerate(inputs)], None

    def encode(self, raw: PairFiles | Pairs | Table, split: str) -> TokenPairs | StreamedPairs:
        lengths = (
            self.options.max_source_length or self.positions,
            self.options.target_length(split) or self.positions,
        )
        if isinstance(raw, Table):
            return StreamedPairs(raw, self.tokenizers, *lengths)
        source, target = raw
        if isinstance(source, TextFile):
            sides = zip(raw, self.tokenizers, lengths, strict=True)
            tokens = (file.tokenized(tokenizer, longest) for file, tokenizer, longest in sides)
            identity = {"source": source.identity, "target": target.identity}
            return TokenPairs(*tokens, target.read() if split == "val" else None, identity)
        sources = [self.options.prefix + text for text in source]
        return TokenPairs.from_texts(sources, target, self.tokenizers, *lengths)

    def collate(self, examples: Sequence[Any]) -> Inputs:
        return collate_pairs(examples, self.tokenizer.pad_token_id)

    # ---- Model

    def initial_model(self) -> BartForConditionalGeneration:
        return self._to_train(*model_to_train.initial_model(self.options))

    def resumed_model(self, checkpoint: Path) -> BartForConditionalGeneration:
        return self._to_train(*model_to_train.resumed_model(self.options, checkpoint))

    def trained_model(
        self, path: str | os.PathLike[str], config_path: str | None = None, tokenizer: str | None = None
    ) -> BartForConditionalGeneration:
        model = self._with(*loading.load_for_evaluation(path, config_path, tokenizer))
        options, test_length = self.options, self.options.target_length("test")
        check_lengths(
            model.config,
            max_source_length=options.max_source_length,
            max_target_length=test_length,
            eval_max_gen_length=options.eval_max_gen_length,
        )
        check_generation(model.generation_config, options.generation, model.config.vocab_size, self.positions)
        chosen = model.generation_config.merged(**options.generation).choices()
        logger.info("decoding: %s", ", ".join(f"{name} {value}" for name, value in chosen.items()) or "greedy")
        return model

    def _to_train(self, model: BartForConditionalGeneration, tokenizer: BartTokenizer) -> BartForConditionalGeneration:
        generation = model.generation_config
        if generation.max_length is None and generation.max_new_tokens is None:
            generation.max_length = self.options.max_target_length
        return self._with(model, tokenizer)

    def _with(self, model: BartForConditionalGeneration, tokenizer: BartTokenizer) -> BartForConditionalGeneration:
        self.tokenizer = self.source_tokenizer = tokenizer
        self.positions = model.config.max_position_embeddings
        return model

    @property
    def tokenizers(self) -> tuple[BartTokenizer, BartTokenizer]:
        """Of sources and of targets."""
        return self.source_tokenizer, self.tokenizer

    # ---- Training and validation

    def operations(self, model: BartForConditionalGeneration, batch: Batch) -> float:
        options = self.options
        if options.freeze_encoder or options.lora_rank or model.config.source_encoder_layers:
            return 0.0
        return operations_of(model, batch, options.freeze_embeds)

    def loss(self, model: BartForConditionalGeneration, batch: Inputs) -> Tensor:
        return summed_loss(model, batch, self.options.label_smoothing).loss

    def validate(self, model: BartForConditionalGeneration, batch: Inputs) -> Tensor:
        """Sums (F + 3,): loss, targets, examples, and the figures of each example."""
        labels = batch["labels"]
        output = teacher_forced(model, batch)
        loss = smoothed_loss(output.logits, labels, self.options.label_smoothing)
        sums = [loss.double(), self.count(batch).double(), loss.new_tensor(len(labels), dtype=torch.float64)]
        if self.figures:
            if self.options.eval_beams == 0:
                # Teacher forcing: at every position the likeliest token after the reference's own prefix.
                ids = output.logits.argmax(-1).where(labels != IGNORE_INDEX, self.tokenizer.pad_token_id)
            else:
                ids = model.generate(
                    batch["input_ids"],
                    batch["attention_mask"],
                    encoder_outputs=output.encoder_last_hidden_state,
                    **self.options.generation,
                )
            texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
            scores = self.scores_of_each(texts, batch["references"])
            sums += [sums[0].new_tensor(float(np.sum(scores[name]))) for name in self.figures]
        return torch.stack(sums)

    def figures_of(self, sums: Sequence[float]) -> dict[str, float]:
        loss, targets, examples, *figures = sums
        means = {name: value / examples for name, value in zip(self.figures, figures, strict=True)}
        return {"loss": loss / targets, **means}

    # ---- Prediction

    def predict(
        self,
        model: BartForConditionalGeneration,
        examples: TokenPairs,
        numbers: Sequence[int],
        batch_size: int,
        clock: Clock,
    ) -> Iterator[tuple[int, Prediction]]:
        losses: dict[int, tuple[float, int]] = {}

        def note_losses(places: Sequence[int], states: Tensor, mask: Tensor) -> None:
            with clock.part("paused"):
                for start in range(0, len(places), LOSSES_AT_ONCE):
                    part = slice(start, start + LOSSES_AT_ONCE)
                    labels = pad([examples.targets[numbers[place]] for place in places[part]], IGNORE_INDEX)
                    labels = labels.to(model.device)
                    batch = {"labels": labels, "attention_mask": mask[part], "encoder_outputs": states[part]}
                    each = smoothed_loss(teacher_forced(model, batch).logits, labels, reduction="none")
                    sums = each.view(labels.shape).double().sum(dim=1).tolist()
                    counts = (labels != IGNORE_INDEX).sum(dim=1).tolist()
                    for place, loss, count in zip(places[part], sums, counts, strict=True):
                        losses[place] = loss, count

        sources = [examples.sources[number].tolist() for number in numbers]
        encoded = None if examples.targets is None else note_losses
        for article in model.generate_many(sources, batch_size, encoded=encoded, **self.options.generation):
            clock.seconds["encode"] += article.encoding_seconds
            with clock.part("detokenise"):
                texts = self.tokenizer.batch_decode(list(article.sequences), skip_special_tokens=True)
            texts = [" ".join(text.split("\n")).strip() for text in texts]
            values = {"texts": list(map(without_repeats, texts)) if self.options.drop_repeated_sentences else texts}
            tokens = int((article.sequences[0, 1:] != self.tokenizer.pad_token_id).sum())
            loss = losses.pop(article.index, (0.0, 0))
            yield numbers[article.index], Prediction(values, *loss, tokens, article.seconds)

    def score(self, raw: Pairs, predictions: Sequence[Prediction]) -> Scores:
        each = self.scores_of_each([prediction.values["texts"][0] for prediction in predictions], raw[1])
        return {name: float(np.mean(values)) for name, values in each.items()}, each

    def row(self, raw: Pairs, examples: TokenPairs, number: int, prediction: Prediction) -> dict[str, Any]:
        best, *others = prediction.values["texts"]
        row = {"index": number, "source": raw[0][number]}
        if raw[1] is not None:
            row["reference"] = raw[1][number]
        row["summary"] = best
        if others:
            row["alternatives"] = others
        counts = zip(("source_tokens", "reference_tokens"), examples.lengths[number].tolist(), strict=False)
        return {**row, **dict(counts), "summary_tokens": prediction.tokens}

    def settings(self, model: BartForConditionalGeneration) -> dict[str, Any]:
        return {
            "generation": model.generation_config.merged(**self.options.generation).to_dict(),
            "max_source_length": self.options.max_source_length or self.positions,
            "max_target_length": self.options.target_length("test") or self.positions,
            "prefix": self.options.prefix,
            "drop_repeated_sentences": self.options.drop_repeated_sentences,
        }


def teacher_forced(model: BartForConditionalGeneration, batch: Inputs) -> Seq2SeqOutput:
    """Logits for every target token of a batch after the reference's prefix.

    Args:
        batch: what `collate_pairs` makes, or `encoder_outputs` in place of `input_ids`.
    """
    config, labels = model.config, batch["labels"]
    decoder_input_ids = shift_tokens_right(labels, config.pad_token_id, config.decoder_start_token_id)
    states = batch.get("encoder_outputs")
    return model(
        batch.get("input_ids"), batch["attention_mask"], decoder_input_ids=decoder_input_ids, encoder_outputs=states
    )


def summed_loss(model: BartForConditionalGeneration, batch: Inputs, label_smoothing: float = 0.0) -> Seq2SeqOutput:
    """`smoothed_loss` of what `collate_pairs` makes, and the number of targets that are the arg-max."""
    return model(
        batch["input_ids"],
        batch["attention_mask"],
        labels=batch["labels"],
        summed_loss=True,
        label_smoothing=label_smoothing,
    )


def operations_of(model: BartForConditionalGeneration, batch: Batch, freeze_embeds: bool = False) -> float:
    """Operations of a training step on the tokens of a batch, in which padding takes none."""
    source, target = (batch.inputs[name].shape[1] for name in ("input_ids", "labels"))
    return training_operations(model.config, source, target, freeze_embeds) * batch.tokens / (source + target)


def smoothed_loss(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0, reduction: str = "sum") -> Tensor:
    """Label-smoothed cross entropy (Szegedy et al., 2016, section 7) in fp32, summed over the targets.

    Args:
        logits: (B, T, V).
        labels: (B, T), -100 where there is no target.
        reduction: "none" gives (B·T,), 0 where there is no target.
    """
    return F.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten(),
        ignore_index=IGNORE_INDEX,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )
