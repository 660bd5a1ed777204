"""BART's tokenizer: byte-level BPE (Radford et al., 2019) with RoBERTa's special tokens, as of `facebook/bart-*`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from bart.tokenization.encoding import check_integer, texts_to_learn
from bart.tokenization.tokenizer import PretrainedTokenizer


class BartTokenizer(PretrainedTokenizer):
    """Text to ids and back, with the results of `transformers.BartTokenizer` over the published files."""

    names = ("BartTokenizer", "RobertaTokenizer", "LEDTokenizer", "MvpTokenizer")
    special_tokens = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    vocabulary_files = ("vocab.json", "merges.txt")
    separators = 2
    mask_takes_space = True

    def __init__(self, backend: Tokenizer, model_max_length: int = 1024, *, source: str = "tokenizer") -> None:
        super().__init__(backend, model_max_length, source=source)
        self.bos_token, self.eos_token = self.cls_token, self.sep_token
        backend.model.dropout = None  # random merges would make the ids differ between calls
        self.add_prefix_space = backend.pre_tokenizer.add_prefix_space
        backend.post_processor = processors.RobertaProcessing(
            ("</s>", self.eos_token_id), ("<s>", self.bos_token_id), add_prefix_space=self.add_prefix_space
        )

    @classmethod
    def is_pipeline(cls, backend: Tokenizer) -> bool:
        return (
            isinstance(backend.model, models.BPE)
            and isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel)
            and isinstance(backend.decoder, decoders.ByteLevel)
            and backend.normalizer is None
        )

    @classmethod
    def pipeline_of(cls, files: Sequence[Path]) -> Tokenizer:
        return _pipeline(models.BPE.from_file(*map(str, files)))

    @classmethod
    def configure(cls, backend: Tokenizer, settings: dict[str, Any]) -> None:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(settings.get("add_prefix_space") or False)
        backend.model.ignore_merges = False
        if not backend.get_vocab().keys() >= {*pre_tokenizers.ByteLevel.alphabet()}:  # what it lacks gives no token
            backend.model.unk_token = None

    def settings(self) -> dict[str, Any]:
        return {
            "tokenizer_class": "BartTokenizer",
            "add_prefix_space": self.add_prefix_space,
            "trim_offsets": True,
            "clean_up_tokenization_spaces": False,
        }

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, min_frequency: int = 2) -> BartTokenizer:
        """Learn a vocabulary from text. The same texts give the same vocabulary.

        Ids as in BART: `<s> <pad> </s> <unk>` are 0 to 3, then the 256 bytes, the merges, and `<mask>` last.

        Args:
            vocab_size: number of ids, at least 261. Text that yields fewer merges gives a smaller vocabulary.
            min_frequency: how often a pair must occur to be merged, at least 1.

        Raises:
            InputError: a size out of range, texts without a character, or a single text.
        """
        smallest = len(pre_tokenizers.ByteLevel.alphabet()) + len(cls.special_tokens)
        check_integer("vocab_size", vocab_size, smallest)
        check_integer("min_frequency", min_frequency, 1)
        texts = texts_to_learn(texts)
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - 1,  # <mask> comes after the merges
            min_frequency=min_frequency,
            special_tokens=list(cls.special_tokens[:-1]),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        learner = _pipeline(models.BPE())
        learner.train_from_iterator(texts, trainer)
        vocabulary = learner.get_vocab()
        merges = [(left, right) for left, right in json.loads(learner.to_str())["model"]["merges"]]
        model = models.BPE(vocab=vocabulary | {"<mask>": len(vocabulary)}, merges=merges)
        return cls(_pipeline(model))

    @cached_property
    def without_prefix_space(self) -> BartTokenizer:
        """A tokenizer that reads a text as if it followed another one."""
        backend = Tokenizer.from_str(self.to_json())
        backend.pre_tokenizer.add_prefix_space = False
        return BartTokenizer(backend, self.model_max_length)


def _pipeline(model: models.BPE) -> Tokenizer:
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend
