"""BERT's tokenizer over the `tokenizers` library: WordPiece (Wu et al., 2016, arXiv:1609.08144), cased or uncased."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bart.errors import InputError
from bart.tokenization.encoding import check_integer, texts_to_learn
from bart.tokenization.tokenizer import PretrainedTokenizer

_PREFIX = "##"  # of pieces within a word
# Settings in tokenizer_config.json, and the names that the normalizer gives them.
_SETTINGS = {"do_lower_case": "lowercase", "strip_accents": "strip_accents"}
_SETTINGS |= {"tokenize_chinese_chars": "handle_chinese_chars"}
_MOST_CHARACTERS = 1000  # of which pieces are made in training


class BertTokenizer(PretrainedTokenizer):
    """Text to ids and back, with the results of `transformers.BertTokenizer` over the published files."""

    names = ("BertTokenizer", "DistilBertTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer")
    special_tokens = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
    vocabulary_files = ("vocab.txt",)
    separators = 1
    has_types = True

    def __init__(self, backend: Tokenizer, model_max_length: int = 512, *, source: str = "tokenizer") -> None:
        super().__init__(backend, model_max_length, source=source)
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[("[CLS]", self.cls_token_id), ("[SEP]", self.sep_token_id)],
        )

    @classmethod
    def is_pipeline(cls, backend: Tokenizer) -> bool:
        return (
            isinstance(backend.model, models.WordPiece)
            and backend.model.unk_token == cls.special_tokens[3]
            and isinstance(backend.normalizer, normalizers.BertNormalizer)
            and isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        )

    @classmethod
    def pipeline_of(cls, files: Sequence[Path]) -> Tokenizer:
        vocabulary = models.WordPiece.read_file(str(files[0]))
        # A repeated token has the id of its last line. With a name that no text can hold, the others keep theirs.
        for number in set(range(max(vocabulary.values(), default=0))) - set(vocabulary.values()):
            vocabulary[f"repeated in line {number + 1}"] = number
        return _pipeline(models.WordPiece(vocabulary, unk_token="[UNK]"))

    @classmethod
    def configure(cls, backend: Tokenizer, settings: dict[str, Any]) -> None:
        given = {ours: settings[name] for name, ours in _SETTINGS.items() if name in settings}
        backend.normalizer = normalizers.BertNormalizer(**given)
        backend.model.continuing_subword_prefix, backend.model.max_input_chars_per_word = _PREFIX, 100

    def settings(self) -> dict[str, Any]:
        return {
            "tokenizer_class": "BertTokenizer",
            "clean_up_tokenization_spaces": self.clean_up_tokenization_spaces,
            **{name: getattr(self._backend.normalizer, ours) for name, ours in _SETTINGS.items()},
        }

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, min_frequency: int = 2, lowercase: bool = True
    ) -> BertTokenizer:
        """Learn a vocabulary from text. The same texts give the same vocabulary.

        Ids: `[PAD] [UNK] [CLS] [SEP] [MASK]` are 0 to 4, then characters, each also as a part within a word, then
        longer pieces.

        Args:
            vocab_size: number of ids, at least 7. Text that yields fewer pieces gives a smaller vocabulary.
            min_frequency: how often a pair of pieces must occur to be joined, at least 1.
            lowercase: true if texts are read in lower case and without accents.

        Raises:
            InputError: a size out of range, texts without a character, or a single text.
        """
        check_integer("vocab_size", vocab_size, len(cls.special_tokens) + 2)
        check_integer("min_frequency", min_frequency, 1)
        learner = _pipeline(models.WordPiece(unk_token="[UNK]"), lowercase=lowercase)
        # Words are joined to pieces in the order of these ids. The trainer would number characters as it meets them, in
        # a map of words whose order is another one in every process.
        texts = list(texts_to_learn(texts))
        counts = Counter(chain.from_iterable(map(learner.normalizer.normalize_str, texts)))
        common = [character for character in counts if not character.isspace()]
        common.sort(key=lambda character: (-counts[character], character))
        common = sorted(common[: min(_MOST_CHARACTERS, (vocab_size - len(cls.special_tokens)) // 2)])
        if not common:
            raise InputError("texts have no characters: there is nothing to learn a vocabulary from")
        first = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *common, *(_PREFIX + character for character in common)]
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            special_tokens=first,
            limit_alphabet=len(common),
            show_progress=False,
        )
        learner.train_from_iterator(texts, trainer)
        return cls(_pipeline(models.WordPiece(learner.get_vocab(), unk_token="[UNK]"), lowercase=lowercase))


def _pipeline(model: models.WordPiece, **normalization: Any) -> Tokenizer:
    backend = Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(clean_text=True, **normalization)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=_PREFIX)
    return backend
