"""Tagging: a tag for each word of a text, such as the names in it; a word's first token carries its tag."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bart.configuration.configuration import ModelConfig
from bart.errors import InputError
from bart.modeling.heads import STACKS, BartForTokenClassification
from bart.modeling.loss import IGNORE_INDEX
from bart.modeling.pretrained import PretrainedModel
from bart.tokenization.tokenizer import PretrainedTokenizer
from bert.modeling.modeling_bert import BertForTokenClassification
from utils.app.cli import option
from utils.data.batches import Inputs, pad
from utils.data.columns import Record, column_of, read_records
from utils.data.splits import SPLIT_NAMES
from utils.data.tokenized import warn_of_cut
from utils.metrics.tags import entity_counts, scores_of_tags
from utils.models.loading import LoadedModel
from utils.models.options import ModelOptions
from utils.tasks.head import Example, HeadExamples, HeadTask, HeadTrainingOptions, Labels, ReadingOptions, logits_of
from utils.tasks.task import Prediction, Scores, text_of
from utils.text.lines import iter_lines

CONLL = (".conll", ".txt", ".bio")
DOCUMENT = "-DOCSTART-"  # of CoNLL-2003, between documents
WORDS, TAGS = ("words", "tokens"), ("tags", "ner_tags", "labels")
OUTSIDE = "O"


@dataclass(frozen=True)
class TaggingOptions(ReadingOptions):
    """The columns of a table that examples are made of, and the part of a text that is read."""

    words_field: str | None = option(None, section="texts", help=f"column of the words; by default {', '.join(WORDS)}")
    tags_field: str | None = option(None, help=f"column of their tags; by default {', '.join(TAGS)}")


@dataclass(frozen=True)
class TaggingTrainingOptions(HeadTrainingOptions):
    """The options that finetune.py adds."""

    token_states: str | None = option(
        None,
        section="model",
        choices=STACKS,
        help="the stack whose states are classified; by default the decoder",
        in_card=True,
    )


@dataclass
class TaggedExample(Example):
    """A sentence.

    Attributes:
        labels: (S,) of each token, -100 where it does not begin a word.
        firsts: (W,) where words begin; fewer than there are words if the sentence was cut.
    """

    firsts: np.ndarray | None = None


@dataclass(frozen=True)
class Sentence:
    """A sentence as it was read; its tags are None where they are only to be predicted."""

    name: str
    words: list[str]
    tags: list[str] | None


class Tagging(HeadTask):
    """Words to tags. Where tags are B-, I-, E-, S- of something, metrics count whole entities as seqeval does."""

    Options = TaggingOptions
    TrainingOptions = TaggingTrainingOptions
    model_classes = (BartForTokenClassification, BertForTokenClassification)
    metrics: ClassVar[Mapping[str, str]] = {
        "f1": "max",
        "entity_precision": "max",
        "entity_recall": "max",
        "accuracy": "max",
    }

    def config(self, model: ModelOptions) -> ModelConfig:
        config, stack = super().config(model), self.training.token_states
        if stack is not None:
            if len(config.depths) == 1:
                raise InputError(f"--token_states is {stack}; {config.model_types[0]} has one stack alone")
            config.token_states = stack
        return config

    # ---- Data

    def read(self, split: str, for_scoring: bool = False) -> list[Sentence]:
        file, limit = _conll_file(self.place.data_dir, split), self.place.limit(split)
        if file is None:
            return self._read_table(split, limit)
        sentences = list(read_conll(file, self.is_labelled))
        return sentences if limit < 0 else sentences[:limit]

    def learn(self, train: list[Sentence]) -> Labels:
        """Find the tags of the training data.

        Raises:
            InputError: all are the same one.
        """
        tags = {tag for sentence in train for tag in sentence.tags}
        if len(tags) < 2:
            raise InputError(f"{self.place.data_dir}: the training tags are {', '.join(tags)}; allowed: at least two")
        return Labels(sorted(tags, key=lambda tag: (tag != OUTSIDE, tag)))

    def _read_table(self, split: str, limit: int) -> list[Sentence]:
        options, where = self.options, self.place.data_dir
        words_column = partial(column_of, "words_field", options.words_field, WORDS, where=where)
        records = read_records(where, split, words_column, limit)
        columns = list(records[0].values)
        if not self.is_labelled and "text" in columns and not {*WORDS, options.words_field} & {*columns}:
            return self.given([record.values for record in records])
        words_in = words_column(columns)
        if not self.is_labelled:
            return [Sentence(record.name, _strings(record, words_in), None) for record in records]
        tags_in = column_of("tags_field", options.tags_field, TAGS, columns, where)
        sentences = []
        for record in records:
            words, tags = _strings(record, words_in), _strings(record, tags_in)
            if len(words) != len(tags):
                raise InputError(f"{record.name}: {len(words)} words and {len(tags)} tags; they must be equally many")
            sentences.append(Sentence(record.name, words, tags))
        return sentences

    def given(self, inputs: Sequence[Any]) -> list[Sentence]:
        sentences = []
        for number, given in enumerate(inputs):
            if isinstance(given, dict) and "words" in given:
                words = _strings(Record(f"input {number}", given), "words")
            else:
                words = split_words(text_of(given, number, "text"))
            sentences.append(Sentence(f"input {number}", words, None))
        return sentences

    def encode(self, raw: list[Sentence], split: str, loaded: LoadedModel[PretrainedModel]) -> HeadExamples:
        began, tokenizer, length = time.perf_counter(), loaded.tokenizer, self.read_length(loaded)
        # As in running text: a space before every word but the first.
        pieces = {f" {word}": [] for sentence in raw for word in sentence.words[1:]}
        pieces |= {sentence.words[0]: [] for sentence in raw}
        for piece, ids in zip(pieces, tokenizer(list(pieces))["input_ids"], strict=True):
            pieces[piece] = ids[1:-1] or [tokenizer.unk_token_id]  # BERT reads no control characters
        numbers = {label: number for number, label in enumerate(loaded.labels)}
        examples = []
        for sentence in raw:
            ids, firsts = [tokenizer.bos_token_id], []
            for place, word in enumerate(sentence.words):
                of_word = pieces[f" {word}" if place else word]
                if len(ids) + len(of_word) >= length:
                    break
                firsts.append(len(ids))
                ids += of_word
            ids.append(tokenizer.eos_token_id)
            labels = None
            if sentence.tags is not None:
                labels = [IGNORE_INDEX] * len(ids)
                for word, (first, tag) in enumerate(zip(firsts, sentence.tags, strict=False), 1):
                    if tag not in numbers:
                        raise InputError(
                            f"{sentence.name}: the tag of word {word} is {tag!r}, which training has not seen; "
                            f"allowed: {', '.join(loaded.labels)}"
                        )
                    labels[first] = numbers[tag]
            is_cut = len(firsts) < len(sentence.words)
            examples.append(
                TaggedExample(np.asarray(ids, np.int32), labels, None, is_cut, np.asarray(firsts, np.int64))
            )
        cut, sentences = sum(example.is_cut for example in examples), f"sentences{self.of_split(split)}"
        effect = f"and are cut there: the words behind get the tag {OUTSIDE}"
        warn_of_cut(cut, len(raw), sentences, length, "--max_source_length", effect)
        return HeadExamples(examples, time.perf_counter() - began)

    def collate(self, examples: Sequence[TaggedExample], tokenizer: PretrainedTokenizer) -> Inputs:
        inputs = self.inputs_of(examples, tokenizer) | {"firsts": [example.firsts for example in examples]}
        if examples[0].labels is not None:
            inputs["labels"] = pad([np.asarray(example.labels) for example in examples], IGNORE_INDEX)
        return inputs

    # ---- Training and validation

    def loss(self, model: PretrainedModel, batch: Inputs) -> Tensor:
        logits = logits_of(self.output_of(model, batch))
        return _loss(logits, batch["labels"]).sum()

    def validate(self, loaded: LoadedModel[PretrainedModel], batch: Inputs) -> Tensor:
        """Sums (6,): loss, words, words that are right, and entities that are right, predicted, there."""
        logits, labels = logits_of(self.output_of(loaded.model, batch)), batch["labels"]
        chosen = logits.argmax(dim=-1)
        counts = np.zeros(3)
        for *both, firsts in zip(chosen.tolist(), labels.tolist(), batch["firsts"], strict=True):
            counts += entity_counts(*([loaded.labels[row[first]] for first in firsts] for row in both))
        sums = [_loss(logits, labels).sum(), self.count(batch), (chosen == labels).sum()]
        return torch.cat([torch.stack([value.double() for value in sums]), torch.from_numpy(counts).to(logits.device)])

    def metrics_of(self, sums: Sequence[float], loaded: LoadedModel[PretrainedModel]) -> dict[str, float]:
        loss, words, right, *counts = sums
        return {"loss": loss / words, **scores_of_tags(words, right, *counts)}

    # ---- Prediction

    def predict_batch(self, loaded: LoadedModel[PretrainedModel], batch: Inputs) -> list[Prediction]:
        logits = logits_of(self.output_of(loaded.model, batch))
        chosen = logits.argmax(dim=-1).tolist()
        losses, counts = [0.0] * len(chosen), [0] * len(chosen)
        if "labels" in batch:
            losses = _loss(logits, batch["labels"]).sum(dim=1).tolist()
            counts = (batch["labels"] != IGNORE_INDEX).sum(dim=1).tolist()
        return [
            Prediction({"tags": [loaded.labels[row[first]] for first in firsts]}, loss, count)
            for row, firsts, loss, count in zip(chosen, batch["firsts"], losses, counts, strict=True)
        ]

    def tags_of(self, sentence: Sentence, prediction: Prediction) -> list[str]:
        """The predicted tags of all words."""
        tags = prediction.values["tags"]
        return tags + [OUTSIDE] * (len(sentence.words) - len(tags))

    def score(
        self, raw: list[Sentence], predictions: Sequence[Prediction], loaded: LoadedModel[PretrainedModel]
    ) -> Scores:
        counts, words, right = np.zeros(3), 0, 0
        for sentence, prediction in zip(raw, predictions, strict=True):
            tags = self.tags_of(sentence, prediction)
            counts += entity_counts(tags, sentence.tags)
            words += len(tags)
            right += sum(predicted == tag for predicted, tag in zip(tags, sentence.tags, strict=True))
        return scores_of_tags(words, right, *counts.tolist()), {}

    def row(self, raw: list[Sentence], examples: HeadExamples, number: int, prediction: Prediction) -> dict[str, Any]:
        sentence = raw[number]
        row = {"index": number, "source": " ".join(sentence.words)}
        if sentence.tags is not None:
            row["reference"] = " ".join(sentence.tags)
        tags = self.tags_of(sentence, prediction)
        row |= {"prediction": " ".join(tags), "words": sentence.words, "tags": tags}
        return {**row, **examples.counts(number)}


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy (B, S) of logits (B, S, N), 0 where a token has no label."""
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORE_INDEX, reduction="none")


