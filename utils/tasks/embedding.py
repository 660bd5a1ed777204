"""Embedding: texts to vectors, the means of an encoder's states or the first of them, as in sentence-transformers.

Shapes: B batch, S text length, D model width.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch.nn.functional as F
from torch import Tensor

from bart.configuration.configuration import CONFIG_FILE
from bart.errors import InputError
from bart.files import PathName, read_json
from bart.hub import resolve
from bart.modeling.modeling_bart import BartModel
from bart.tokenization.tokenizer import SETTINGS_FILE
from bert.modeling.modeling_bert import UnpooledBert
from utils.app.cli import option
from utils.data.batches import Inputs
from utils.data.columns import Record, column_of, text_in
from utils.models.loading import LoadedModel
from utils.tasks.classification import TEXTS, LabelledTexts, TextTask
from utils.tasks.head import HeadExamples, ReadingOptions
from utils.tasks.task import Prediction

logger = logging.getLogger(__name__)
MEAN, CLS = POOLINGS = ("mean", "cls")
# Of sentence-transformers: files beside a model, and fields of the second one before it had the field pooling_mode.
LENGTH_FILE, POOLING_FILE, DENSE_FILES = "sentence_bert_config.json", "1_Pooling/config.json", "*_Dense/config.json"
POOLING_FIELDS = {"pooling_mode_mean_tokens": MEAN, "pooling_mode_cls_token": CLS}


@dataclass(frozen=True)
class EmbeddingOptions(ReadingOptions):
    """The column of a table that the texts are in, and the way from states to a vector."""

    text_field: str | None = option(None, section="texts", help=f"column of the texts; by default {', '.join(TEXTS)}")
    pooling: str | None = option(
        None,
        choices=POOLINGS,
        help="the mean of the tokens' states, or that of the first token; by default as sentence-transformers' files "
        f"beside the model say, else {MEAN}",
    )
    normalize: bool = option(True, help="vectors of length 1")


class Embedding(TextTask):
    """Texts to vectors, by the states of BERT or of BART's encoder."""

    Options = EmbeddingOptions
    model_classes = (BartModel, UnpooledBert)

    def _only_predicts(self, *args: Any, **options: Any) -> NoReturn:
        raise InputError("--task embedding only predicts; allowed: python -m utils.predict MODEL --task embedding")

    config = initial_model = read = loss = validate = metrics_of = score = _only_predicts

    # ---- Model

    def trained_model(
        self, path: PathName, config_path: str | None = None, tokenizer: str | None = None
    ) -> LoadedModel:
        """A model, whose config has the `pooling`, and the `max_seq_length` that sentence-transformers gives it."""
        loaded = super().trained_model(path, config_path, tokenizer)
        extra = loaded.model.config.extra
        folder = resolve(path, [CONFIG_FILE, SETTINGS_FILE, LENGTH_FILE, POOLING_FILE, DENSE_FILES])
        folder = folder if folder.is_dir() else folder.parent
        length, pooling, settings = (
            read_json(folder / name) if (folder / name).is_file() else {}
            for name in (LENGTH_FILE, POOLING_FILE, SETTINGS_FILE)
        )
        most = loaded.model.config.max_position_embeddings
        extra["max_seq_length"] = length.get("max_seq_length") or settings.get("model_max_length") or most
        old = [name for name, is_used in pooling.items() if name.startswith("pooling_mode_") and is_used]
        modes = pooling.get("pooling_mode") or [POOLING_FIELDS.get(name, name) for name in old] or MEAN
        mode = self.options.pooling or (modes[0] if isinstance(modes, list) and len(modes) == 1 else modes)
        if mode not in POOLINGS:
            allowed = f"{MEAN} or {CLS}, or --pooling {MEAN} or {CLS}"
            raise InputError(f"{folder / POOLING_FILE}: its pooling is {mode!r}; allowed: {allowed}")
        extra["pooling"] = mode
        if dense := [file.parent.name for file in folder.glob(DENSE_FILES)]:
            logger.warning("%s: the layer %s of sentence-transformers is not applied", folder, ", ".join(dense))
        return loaded

    def read_length(self, loaded: LoadedModel) -> int:
        config = loaded.model.config
        return self.options.max_source_length or int(min(config.max_seq_length, config.max_position_embeddings))

    # ---- Data

    def columns_in(self, columns: Collection[str]) -> Sequence[str]:
        given, trained = self.options.text_field, self.columns[:1]
        return (column_of("text_field", given, () if trained else TEXTS, columns, self.place.data_dir, trained),)

    def given(self, records: Sequence[Record], columns: Sequence[str]) -> LabelledTexts:
        texts = [text_in(record, columns[0]) for record in records]
        return LabelledTexts([record.name for record in records], texts, None)

    # ---- Prediction

    def predict_batch(self, loaded: LoadedModel, batch: Inputs) -> list[Prediction]:
        states = self.output_of(loaded.model.network.encoder, batch).float()
        vectors = pooled(states, batch["attention_mask"], loaded.model.config.pooling)
        if self.options.normalize:
            vectors = F.normalize(vectors)
        # Numbers as short as fp32 takes them.
        return [Prediction({"vector": [float(str(x)) for x in row]}, 0.0, 0) for row in vectors.cpu().numpy()]

    def row(self, raw: LabelledTexts, examples: HeadExamples, number: int, prediction: Prediction) -> dict[str, Any]:
        vector = prediction.values["vector"]
        return {"index": number, "source": raw.texts[number], "prediction": vector, **examples.counts(number)}

    def settings(self, loaded: LoadedModel) -> dict[str, Any]:
        pooling, normalize = loaded.model.config.pooling, self.options.normalize
        return {"pooling": pooling, "normalize": normalize, "max_source_length": self.read_length(loaded)}


def pooled(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """The vectors (B, D) of states (B, S, D) under a mask (B, S) of ones and zeros."""
    if pooling == CLS:
        return states[:, 0]
    mask = mask[:, :, None].to(states.dtype)
    return (states * mask).sum(dim=1) / mask.sum(dim=1)
