"""Tasks that turn a text into another with the whole network: summarization, translation and their like."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.files import PathName, read_json
from bart.modeling.modeling_bart import IGNORE_INDEX, BartForConditionalGeneration, LogitsOutput, training_operations
from bart.rows import Rows
from utils.app.distributed import told_by_first
from utils.app.progress import Clock
from utils.corpora.data_directory import COLUMNS, PROVENANCE
from utils.data.batches import Batch, Inputs, TokenPairs, pad, pairs_as_rows
from utils.data.columns import Record, columns_of_pairs
from utils.data.places import check_fields
from utils.data.tables import Pairs, documents_in, read_pairs, read_sources
from utils.data.token_cache import PairFiles, TextFile, check_pairs
from utils.data.tokenized import warn_of_cut
from utils.models import loading
from utils.models.generation_options import check_generation
from utils.models.loading import LoadedBart, LoadedModel, check_lengths
from utils.models.model_to_train import initial_model
from utils.models.options import ModelOptions
from utils.tasks.options import SOURCE_LENGTH, TARGET_LENGTH, TEXT_TO_TEXT
from utils.tasks.task import Prediction, Scores, Task
from utils.text.lines import references_of

logger = logging.getLogger(__name__)
# Articles whose loss is computed at once while others are decoded; bounds the memory of the logits.
LOSSES_AT_ONCE = 8
TARGET_LENGTHS = ("max_target_length", "val_max_target_length", "test_max_target_length")  # options of training


class TextToText(Task[BartForConditionalGeneration]):
    """Turns texts into others; a subclass names its `metrics` and gives `scores_of_each`, or overrides `score`."""

    Options, TrainingOptions, EvalOptions = TEXT_TO_TEXT
    model_classes = (BartForConditionalGeneration,)
    prediction_name = "summary"
    separator = "\n"

    def check_options(self) -> None:
        options, has_references = self.options, self.evaluation.references
        if options.target_field is not None and not has_references:
            raise InputError(f"--target_field is {options.target_field}, and --no_references reads no targets")
        check_fields(self.place.data_dir, source_field=options.source_field, target_field=options.target_field)

    def validation_name(self, metric: str) -> str:
        is_forced = self.training.eval_beams == 0 and metric != "loss"
        return super().validation_name(f"{metric}_forced" if is_forced else metric)

    @property
    def validation(self) -> str:
        is_forced = self.metrics and self.training.eval_beams == 0
        return ", by teacher forcing (--eval_beams 0, the default on a CPU)" if is_forced else ""

    def scores_of_each(self, predictions: Sequence[str], references: Sequence[str]) -> Mapping[str, Sequence[float]]:
        """The `metrics` of each example; `references_of` reads a reference that may be a list."""
        return {}

    def look_at(self, references: Sequence[str]) -> None:
        """Warn where references are not such as the scores count."""

    # ---- Data

    @property
    def text_fields(self) -> tuple[str | None, str | None]:
        """The columns of sources and targets that the options name, or that training read."""
        trained = [*self.columns[:2], None, None]
        return self.options.source_field or trained[0], self.options.target_field or trained[1]

    @property
    def pair_fields(self) -> tuple[str | None, str | None] | None:
        return self.text_fields if self.evaluation.references else None

    def read(self, split: str, for_scoring: bool = False) -> PairFiles | Pairs:
        data_dir, (held_in, choice) = self.place.data_dir, self.place.chosen(split)
        if not self.evaluation.references:
            return read_sources(data_dir, held_in, choice, self.text_fields[0]), None
        if for_scoring:
            return read_pairs(data_dir, held_in, choice)
        of_files = data_dir, held_in, choice, self.place.cache_dir
        return told_by_first(f"checks of {of_files}", lambda: check_pairs(*of_files))

    def learn(self, examples: Mapping[str, PairFiles]) -> tuple[str, ...]:
        """The columns of sources and targets, where `read` had a directory that was made of a table."""
        provenance = Path(self.place.data_dir) / PROVENANCE
        facts = read_json(provenance) if provenance.is_file() else {}
        return tuple(facts[name] for name in COLUMNS if facts.get(name))

    def columns_in(self, columns: Collection[str]) -> Sequence[str]:
        return columns_of_pairs(columns, (self.text_fields[0],), self.place.data_dir)

    def given(self, records: Sequence[Record], columns: Sequence[str]) -> Pairs:
        return documents_in(records, columns), None

    def encode(self, raw: PairFiles | Pairs, split: str, loaded: LoadedBart, for_scoring: bool = False) -> TokenPairs:
        positions, kind = loaded.model.config.max_position_embeddings, "test" if for_scoring else split
        lengths = self.read_length(loaded), self._target_length(kind) or positions
        if loaded.source_tokenizer is None and loaded.model.config.source_encoder_layers:
            raise InputError("the model reads another language than it writes; allowed: --task translation")
        tokenizers = (loaded.source_tokenizer or loaded.tokenizer, loaded.tokenizer)
        source, target = raw
        if isinstance(source, TextFile):
            tokens = map(TextFile.tokenized, raw, tokenizers, lengths)
            identity = {"source": source.identity, "target": target.identity}
            pairs = TokenPairs(*tokens, list(target.texts()) if split == "val" else None, identity)
            lists = target.lists
        else:
            sources = [self.evaluation.prefix + text for text in source]
            pairs = TokenPairs.from_texts(sources, target, tokenizers, *lengths)
            lists = sum(references_of(line) != [line] for line in target or ())
        if lists:
            logger.info(
                "%d of %d targets of the %s split are lists of references: the loss is that of the first of each",
                *(lists, len(pairs), split),
            )
        if pairs.references is not None:
            self.look_at(pairs.references)
        sources, targets = (f"{side}{self.of_split(split)}" for side in ("sources", "targets"))
        warn_of_cut(pairs.sources.cut, len(pairs), sources, lengths[0], "--max_source_length")
        if pairs.targets is not None:
            prefix = "" if kind == "train" or not self.training.max_target_length else f"{kind}_"
            effect = "and are cut there" + ("" if kind == "train" else " for the loss")
            warn_of_cut(pairs.targets.cut, len(pairs), targets, lengths[1], f"--{prefix}max_target_length", effect)
        return pairs

    def read_length(self, loaded: LoadedBart) -> int:
        return self.options.max_source_length or loaded.model.config.max_position_embeddings

    def _target_length(self, kind: str) -> int | None:
        """The tokens that targets of train, val, or test (all scoring) are cut to; None: the model's positions."""
        training = self.training
        lengths = {"train": training.max_target_length, "val": training.val_max_target_length}
        return lengths.get(kind, training.test_max_target_length) or self.evaluation.max_target_length

    def as_rows(self, inputs: Inputs, multiple: int) -> Inputs:
        return pairs_as_rows(inputs, multiple)

    # ---- Model

    def fitted(self, config: BartConfig) -> TextToText:
        """This task, with the lengths that are not given filled in for a model of so many positions."""
        positions, training = config.max_position_embeddings, self.training
        lengths = {name: getattr(training, name) for name in TARGET_LENGTHS}
        longest = {"max_source_length": self.options.max_source_length, **lengths}
        check_lengths(config, **longest, eval_max_gen_length=self.options.decoding.eval_max_gen_length)
        target = training.max_target_length or min(TARGET_LENGTH, positions)
        source = self.options.max_source_length or min(SOURCE_LENGTH, positions)
        return self.with_parts(
            options=replace(self.options, max_source_length=source),
            training=replace(training, **{name: length or target for name, length in lengths.items()}),
        )

    def initial_model(
        self, model: ModelOptions, learned: tuple[str, ...] | None, checkpoint: Path | None = None
    ) -> LoadedBart:
        """The model, with a length of generated texts, if it can generate what it will be asked to."""
        given = {"columns": learned or (), "checkpoint": checkpoint, "source_length": self.options.max_source_length}
        loaded = initial_model(model, self.config(model), self.model_classes, **given)
        config, generation = loaded.model.config, loaded.model.generation_config
        positions = config.max_position_embeddings
        if generation.max_length is None and generation.max_new_tokens is None:
            generation.max_length = self.training.max_target_length or min(TARGET_LENGTH, positions)
        for scores in (False, True):
            check_generation(generation, self._generation(scores), config.vocab_size, positions)
        return loaded

    def trained_model(self, path: PathName, config_path: str | None = None, tokenizer: str | None = None) -> LoadedBart:
        loaded = LoadedModel(*loading.load_for_evaluation(path, config_path, tokenizer))
        config, generation = loaded.model.config, loaded.model.generation_config
        options, given = self.options, self._generation()
        check_lengths(
            config,
            max_source_length=options.max_source_length,
            max_target_length=self._target_length("test"),
            eval_max_gen_length=options.decoding.eval_max_gen_length,
        )
        check_generation(generation, given, config.vocab_size, config.max_position_embeddings)
        chosen = generation.merged(**given).choices()
        logger.info("decoding: %s", ", ".join(f"{name} {value}" for name, value in chosen.items()) or "greedy")
        return loaded

    # ---- Training and validation

    def operations(self, model: BartForConditionalGeneration, batch: Batch) -> float:
        # This runs for every micro-batch. --freeze_encoder and LoRA freeze all layers of a stack alike.
        is_frozen = any(not next(stack.layers.parameters()).requires_grad for stack in model.stacks)
        if is_frozen or model.config.source_encoder_layers:
            return 0.0
        return operations_of(model, batch, not model.get_input_embeddings().weight.requires_grad)

    def loss(self, model: BartForConditionalGeneration, batch: Inputs) -> Tensor:
        return summed_loss(model, batch, self.training.label_smoothing).loss

    @property
    def is_recordable(self) -> bool:
        return type(self).loss is TextToText.loss  # not where a task of one's own has another

    def for_validation(self, loaded: LoadedBart, precision: str) -> LoadedBart:
        # Autocast would cast all weights in every decoding step, and steps under it cannot be recorded.
        decodes = self.metrics and self.training.eval_beams != 0
        is_half = precision in ("fp16", "bf16") and loaded.model.device.type == "cuda"
        if not decodes or not is_half or loaded.lora_scale is not None:
            return loaded
        return replace(loaded, decoder=loading.for_inference(loaded.model, precision))

    def validate(self, loaded: LoadedBart, batch: Inputs) -> Tensor:
        """Sums (F + 3,): loss, targets, examples, and the metrics of each example."""
        model, tokenizer, labels = loaded.model, loaded.tokenizer, batch["labels"]
        output = teacher_forced(model, batch)
        loss = smoothed_loss(output.logits, labels, self.training.label_smoothing)
        sums = [loss.double(), self.count(model, batch).double(), loss.new_tensor(len(labels), dtype=torch.float64)]
        if self.metrics:
            if self.training.eval_beams == 0:
                # Teacher forcing: at every position the likeliest token after the reference's own prefix.
                ids = output.logits.argmax(-1).where(labels != IGNORE_INDEX, tokenizer.pad_token_id)
            else:
                ids = self._decoded(loaded, batch, output.encoder_last_hidden_state)
            scores = self.scores_of_each(tokenizer.batch_decode(ids, skip_special_tokens=True), batch["references"])
            sums += [sums[0].new_tensor(float(np.sum(scores[name]))) for name in self.metrics]
        return torch.stack(sums)

    def _decoded(self, loaded: LoadedBart, batch: Inputs, encoder_states: Tensor) -> Tensor:
        model, context = loaded.model, nullcontext()
        if loaded.decoder is not None:
            model, context = loaded.decoder, torch.autocast(loaded.decoder.device.type, enabled=False)
            encoder_states = encoder_states.to(model.dtype)
        options = {**self._generation(scores=False), "num_return_sequences": 1}
        with context:
            return model.generate(
                batch["input_ids"], attention_mask=batch["attention_mask"], encoder_outputs=encoder_states, **options
            )

    def metrics_of(self, sums: Sequence[float], loaded: LoadedBart) -> dict[str, float]:
        loss, targets, examples, *of_examples = sums
        means = {name: value / examples for name, value in zip(self.metrics, of_examples, strict=True)}
        return {"loss": loss / targets, **means}

    # ---- Prediction

    def _generation(self, scores: bool = True) -> dict[str, Any]:
        """The options of generate that the command line gave for scoring, or for validation."""
        given, beams = self.options.decoding.generation, self.training.eval_beams
        if scores:
            beams = self.evaluation.eval_beams or self.training.pred_beams or beams
        return {**given, "num_beams": beams} if beams else given

    def predict(
        self, loaded: LoadedBart, examples: TokenPairs, numbers: Sequence[int], batch_size: int, clock: Clock
    ) -> Iterator[tuple[int, Prediction]]:
        model, tokenizer = loaded.model, loaded.tokenizer
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
        for article in model.generate_many(sources, batch_size, encoded=encoded, **self._generation()):
            clock.seconds["encode"] += article.encoding_seconds
            with clock.part("detokenise"):
                texts = tokenizer.batch_decode(list(article.sequences), skip_special_tokens=True)
            texts = [" ".join(text.split("\n")).strip() for text in texts]
            tokens = int((article.sequences[0, 1:] != tokenizer.pad_token_id).sum())
            loss = losses.pop(article.index, (0.0, 0))
            yield numbers[article.index], Prediction({"texts": texts}, *loss, tokens, article.seconds)

    def score(self, raw: Pairs, predictions: Sequence[Prediction], loaded: LoadedBart) -> Scores:
        each = self.scores_of_each([prediction.values["texts"][0] for prediction in predictions], raw[1])
        return {name: float(np.mean(values)) for name, values in each.items()}, each

    def row(self, raw: Pairs, examples: TokenPairs, number: int, prediction: Prediction) -> dict[str, Any]:
        best, *alternatives = prediction.values["texts"]
        row = {"index": number, "source": raw[0][number]}
        if raw[1] is not None:
            references = references_of(raw[1][number])
            row["reference"] = references[0]
            if len(references) > 1:
                row["references"] = references
        row["summary"] = best
        if alternatives:
            row["alternatives"] = alternatives
        counts = zip(("source_tokens", "reference_tokens"), examples.lengths[number].tolist(), strict=False)
        return {**row, **dict(counts), "summary_tokens": prediction.tokens}

    def cells(self, row: Mapping[str, Any], prediction: Prediction) -> dict[str, Any]:
        return super().cells(row, prediction) | {name: row[name] for name in ("alternatives",) if name in row}

    def settings(self, loaded: LoadedBart) -> dict[str, Any]:
        positions = loaded.model.config.max_position_embeddings
        return {
            "generation": loaded.model.generation_config.merged(**self._generation()).to_dict(),
            "max_source_length": self.read_length(loaded),
            "max_target_length": self._target_length("test") or positions,
            "prefix": self.evaluation.prefix,
        }


def teacher_forced(model: BartForConditionalGeneration, batch: Inputs) -> LogitsOutput:
    """Logits for every target token of a batch, which may have `encoder_outputs`, after the reference's prefix."""
    return model(
        batch.get("input_ids"),
        batch["attention_mask"],
        decoder_input_ids=model.model.shifted(batch["labels"]),
        encoder_outputs=batch.get("encoder_outputs"),
    )


def summed_loss(model: BartForConditionalGeneration, batch: Inputs, label_smoothing: float = 0.0) -> LogitsOutput:
    """`smoothed_loss` of what `collate_pairs` makes, or of its rows, and the number of targets that are the arg-max."""
    inputs = batch["input_ids"], batch.get("attention_mask")
    return model(*inputs, labels=batch["labels"], summed_loss=True, smoothing=label_smoothing)


def operations_of(model: BartForConditionalGeneration, batch: Batch, freeze_embeds: bool = False) -> float:
    """Operations of a training step on a batch, in which padding takes none."""
    sides = batch.inputs["input_ids"], batch.inputs["labels"]
    source, target = (side.longest if isinstance(side, Rows) else side.shape[1] for side in sides)
    return training_operations(model.config, source, target, freeze_embeds) * batch.tokens / (source + target)


def smoothed_loss(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0, reduction: str = "sum") -> Tensor:
    """Label-smoothed cross entropy (Szegedy et al., 2016, section 7) in fp32 of logits (B, T, V) and labels (B, T)."""
    return F.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten(),
        ignore_index=IGNORE_INDEX,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )
