"""Tagging: a tag for each word of a text, such as the names in it; a word's first token carries its tag."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, ClassVar

import numpy as np
import regex
import torch
import torch.nn.functional as F
from torch import Tensor

from bart.errors import InputError
from bart.modeling.heads import BartForTokenClassification
from bart.modeling.loss import IGNORE_INDEX
from bart.modeling.pretrained import PretrainedModel
from bart.tokenization.tokenizer import PretrainedTokenizer
from bert.modeling.modeling_bert import BertForTokenClassification
from utils.data.batches import Inputs, pad
from utils.data.columns import TAGS, WORDS, Record, column_of, value_in
from utils.data.conll import Sentence, read_conll
from utils.data.options import Place
from utils.data.places import CONLL, TABLES, suffix_of, table_in
from utils.data.splits import WHOLE, Choice, check_split, of_split
from utils.data.tables import read_records
from utils.data.tokenized import warn_of, warn_of_cut, warn_of_unknown
from utils.metrics import entities
from utils.metrics.classification import confusion_of_classes, surest_errors
from utils.metrics.significance import scores_and_intervals
from utils.models.loading import LoadedModel
from utils.tasks.head import Example, HeadExamples, Labels, LabelTask
from utils.tasks.options import OPTIONS
from utils.tasks.task import Prediction, Scores
from utils.text.lines import BlankText, check_no_list
from utils.text.sentences import WORD_CHARACTERS
from utils.text.tags import OUTSIDE, is_outside, scheme_of

logger = logging.getLogger(__name__)
WORD_A_LINE = (*CONLL, ".tsv")  # whose cells hold no lists
# Words of a text in any script, and marks between them, as CoNLL's sets have them.
WORD_OR_MARK = regex.compile(rf"[{WORD_CHARACTERS}_]+|[^{WORD_CHARACTERS}_\s\x1c-\x1f]")
UNREAD = 0  # the place of `<s>` or `[CLS]`


@dataclass
class TaggedExample(Example):
    """A sentence; its labels (S,) are those of its tokens, -100 where these do not begin a word."""

    firsts: np.ndarray | None = None  # where words begin, UNREAD of blank ones; fewer than words if it was cut
    sentence: Sentence | None = None


class Tagging(LabelTask):
    """Words to tags. Where tags are in a scheme such as BIO, metrics count whole entities as seqeval does."""

    Options, TrainingOptions, EvalOptions = OPTIONS["tagging"]
    pipeline, target, endpoint = "token-classification", "word", "/tag"
    fields: ClassVar = {"words": list[str] | None, "text": str | None}
    model_classes = (BartForTokenClassification, BertForTokenClassification)
    suffixes: ClassVar = frozenset(CONLL) - {".txt"}  # which holds lines of text, unless a directory says otherwise
    of_tokens = (*LabelTask.of_tokens, "labels")
    metrics: ClassVar[Mapping[str, str]] = dict.fromkeys((*entities.ENTITY_METRICS, *entities.PLAIN_METRICS), "max")

    def metrics_for(self, learned: Labels) -> Sequence[str]:
        return *(entities.PLAIN_METRICS if scheme_of(learned.names) is None else entities.ENTITY_METRICS), "loss"

    # ---- Data

    def read(self, split: str, for_scoring: bool = False) -> list[Sentence]:
        options, data_dir, (held_in, choice) = self.options, self.place.data_dir, self.place.chosen(split)
        file = _conll_file(data_dir, held_in)
        if file is None:
            sentences = self._read_table(held_in, choice)
        else:
            columns = self.trained.get("columns")
            trained = columns if isinstance(columns, Mapping) else {}
            words_in = options.words_field or trained.get("words_column")
            tags_in = options.tags_field or trained.get("tags_column")
            sentences = read_conll(file, self.is_labelled, words_in, tags_in if self.is_labelled else None)
            if file == Path(data_dir).expanduser():  # one for all splits
                sentences = of_split(split, sentences, _text_of)
            sentences = choice.of(sentences, _text_of)
            sentences = [replace(sentence, tags=self.named(sentence.name, sentence.tags)) for sentence in sentences]
        check_split(sentences, data_dir, split, "sentences")
        return sentences

    def learn(self, examples: Mapping[str, list[Sentence]]) -> Labels:
        train = examples["train"]
        tags = {tag for sentence in train for tag in sentence.tags}
        if len(tags) < 2:
            raise InputError(f"{self.place.data_dir}: the training tags are {', '.join(tags)}; allowed: at least two")
        if (scheme := scheme_of(tags)) is None:
            logger.info("the training tags are plain: accuracy and macro F1 are computed, for %d tags", len(tags))
        else:
            strays = sorted(tag for tag in tags if not scheme.fits(tag))
            rest = f"; outside of all entities: {', '.join(strays)}" if strays else ""
            logger.info("the training tags are in %s: whole entities are counted, as seqeval does%s", scheme.name, rest)
        options, column = self.options, train[0].column
        if column is None:  # of a CoNLL file
            given = {"words_column": options.words_field, "tags_column": options.tags_field}
            columns = {name: value for name, value in given.items() if value is not None}
        else:
            columns = (column, options.tags_field) if options.tags_field is not None else (column,)
        learned = Labels(sorted(tags, key=lambda tag: (not is_outside(tag), tag)), columns=columns)
        self.check_labels(examples, learned.names)
        return learned

    def labels_in(self, raw: list[Sentence]) -> Iterator[tuple[str, str]]:
        for sentence in raw:
            for number, tag in enumerate(sentence.tags or (), 1):
                yield tag, f"{sentence.name}, word {number}"

    def check_labels(self, examples: Mapping[str, Any], known: Sequence[str]) -> None:
        """Compare the kinds of entities: B-ORG of IOB1 is no other label than I-ORG, which training may have alone."""
        scheme, every = scheme_of(known), {tag for raw in examples.values() for tag, _ in self.labels_in(raw)}
        whole = scheme_of({*known, *every})
        if scheme is not None and whole is not None and {scheme.name, whole.name} <= {"BIO", "IOE"}:
            kinds = {*map(scheme.kind, known)} - {None}
            known = [*known, *(tag for tag in every - {*known} if scheme.kind(tag) in kinds)]
        super().check_labels(examples, known)

    def _read_table(self, split: str, choice: Choice) -> list[Sentence]:
        options, where = self.options, self.place.data_dir
        words_column = partial(column_of, "words_field", options.words_field, (*self.columns[:1], *WORDS), where=where)
        records = read_records(where, split, words_column, choice)
        columns = list(records[0].values)
        words_in, tags_in = words_column(columns), None
        if self.is_labelled:
            tags_in = column_of("tags_field", options.tags_field, (*self.columns[1:], *TAGS), columns, where)
        sentences, blank = [], 0
        for record in records:
            words, tags = _strings(record, words_in, value_in(record.values, words_in), may_be_blank=True), None
            kept = [number for number, word in enumerate(words) if word.strip()]
            blank += len(words) - len(kept)
            if tags_in is not None:
                tags = _strings(record, tags_in, self.named(record.name, value_in(record.values, tags_in)))
                if len(words) != len(tags):
                    counts = f"{len(words)} words and {len(tags)} tags"
                    raise InputError(f"{record.name}: {counts}; they must be equally many")
                tags = [tags[number] for number in kept]
            if kept:
                sentences.append(Sentence(record.name, [words[number] for number in kept], tags, words_in))
        if blank:
            empty = len(records) - len(sentences)
            logger.info("%s, %s: %d blank words and %d sentences of no others left out", where, split, blank, empty)
        return sentences

    def records(self, file: Path) -> Iterable[Record]:
        if _conll_file(str(file), WHOLE) is None:
            return super().records(file)
        sentences = self.with_parts(place=Place(str(file))).read(WHOLE)
        return (Record(sentence.name, {"words": sentence.words}) for sentence in sentences)

    def columns_in(self, columns: Collection[str]) -> Sequence[str]:
        known = (*self.columns[:1], *WORDS, "text")
        return (column_of("words_field", self.options.words_field, known, columns, self.place.data_dir),)

    def given(self, records: Sequence[Record], columns: Sequence[str]) -> list[Sentence]:
        sentences = []
        for record in records:
            column = next((each for each in columns if each.partition(".")[0] in record.values), columns[-1])
            value = value_in(record.values, column)
            check_no_list(value, f"{record.name}: ")
            words = WORD_OR_MARK.findall(value) if isinstance(value, str) else value
            if words is None or words == []:
                raise BlankText(f"{record.name}: {column} is {shortened(value)}; allowed: a list of texts, none blank")
            words = _strings(record, column, words, may_be_blank=True)
            sentences.append(Sentence(record.name, words, None))
        return sentences

    def encode(self, raw: list[Sentence], split: str, loaded: LoadedModel, for_scoring: bool = False) -> HeadExamples:
        tokenizer, length = loaded.tokenizer, self.read_length(loaded)
        # As in running text: a space before every word but the first. Blank words are not read.
        filled = [[word for word in sentence.words if word.strip()] for sentence in raw]
        pieces = {"": []} | {f" {word}": [] for words in filled for word in words[1:]}
        pieces |= {word: [] for words in filled for word in words[:1]}
        for piece, ids in zip(pieces, tokenizer(list(pieces))["input_ids"], strict=True):
            pieces[piece] = ids[1:-1] or [tokenizer.unk_token_id]  # BERT reads no control characters
        numbers = {label: number for number, label in enumerate(loaded.labels)}
        examples = []
        for sentence in raw:
            ids, firsts = [tokenizer.bos_token_id], []
            for word in sentence.words:
                if not word.strip():
                    firsts.append(UNREAD)
                    continue
                of_word = pieces[f" {word}" if len(ids) > 1 else word]
                if len(ids) + len(of_word) >= length:
                    break
                firsts.append(len(ids))
                ids += of_word
            ids.append(tokenizer.eos_token_id)
            labels = None
            if sentence.tags is not None:
                labels = [IGNORE_INDEX] * len(ids)
                for first, tag in zip(firsts, sentence.tags, strict=False):
                    labels[first] = numbers.get(tag, IGNORE_INDEX)
            is_cut, places = len(firsts) < len(sentence.words), np.asarray(firsts, np.int64)
            examples.append(TaggedExample(np.asarray(ids, np.int32), labels, None, is_cut, places, sentence))
        cut, sentences = sum(example.is_cut for example in examples), f"sentences{self.of_split(split)}"
        effect = f"and are cut there: words after token {length:,} get the tag {OUTSIDE}"
        warn_of_cut(cut, len(raw), sentences, length, "--max_source_length", effect)
        warn_of_unknown(tokenizer, [example.ids for example in examples], [*map(_text_of, raw)], sentences)
        words, read = (sum(map(len, of_each)) for of_each in ([sentence.words for sentence in raw], filled))
        warn_of(words - read, words, f"words are blank, are not read and get the tag {OUTSIDE}")
        encoded = HeadExamples(examples)
        if split == "train" and not for_scoring:
            self.weigh(encoded, raw, loaded)
        return encoded

    def collate(self, examples: Sequence[TaggedExample], tokenizer: PretrainedTokenizer) -> Inputs:
        inputs = self.inputs_of(examples, tokenizer)
        inputs["firsts"] = [example.firsts for example in examples]
        inputs["sentence"] = [example.sentence for example in examples]
        if examples[0].labels is not None:
            inputs["labels"] = pad([np.asarray(example.labels) for example in examples], IGNORE_INDEX)
        return inputs

    # ---- Training and validation

    def loss(self, model: PretrainedModel, batch: Inputs) -> Tensor:
        logits = self.logits_of(model, batch)
        return _loss(logits, batch["labels"], **self.loss_options(model, logits)).sum()

    def validate(self, loaded: LoadedModel, batch: Inputs) -> Tensor:
        """Sums: loss, which is neither weighted nor smoothed, targets, and the counts of `entities.tag_counts`."""
        predictions, scheme = self.predict_batch(loaded, batch), scheme_of(loaded.labels)
        groups = entities.groups_of(loaded.labels, scheme)
        counts = sum(
            entities.tag_counts(prediction.values["tags"], sentence.tags, groups, scheme)
            for prediction, sentence in zip(predictions, batch["sentence"], strict=True)
        )
        return self.sums_of(predictions, torch.from_numpy(counts), loaded)

    def metrics_of(self, sums: Sequence[float], loaded: LoadedModel) -> dict[str, float]:
        loss, targets, *counts = sums
        return {"loss": loss / max(targets, 1), **entities.tag_scores(counts, scheme_of(loaded.labels))}

    # ---- Prediction

    def predict_batch(self, loaded: LoadedModel, batch: Inputs) -> list[Prediction]:
        logits = self.logits_of(loaded.model, batch)
        shares, chosen = (part.tolist() for part in logits.softmax(dim=-1).max(dim=-1))
        losses, counts = [0.0] * len(chosen), [0] * len(chosen)
        if "labels" in batch:
            losses = _loss(logits, batch["labels"]).sum(dim=1).tolist()
            counts = (batch["labels"] != IGNORE_INDEX).sum(dim=1).tolist()
        outside = next(filter(is_outside, loaded.labels), OUTSIDE)
        predictions = []
        rows = zip(chosen, shares, batch["firsts"], batch["sentence"], losses, counts, strict=True)
        for row, share, firsts, sentence, loss, count in rows:
            firsts = [*firsts, *[UNREAD] * (len(sentence.words) - len(firsts))]
            tags = [outside if first == UNREAD else loaded.labels[row[first]] for first in firsts]
            scores = [None if first == UNREAD else share[first] for first in firsts]
            predictions.append(Prediction({"tags": tags, "scores": scores}, loss, count))
        return predictions

    def score(self, raw: list[Sentence], predictions: Sequence[Prediction], loaded: LoadedModel) -> Scores:
        scheme = scheme_of(loaded.labels)
        given, groups = Counter(tag for tag, _ in self.labels_in(raw)), entities.groups_of(loaded.labels, scheme)
        pairs = [
            (prediction.values["tags"], sentence.tags) for prediction, sentence in zip(predictions, raw, strict=True)
        ]
        [(common, _)] = given.most_common(1)
        always = sum(entities.tag_counts([common] * len(tags), tags, groups, scheme) for _, tags in pairs)
        counts = np.array([entities.tag_counts(*pair, groups, scheme) for pair in pairs], dtype=np.float64)
        predicted, right = (entities.kinds_of(chain.from_iterable(tags), scheme) for tags in zip(*pairs, strict=True))
        wrong = []
        for number, (sentence, prediction) in enumerate(zip(raw, predictions, strict=True)):
            guesses, shares = prediction.values["tags"], prediction.values["scores"]
            for word, tag, guess, share in zip(sentence.words, sentence.tags, guesses, shares, strict=True):
                if tag != guess and share is not None:
                    wrong.append((number, word, tag, guess, 100 * share))
        errors, surest = surest_errors(wrong, len(raw))
        scores = {
            **scores_and_intervals(counts, lambda sums: entities.tag_scores(sums, scheme)),
            "baselines": {f"always {common}": entities.tag_scores(always, scheme)},
            "groups": {
                "tag" if scheme is None else "kind of entity": entities.scores_by_group(counts.sum(axis=0), groups)
            },
            "confusion": confusion_of_classes(groups if scheme is None else [OUTSIDE, *groups], right, predicted),
            "errors": errors,
        }
        return scores, {"confident_error": surest}

    def row(self, raw: list[Sentence], examples: HeadExamples, number: int, prediction: Prediction) -> dict[str, Any]:
        sentence, tags = raw[number], prediction.values["tags"]
        row = {"index": number, "source": " ".join(sentence.words)}
        if sentence.tags is not None:
            row["reference"] = " ".join(sentence.tags)
        # Rounded, since batches of other sizes round otherwise.
        scores = [None if score is None else round(score, 4) for score in prediction.values["scores"]]
        row |= {"prediction": " ".join(tags), "words": sentence.words, "tags": tags, "scores": scores}
        return {**row, **examples.counts(number)}

    def settings(self, loaded: LoadedModel) -> dict[str, Any]:
        field = self.options.words_field
        return super().settings(loaded) | ({} if field is None else {"words_field": field})

    def cells(self, row: Mapping[str, Any], prediction: Prediction) -> dict[str, Any]:
        return {"words": row["words"], "prediction": row["tags"], "score": prediction.values["scores"]}


def _loss(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
    """The cross entropy (B, S) of logits (B, S, N), 0 where a token has no label."""
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORE_INDEX, reduction="none", **options)


def _conll_file(data_dir: str, split: str) -> Path | None:
    """The file of a split, or of all, that has a word a line; None where there is another one or none."""
    place = Path(data_dir).expanduser()
    file = place if place.is_file() else table_in(place, split, (*CONLL, *TABLES))
    return file if file is not None and suffix_of(file) in WORD_A_LINE else None


def _text_of(sentence: Sentence) -> str:
    return " ".join(sentence.words)


def _strings(record: Record, column: str, values: Any, may_be_blank: bool = False) -> list[str]:
    """The values of a column, if they are texts; InputError where they are not."""
    is_list = isinstance(values, list) and all(isinstance(text, str) for text in values)
    if not is_list or not (may_be_blank or all(text.strip() for text in values)):
        hint = "numbers need --label_names, .jsonl and .parquet hold lists, .conll files a word a line"
        raise InputError(
            f"{record.name}: {column} is {shortened(values)}; allowed: a list of texts that are not blank ({hint})"
        )
    return values
