"""Extractive question answering: the answer is a part of the context, which is read in overlapping windows (SQuAD)."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bart.configuration.configuration import ModelConfig
from bart.errors import InputError
from bart.modeling.heads import BartForQuestionAnswering
from bart.modeling.pretrained import PretrainedModel
from bart.tokenization.tokenizer import PretrainedTokenizer
from bert.modeling.modeling_bert import BertForQuestionAnswering
from utils.app.cli import all_settings
from utils.data.batches import Inputs
from utils.data.columns import Record
from utils.data.squad import COLUMNS, Question, question_of, read_questions
from utils.data.tokenized import encode_cut, warn_of, warn_of_cut, warn_of_unknown
from utils.metrics.classification import surest_errors
from utils.metrics.squad import best, exact_match, f1
from utils.models.loading import LoadedModel
from utils.tasks.head import Example, HeadExamples, HeadTask
from utils.tasks.options import OPTIONS, QUESTION_LENGTH
from utils.tasks.task import Prediction, Scores

NEGATIVE, QUERY = "version_2_with_negative", "max_query_length"  # options
NO_ANSWER = 0  # the token, `<s>` or `[CLS]`, that stands for it
SHORTEST_CONTEXT = 8  # tokens of a context that a window must have room for


@dataclass
class Window(Example):
    """`<s> question </s></s> part of the context </s>`, or `[CLS] question [SEP] part of the context [SEP]`.

    Its labels are the answer's first and last token, NO_ANSWER twice where it is not in the window.
    """

    # (C, 2): the characters of the context (begin, end) that each of its tokens stands for.
    places: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int32))


@dataclass
class Windows(Example):
    """A question with all its windows, whose ids are put together in `ids`."""

    windows: Sequence[Window] = ()
    question: Question | None = None


class QuestionAnswering(HeadTask):
    """Questions to the parts of their contexts that answer them."""

    Options, TrainingOptions, EvalOptions = OPTIONS["question_answering"]
    pipeline, target, endpoint = "question-answering", "window", "/answer"
    fields: ClassVar = dict.fromkeys(COLUMNS, str)
    model_classes = (BartForQuestionAnswering, BertForQuestionAnswering)
    kept = ("max_source_length", NEGATIVE, QUERY)
    metrics: ClassVar[Mapping[str, str]] = {"f1": "max", "exact_match": "max"}

    # ---- Model

    def as_trained(self, config: ModelConfig) -> QuestionAnswering:
        return super().as_trained(config).fitted(config)

    def fitted(self, config: ModelConfig) -> QuestionAnswering:
        windows, length = self.options.windows, self.options.max_source_length or config.max_position_embeddings
        question = self.trained.get(QUERY) or QUESTION_LENGTH
        question = question if length > question + SHORTEST_CONTEXT + 2 else length // 2
        chosen = {NEGATIVE: self.trained.get(NEGATIVE, False), QUERY: question}
        missing = {name: value for name, value in chosen.items() if getattr(windows, name) is None}
        return self.with_parts(options=replace(self.options, windows=replace(windows, **missing)))

    def room_and_stride(self, loaded: LoadedModel) -> tuple[int, int]:
        """Tokens of a context beside the longest question in a window, and those of the window before among them."""
        options = self.options.windows
        room = self.read_length(loaded) - options.max_query_length - 2 - loaded.tokenizer.separators
        return room, min(128, max(0, room) // 2) if options.doc_stride is None else options.doc_stride

    # ---- Data

    def read(self, split: str, for_scoring: bool = False) -> list[Question]:
        place, skip = self.place, self.options.skip_bad_answers
        return read_questions(place.data_dir, *place.chosen(split), self.is_labelled, skip)

    def columns_in(self, columns: Collection[str]) -> Sequence[str]:
        return COLUMNS

    def given(self, records: Sequence[Record], columns: Sequence[str]) -> list[Question]:
        for name, values in records:
            if missing := [column for column in COLUMNS if column not in values]:
                raise InputError(f"{name}: no {' and no '.join(missing)}; allowed: fields {' and '.join(COLUMNS)}")
        return [question_of(*record) for record in records]

    def encode(
        self, raw: Sequence[Question], split: str, loaded: LoadedModel, for_scoring: bool = False
    ) -> HeadExamples:
        """Questions with their windows; to train on, windows alone."""
        options, tokenizer = self.options.windows, loaded.tokenizer
        length, (room, stride) = self.read_length(loaded), self.room_and_stride(loaded)
        if stride >= room or room < SHORTEST_CONTEXT:
            raise InputError(
                f"--max_source_length is {length}; beside a question of --max_query_length {options.max_query_length} "
                f"it has room for {room} tokens; allowed: at least {SHORTEST_CONTEXT}, and above --doc_stride {stride}"
            )
        contexts = list(dict.fromkeys(question.context for question in raw))
        read = tokenizer(contexts, add_special_tokens=False, return_offsets_mapping=True)
        encoded = dict(zip(contexts, zip(read["input_ids"], read["offset_mapping"], strict=True), strict=True))
        most = options.max_query_length + 2
        question_ids, is_cut = encode_cut(tokenizer, [question.question.strip() for question in raw], most)
        questions = f"questions{self.of_split(split)}"
        warn_of_cut(int(is_cut.sum()), len(raw), questions, options.max_query_length, "--max_query_length")
        warn_of_unknown(tokenizer, read["input_ids"], contexts, f"contexts{self.of_split(split)}")
        if not options.version_2_with_negative:
            without = sum(question.answers == () for question in raw)
            warn_of(without, len(raw), f"{questions} have no answer, and get one without --version_2_with_negative")
        several, end = [], [tokenizer.eos_token_id]
        for question, begins in zip(raw, question_ids, strict=True):
            begins = [*begins, *end * (tokenizer.separators - 1)]
            second, windows, (context, places) = len(begins), [], encoded[question.context]
            read_at_once = length - second - 1
            for begin in range(0, max(1, len(context) - stride), read_at_once - stride):
                part = slice(begin, begin + read_at_once)
                spans = np.asarray(places[part], np.int32).reshape(-1, 2)
                ids = np.asarray([*begins, *context[part], *end], np.int32)
                labels = None if question.answers is None else self._answer_in(question, spans, second)
                windows.append(Window(ids, labels, second, places=spans))
            several.append(windows)
        if split == "train" and not for_scoring:
            return HeadExamples([window for windows in several for window in windows])
        examples = []
        for windows, question, was_cut in zip(several, raw, is_cut.tolist(), strict=True):
            ids = np.concatenate([window.ids for window in windows])
            examples.append(Windows(ids, [window.labels for window in windows], None, was_cut, windows, question))
        return HeadExamples(examples)

    def _answer_in(self, question: Question, spans: np.ndarray, first: int) -> tuple[int, int]:
        """The first and the last token of a window that the first right answer covers."""
        if question.answers and len(spans):
            answer = question.answers[0]
            begin = question.starts[0] + len(answer) - len(answer.lstrip())  # no token stands for the spaces around it
            end = question.starts[0] + len(answer.rstrip())
            touched = np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > begin))
            if len(touched) and spans[0, 0] <= begin and spans[-1, 1] >= end:
                return first + int(touched[0]), first + int(touched[-1])
        return NO_ANSWER, NO_ANSWER

    def collate(self, examples: Sequence[Window | Windows], tokenizer: PretrainedTokenizer) -> Inputs:
        if isinstance(examples[0], Windows):
            return {"questions": list(examples)}
        inputs = self.inputs_of(examples, tokenizer)
        if examples[0].labels is not None:
            start, end = zip(*(example.labels for example in examples), strict=True)
            inputs |= {"start_positions": torch.tensor(start), "end_positions": torch.tensor(end)}
        return inputs

    # ---- Training and validation

    def count(self, model: PretrainedModel, batch: Inputs) -> Tensor:
        starts = batch["start_positions"]
        return starts.new_full((), len(starts))  # made on the device: copying the number there would wait

    def loss(self, model: PretrainedModel, batch: Inputs) -> Tensor:
        return _losses(model, self.output_of(model, batch), batch).sum()

    def validate(self, loaded: LoadedModel, batch: Inputs) -> Tensor:
        """Sums (5,): loss, windows, questions, F1 and exact matches."""
        predictions = self.predict_batch(loaded, batch)
        each = _scores_of_each([example.question for example in batch["questions"]], predictions)
        counts = torch.tensor([len(predictions), *(values.sum() for values in each.values())])
        return self.sums_of(predictions, counts, loaded)

    def metrics_of(self, sums: Sequence[float], loaded: LoadedModel) -> dict[str, float]:
        loss, windows, questions, of_f1, of_exact = sums
        return {"loss": loss / windows, "f1": of_f1 / questions, "exact_match": of_exact / questions}

    # ---- Prediction

    def predict_batch(self, loaded: LoadedModel, batch: Inputs) -> list[Prediction]:
        model = loaded.model
        windows = [window for example in batch["questions"] for window in example.windows]
        of_windows: list[tuple[np.ndarray, np.ndarray, float]] = []  # logits and loss of each
        size = max(1, len(batch["questions"]))
        for begin in range(0, len(windows), size):
            part = windows[begin : begin + size]
            inputs = {name: tensor.to(model.device) for name, tensor in self.collate(part, loaded.tokenizer).items()}
            output = self.output_of(model, inputs)
            losses = [0.0] * len(part)
            if part[0].labels is not None:
                losses = _losses(model, output, inputs).tolist()
            logits = (side.float().cpu().numpy() for side in (output.start_logits, output.end_logits))
            of_windows += zip(*logits, losses, strict=True)
        predictions, results = [], iter(of_windows)
        for example in batch["questions"]:
            outputs = [next(results) for _ in example.windows]
            values = self._answer(example, [(start, end) for start, end, _ in outputs])
            targets = 0 if example.windows[0].labels is None else len(outputs)
            predictions.append(Prediction(values, sum(loss for _, _, loss in outputs), targets))
        return predictions

    def _answer(self, example: Windows, logits: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
        """The answer to a question, the `n_best`, and `null_odds`, no answer's score minus the best span's."""
        options = self.options.windows
        spans: dict[tuple[int, int], float] = {}
        null = math.inf
        for window, (starts, ends) in zip(example.windows, logits, strict=True):
            null = min(null, float(starts[NO_ANSWER] + ends[NO_ANSWER]))
            of_context = slice(window.second, window.second + len(window.places))
            scores = np.add.outer(starts[of_context], ends[of_context])
            # An answer ends where it begins or behind, at most max_answer_length tokens in all.
            allowed = np.triu(np.tri(*scores.shape, options.max_answer_length - 1, dtype=bool))
            scores = np.where(allowed, scores, -np.inf).ravel()
            count = min(options.n_best_size, int(allowed.sum()))
            for place in np.argpartition(-scores, count - 1)[:count] if count else ():
                first, last = divmod(int(place), len(window.places))
                span = int(window.places[first, 0]), int(window.places[last, 1])
                if example.question.context[slice(*span)].strip():  # a token may be but a space
                    spans[span] = max(float(scores[place]), spans.get(span, -math.inf))
        ranked = sorted(spans.items(), key=lambda item: (-item[1], item[0]))[: options.n_best_size]
        named = [(example.question.context[begin:end], (begin, end), score) for (begin, end), score in ranked]
        odds = null - (named[0][2] if named else float(np.finfo(np.float32).min))  # JSON has no infinity
        if options.version_2_with_negative or not named:
            named = sorted([*named, ("", None, null)], key=lambda item: -item[2])
        shares = np.exp(np.array([score for *_, score in named]) - max(score for *_, score in named))
        shares /= shares.sum()
        n_best = [
            {"text": text, "span": span, "score": score, "probability": float(share)}
            for (text, span, score), share in zip(named, shares, strict=True)
        ]
        answer = next((answer for answer in n_best if answer["span"] is not None), n_best[0])
        if options.version_2_with_negative and odds > options.null_score_diff_threshold:
            answer = next(answer for answer in n_best if answer["span"] is None)
        return {"id": example.question.id, **answer, "n_best": n_best, "null_odds": odds}

    def score(self, raw: Sequence[Question], predictions: Sequence[Prediction], loaded: LoadedModel) -> Scores:
        each = _scores_of_each(raw, predictions)
        scores = {name: float(values.mean()) for name, values in each.items()}
        has_answer = np.array([bool(question.answers) for question in raw])
        if not has_answer.all():
            for kind, chosen in (("HasAns", has_answer), ("NoAns", ~has_answer)):
                if chosen.any():
                    scores |= {f"{kind}_{name}": float(values[chosen].mean()) for name, values in each.items()}
        given = [" | ".join(dict.fromkeys(question.answers)) for question in raw]
        wrong = (
            (number, question.question, right, prediction.values["text"], 100 * prediction.values["probability"])
            for number, (question, right, prediction) in enumerate(zip(raw, given, predictions, strict=True))
            if not each["exact_match"][number]
        )
        scores["errors"], surest = surest_errors(wrong, len(raw))
        return scores, {**each, "confident_error": surest}

    def row(
        self, raw: Sequence[Question], examples: HeadExamples, number: int, prediction: Prediction
    ) -> dict[str, Any]:
        question = raw[number]
        row = {"index": number, "id": question.id, "source": question.context, "question": question.question}
        if question.answers is not None:
            row["reference"] = " | ".join(dict.fromkeys(question.answers))
        row["prediction"] = prediction.values["text"]
        row |= {name: prediction.values[name] for name in ("span", "score", "probability")}
        return {**row, **examples.counts(number)}

    def files(self, raw: Sequence[Question], predictions: Sequence[Prediction], split: str) -> dict[str, str]:
        """The files that SQuAD's official script reads."""
        values = [prediction.values for prediction in predictions]
        files = {
            f"{split}_predictions.json": {answer["id"]: answer["text"] for answer in values},
            f"{split}_nbest_predictions.json": {answer["id"]: answer["n_best"] for answer in values},
            f"{split}_null_odds.json": {answer["id"]: answer["null_odds"] for answer in values},
        }
        return {name: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for name, content in files.items()}

    def cells(self, row: Mapping[str, Any], prediction: Prediction) -> dict[str, Any]:
        return {"prediction": row["prediction"], "score": row["probability"], "span": row["span"]}

    def settings(self, loaded: LoadedModel) -> dict[str, Any]:
        windows = {**all_settings(self.options.windows), "doc_stride": self.room_and_stride(loaded)[1]}
        return {**super().settings(loaded), "windows": windows}


def _scores_of_each(questions: Sequence[Question], predictions: Sequence[Prediction]) -> dict[str, np.ndarray]:
    """F1 and exact match of each answer."""
    pairs = [(each.values["text"], question.answers) for each, question in zip(predictions, questions, strict=True)]
    measures = {"f1": f1, "exact_match": exact_match}
    return {name: np.array([best(measure, *pair) for pair in pairs]) for name, measure in measures.items()}


def _losses(model: PretrainedModel, output: Any, batch: Inputs) -> Tensor:
    """The loss (B,) of each window in fp32, which does not depend on how far it is padded."""

    def loss(logits: Tensor, positions: Tensor) -> Tensor:
        if "attention_mask" in batch:  # logits of rows are that low already
            logits = logits.masked_fill(batch["attention_mask"] == 0, -torch.inf)
        return model.loss(logits.float(), positions, reduction="none") / 2

    return loss(output.start_logits, batch["start_positions"]) + loss(output.end_logits, batch["end_positions"])
