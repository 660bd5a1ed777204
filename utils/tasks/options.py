"""The options of all tasks, in all programs, in training and in scoring; `--help` loads them, so they load no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from bart.configuration.configuration import PROBLEMS
from bart.errors import InputError
from utils.app.cli import card_option, changeable, option, part
from utils.data.columns import LABELS, PAIRS, TAGS, TEXTS, WORDS
from utils.data.options import CorruptionOptions, MaskingOptions
from utils.data.shard_format import DENOISING, MLM, MLM_NSP
from utils.metrics.options import BleuOptions, RougeOptions
from utils.models.generation_options import GENERATE, GenerationOptions
from utils.tasks.glue import GLUE

MOST_READ = 512  # tokens of a text that are read by default, where the model has as many positions
# Tokens that fine-tuning cuts sources and targets to by default, as in the published recipe for CNN-DM.
SOURCE_LENGTH, TARGET_LENGTH = 1024, 142
QUESTION_LENGTH = 64  # tokens
TOKEN = "target token"  # what the loss of tasks is the mean over that generate text
MOST_OF_TEXT = 128  # tokens of an example of text by default


@dataclass(frozen=True)
class NoOptions:
    """A group of options for tasks that have none of their own there."""


smoothing_option = partial(
    card_option,
    0.0,
    section="regularisation",
    least=0,
    most=1,
    help="probability that is spread over the vocabulary, or over the labels of a head",
)


@dataclass(frozen=True)
class TextToTextOptions:
    source_field: str | None = option(
        None, section="texts", help="column of a table's sources; by default a usual name, such as article"
    )
    target_field: str | None = option(None, help="column of a table's targets")
    max_source_length: int | None = card_option(
        None, least=3, help=f"tokens of a source; by default its positions, or as trained; in training {SOURCE_LENGTH}"
    )
    decoding: GenerationOptions = part(GenerationOptions)


@dataclass(frozen=True)
class TextToTextTrainingOptions:
    label_smoothing: float = smoothing_option()
    max_target_length: int | None = card_option(
        None, section="texts", least=3, help=f"tokens of a training target; by default at most {TARGET_LENGTH}"
    )
    val_max_target_length: int | None = option(
        None, least=3, help="tokens of a validation target; by default as in training", on_resume="validation"
    )
    test_max_target_length: int | None = changeable(
        None, least=3, help="most tokens of a target in the loss of scoring; by default as in training"
    )
    eval_beams: int | None = option(
        None,
        section=GENERATE,
        least=0,
        help="beams in validation and, without --pred_beams, in scoring; 0 generates no texts in validation: it takes "
        "the likeliest token after each prefix of the reference (teacher forcing); by default 0 on a CPU, where beams "
        "take longer than training, and on a GPU the config's num_beams, which scoring takes on both",
        on_resume="validation",
    )
    pred_beams: int | None = changeable(None, least=1, help="beams in scoring; by default --eval_beams")


@dataclass(frozen=True)
class TextToTextEvalOptions:
    only_predict: ClassVar[dict[str, Any]] = {"references": False}

    references: bool = option(
        True,
        section="texts",
        help="score predictions by references; --no_references reads none and only predicts",
    )
    prefix: str = option("", help="text to put before each source, for models that need one", reaches=bool)
    max_target_length: int | None = option(
        None, least=3, help="most tokens of a target in its loss; by default the model's positions"
    )
    eval_beams: int | None = option(None, section=GENERATE, least=1, help="num_beams of generate; 1 is greedy search")


@dataclass(frozen=True)
class SummarizationOptions(TextToTextOptions):
    rouge: RougeOptions = part(RougeOptions)


@dataclass(frozen=True)
class TranslationOptions(TextToTextOptions):
    bleu: BleuOptions = part(BleuOptions)


@dataclass(frozen=True)
class TranslationTrainingOptions(TextToTextTrainingOptions):
    source_encoder_layers: int | None = card_option(
        None,
        section="source language",
        least=1,
        help="layers of a new encoder that replaces the encoder's token embeddings; needs --source_tokenizer",
    )
    source_tokenizer: str | None = option(None, help="vocabulary of the sources: a Hub name or directory")
    translation_stage: int | None = card_option(
        None, least=1, most=2, help="1 trains the new encoder, the positions and one projection; by default 2, all"
    )

    def __post_init__(self) -> None:
        if (self.source_encoder_layers is None) != (self.source_tokenizer is None):
            raise InputError("--source_encoder_layers and --source_tokenizer: give both or neither")


@dataclass(frozen=True)
class ReadingOptions:
    max_source_length: int | None = card_option(
        None,
        section="texts",
        least=8,
        help=f"most tokens to read at once; by default as in training, in training at most {MOST_READ}",
    )


@dataclass(frozen=True)
class LabelOptions(ReadingOptions):
    tag_names: tuple[str, ...] | None = option(
        None, alias="label_names", help="names of labels that are the numbers 0, 1, 2 and so on"
    )


@dataclass(frozen=True)
class HeadTrainingOptions:
    new_head: bool = option(False, section="model", help="start a new head, even if the weights have one")
    classifier_dropout: float | None = card_option(
        None, section="regularisation", least=0, most=0.99, help="dropout of the head; by default the config's"
    )


@dataclass(frozen=True)
class LabelTrainingOptions(HeadTrainingOptions):
    class_weights: str | None = option(
        None,
        section="training",
        choices=("balanced",),
        help="weights of the labels in the training loss; balanced makes rare labels count as much as frequent ones",
        on_resume="by_content",
        in_card=True,
    )
    label_smoothing: float = smoothing_option()


@dataclass(frozen=True)
class HeadEvalOptions:
    only_predict: ClassVar[dict[str, Any]] = {"predict": True}
    predict: bool = option(False, section="texts", help="only predict; labels, tags and answers are not read")


@dataclass(frozen=True)
class ClassificationOptions(LabelOptions):
    task_name: str | None = option(
        None, section="texts", choices=tuple(GLUE), help="task of GLUE; by default that of the set on the Hub"
    )
    text_field: str | None = option(None, help=f"column of the texts; by default {', '.join(TEXTS)}")
    pair_field: str | None = option(
        None, help=f"column of the second texts of pairs; without --text_field, by default {', '.join(PAIRS)}"
    )
    label_field: str | None = option(None, help=f"column of the labels; by default {', '.join(LABELS)}")
    drop_label: tuple[str, ...] | None = option(
        None, help="leave out rows with these labels, such as SNLI's -; -1 is also null"
    )
    mismatched: bool = option(False, help="read MNLI's mismatched validation or test set instead of the matched one")


@dataclass(frozen=True)
class ClassificationTrainingOptions(LabelTrainingOptions):
    problem_type: str | None = option(
        None,
        section="texts",
        choices=PROBLEMS,
        metavar="KIND",
        help=f"{', '.join(PROBLEMS)}; by default lists are several labels, fractions are numbers, all else is classes",
    )


@dataclass(frozen=True)
class TaggingOptions(LabelOptions):
    words_field: str | None = option(
        None,
        section="texts",
        alias="words_column",
        help=f"column of the words; by default {', '.join(WORDS)}; in a CoNLL file its number, from 1 on, or its name "
        "in a header, by default the first one",
    )
    tags_field: str | None = option(
        None, alias="tags_column", help=f"column of the tags; by default {', '.join(TAGS)}, of CoNLL the last"
    )


@dataclass(frozen=True)
class WindowOptions:
    doc_stride: int | None = option(
        None, section="windows", least=0, help="tokens that two windows share; by default 128, at most half a window"
    )
    max_query_length: int | None = option(
        None,
        least=1,
        help=f"most tokens of a question; by default as in training, in training {QUESTION_LENGTH} or half a window",
    )
    version_2_with_negative: bool | None = option(
        None,
        section="answers",
        help="some questions have no answer, as in SQuAD 2.0; by default as in training, or off",
    )
    null_score_diff_threshold: float = option(
        0.0, help="with --version_2_with_negative: no answer if its score is above the best one's plus this"
    )
    n_best_size: int = option(20, least=1, help="most answers of a question in nbest_predictions.json")
    max_answer_length: int = option(30, least=1, help="most tokens of an answer")

    def __post_init__(self) -> None:
        if self.null_score_diff_threshold and self.version_2_with_negative is False:
            raise InputError(
                f"--null_score_diff_threshold {self.null_score_diff_threshold:g} needs --version_2_with_negative"
            )


@dataclass(frozen=True)
class QuestionAnsweringOptions(ReadingOptions):
    skip_bad_answers: bool = option(False, help="leave out answers that are not where answer_start says")
    windows: WindowOptions = part(WindowOptions)


@dataclass(frozen=True)
class PretrainingOptions:
    max_source_length: int | None = card_option(
        None,
        section="data",
        least=3,
        help=f"most tokens of an example; by default as in the shards, of text at most {MOST_OF_TEXT}",
    )
    tokenizer: str | None = option(
        None, help="vocabulary: a Hub name or directory; by default that of the shards, or of the weights"
    )


@dataclass(frozen=True)
class DenoisingOptions(PretrainingOptions):
    pre_ln: bool | None = option(
        None,
        section="model",
        help="normalise before each sublayer; by default on, with --model_name_or_path as in the weights",
        on_resume="by_content",
    )


TEXT_TO_TEXT = (TextToTextOptions, TextToTextTrainingOptions, TextToTextEvalOptions)
# Of each task: the options in all programs, those that finetune.py adds, and those that run_eval.py adds.
OPTIONS = {
    "summarization": (SummarizationOptions, TextToTextTrainingOptions, TextToTextEvalOptions),
    "translation": (TranslationOptions, TranslationTrainingOptions, TextToTextEvalOptions),
    "classification": (ClassificationOptions, ClassificationTrainingOptions, HeadEvalOptions),
    "tagging": (TaggingOptions, LabelTrainingOptions, HeadEvalOptions),
    "question_answering": (QuestionAnsweringOptions, HeadTrainingOptions, HeadEvalOptions),
}
# Of each task of pretraining: its options, and those of its noise.
PRETRAINING = {
    DENOISING: (DenoisingOptions, CorruptionOptions),
    MLM: (PretrainingOptions, MaskingOptions),
    MLM_NSP: (PretrainingOptions, MaskingOptions),
}