def _conll_file(data_dir: str, split: str) -> Path | None:
    """The CoNLL file of a split in a data directory."""
    folder = Path(data_dir).expanduser()
    names = (f"{name}{suffix}" for name in SPLIT_NAMES.get(split, ()) for suffix in CONLL)
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_conll(path: Path, labelled: bool = True) -> Iterator[Sentence]:
    """Read a CoNLL file: a word a line, first its text and last its tag, and a blank line behind each sentence.

    Raises:
        InputError: a line has no tag, or other columns than the first one.
    """
    words: list[str] = []
    tags: list[str] = []
    width, begin = 0, 1
    for number, line in enumerate(iter_lines(path, blank=True), 1):
        columns = line.split()
        if columns and columns[0] != DOCUMENT:
            width = width or len(columns)
            if len(columns) != width or (labelled and width < 2):
                raise InputError(
                    f"{path}, line {number}: {len(columns)} columns; allowed: {max(width, 2)}, a word first and its "
                    "tag last"
                )
            words.append(columns[0])
            tags.append(columns[-1])
        elif words:
            yield Sentence(f"{path}:{begin}", words, tags if labelled else None)
            words, tags = [], []
        if not words:
            begin = number + 1
    if words:
        yield Sentence(f"{path}:{begin}", words, tags if labelled else None)


def split_words(text: str) -> list[str]:
    """Words of a text, and marks between them, as CoNLL's sets have them."""
    return re.findall(r"\w+|[^\w\s]", text)


def _strings(record: Record, column: str) -> list[str]:
    values = record.values.get(column)
    if not isinstance(values, list) or not values or not all(isinstance(text, str) and text.strip() for text in values):
        raise InputError(f"{record.name}: {column} is {str(values)[:80]}; allowed: a list of texts that are not blank")
    return values
