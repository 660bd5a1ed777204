"""BART's tokenizer over the `tokenizers` library: byte-level BPE (Radford et al., 2019, "Language Models are
Unsupervised Multitask Learners") with RoBERTa's special tokens, as published with `facebook/bart-*`.

Shapes: B batch, S sequence length in tokens, special tokens included.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Encoding, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from bart.errors import InputError
from bart.files import read_json, write_json
from bart.hub import push, resolve
from bart.tensor_files import read_file

# In the order of their ids in BART's vocabulary; <mask> has the last id.
_LEADING_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
_SPECIAL_TOKENS = (*_LEADING_TOKENS, "<mask>")
_BYTES = 256
_WORD_END = re.compile(r"(?<=\w) (?=[^\W\d_])")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CHARACTERS_PER_TOKEN = 4.6  # in English; results do not depend on it
_FILES = ["tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"]
Ids = Sequence[int] | torch.Tensor


class Encoded(dict[str, Any]):
    """`input_ids` and `attention_mask`, by key or as attributes: lists, or int64 tensors (B, S)."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def to(self, device: torch.device | str) -> Encoded:
        """A copy whose tensors lie on `device`."""
        return Encoded({key: value.to(device) if torch.is_tensor(value) else value for key, value in self.items()})


class BartTokenizer:
    """Text to ids and back, with the results of `transformers.BartTokenizer` over the published files.

    Attributes:
        bos_token_id, pad_token_id, eos_token_id, unk_token_id, mask_token_id: ids of `<s> <pad> </s> <unk> <mask>`.
        vocab_size: number of ids, added tokens included (`len(tokenizer)` is the same), so the ids are below it.
        model_max_length: the longest sequence, special tokens included, when truncation names no other. Settable.
        add_prefix_space: whether a text is read as if its first word followed a space. BART: False.

    Calls share no state, so threads may use one tokenizer with different options.
    """

    def __init__(self, backend: Tokenizer, model_max_length: int = 1024, *, source: str = "tokenizer") -> None:
        """Wrap a byte-level BPE pipeline; errors call it `source`.

        Raises:
            InputError: the pipeline is of another kind, lacks a special token, or its ids are not 0 ... V-1.
        """
        pre_tokenizer = backend.pre_tokenizer
        if not (
            isinstance(backend.model, models.BPE)
            and isinstance(pre_tokenizer, pre_tokenizers.ByteLevel)
            and isinstance(backend.decoder, decoders.ByteLevel)
            and backend.normalizer is None
        ):
            raise InputError(f"{source}: not a byte-level BPE tokenizer such as BART's")
        vocabulary = backend.get_vocab(with_added_tokens=True)
        if missing := [token for token in _SPECIAL_TOKENS if token not in vocabulary]:
            raise InputError(f"{source}: the vocabulary lacks {' '.join(missing)} (of {' '.join(_SPECIAL_TOKENS)})")
        if set(vocabulary.values()) != set(range(len(vocabulary))):
            raise InputError(f"{source}: the {len(vocabulary)} token ids must be 0 to {len(vocabulary) - 1}, each once")

        declared = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
        backend.add_special_tokens(
            [
                AddedToken(token, lstrip=token == "<mask>", normalized=False, special=True)
                for token in _SPECIAL_TOKENS
                if token not in declared
            ]
        )
        # A tokenizer.json may hold settings for other uses. Random merges would make the ids differ between calls, and
        # each call decides about truncation and padding.
        backend.model.dropout = None
        backend.no_truncation()
        backend.no_padding()
        self.bos_token_id, self.pad_token_id, self.eos_token_id, self.unk_token_id, self.mask_token_id = (
            vocabulary[token] for token in _SPECIAL_TOKENS
        )
        self.add_prefix_space: bool = pre_tokenizer.add_prefix_space
        backend.post_processor = processors.RobertaProcessing(
            ("</s>", self.eos_token_id), ("<s>", self.bos_token_id), add_prefix_space=self.add_prefix_space
        )
        # Otherwise no token spans the place between a word and the space before the next word.
        self._tokens_span_words = not pre_tokenizer.use_regex or any(
            token.rstrip or any(map(str.isspace, token.content))
            for token in backend.get_added_tokens_decoder().values()
        )
        self.vocab_size = len(vocabulary)
        self.model_max_length = model_max_length
        self._backend = backend
        self._other_prefix: Tokenizer | None = None

    def __len__(self) -> int:
        return self.vocab_size

    @classmethod
    def from_pretrained(cls, path_or_name: str | os.PathLike[str]) -> BartTokenizer:
        """Load a tokenizer.

        Args:
            path_or_name: a folder with `tokenizer.json`, or with `vocab.json` and `merges.txt` (where present,
                `tokenizer_config.json` gives `model_max_length` and `add_prefix_space`); a Hub name; a file of such a
                folder; a run's directory; or a checkpoint of this project, which holds its tokenizer.

        Raises:
            InputError: nothing there, no tokenizer in it, or files that cannot be read as one.
        """
        path = resolve(path_or_name, _FILES)
        if path.is_file() and path.suffix != ".ckpt" and any((path.parent / name).exists() for name in _FILES[:2]):
            path = path.parent
        if path.is_file():
            text = read_file(path).get("tokenizer_json")
            if not isinstance(text, str):
                raise InputError(f"{path}: the checkpoint has no tokenizer: name a folder or a Hub name that has one")
            return cls.from_json(text, source=str(path))
        settings = read_json(path / _FILES[3]) if (path / _FILES[3]).exists() else {}
        if (path / _FILES[0]).exists():
            tokenizer = cls.from_json(_read_text(path / _FILES[0]), source=str(path / _FILES[0]))
        elif (path / _FILES[1]).exists() and (path / _FILES[2]).exists():
            files = path / _FILES[1], path / _FILES[2]
            try:
                model = models.BPE.from_file(*map(str, files))
            except Exception as error:  # the library raises bare Exception for every fault of the files
                raise InputError(f"{files[0]} and {files[1].name}: {_one_line(error)}") from error
            backend = _pipeline(model, add_prefix_space=settings.get("add_prefix_space") is True)
            tokenizer = cls(backend, source=str(files[0]))
        else:
            raise InputError(f"{path_or_name}: holds neither tokenizer.json nor vocab.json with merges.txt")
        length = settings.get("model_max_length")
        # transformers writes 1e30 where there is no limit.
        if isinstance(length, int) and 2 < length < 10**9:
            tokenizer.model_max_length = length
        return tokenizer

    @classmethod
    def from_json(cls, text: str, *, source: str = "tokenizer JSON") -> BartTokenizer:
        """Inverse of `to_json`; reads any BART or RoBERTa `tokenizer.json`. Errors call it `source`."""
        try:
            backend = Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception for every fault of the text
            raise InputError(f"{source}: not a tokenizer.json: {_one_line(error)}") from error
        return cls(backend, source=source)

    def to_json(self) -> str:
        """The whole tokenizer, apart from `model_max_length`, in the format of `tokenizer.json`."""
        return self._backend.to_str()

    def same_vocabulary(self, other: BartTokenizer) -> bool:
        """Whether both have the same tokens, with the same ids."""
        return self._backend.get_vocab(with_added_tokens=True) == other._backend.get_vocab(with_added_tokens=True)

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json`, `vocab.json`, `merges.txt` and `tokenizer_config.json`; make the folder if need be.

        `transformers.AutoTokenizer` loads the folder, with or without a model's `config.json` in it.

        Raises:
            InputError: the folder cannot be written.
        """
        folder = Path(directory)
        settings = {
            "tokenizer_class": "BartTokenizer",
            "model_max_length": self.model_max_length,
            "add_prefix_space": self.add_prefix_space,
            "trim_offsets": True,
            "clean_up_tokenization_spaces": False,
            "bos_token": "<s>",
            "cls_token": "<s>",
            "eos_token": "</s>",
            "sep_token": "</s>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            # In full, because transformers 5 would drop lstrip, with which BART's <mask> was published.
            "mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False}
            | {"normalized": False, "single_word": False, "special": True},
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _FILES[0]).write_text(self.to_json(), encoding="utf-8")
            write_json(folder / _FILES[3], settings)
        except OSError as error:
            raise InputError(f"{folder}: cannot write the tokenizer here: {error.strerror}") from error
        try:
            self._backend.model.save(str(folder))  # vocab.json and merges.txt
        except Exception as error:  # the library raises bare Exception for every fault of files and disk
            raise InputError(f"{folder}: cannot write the tokenizer here: {_one_line(error)}") from error

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload what `save_pretrained` writes to the Hub; options and result are those of `bart.hub.push`."""
        return push(self.save_pretrained, repo_id, **options)

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
        smallest = _BYTES + len(_SPECIAL_TOKENS)
        _check_integer("vocab_size", vocab_size, smallest)
        _check_integer("min_frequency", min_frequency, 1)
        if isinstance(texts, str):
            raise InputError("texts must be several texts, not one string")
        texts = filter(None, texts)
        first = next(texts, None)
        if first is None:
            raise InputError("texts is empty: there is nothing to learn a vocabulary from")
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - 1,  # <mask> comes after the merges
            min_frequency=min_frequency,
            special_tokens=list(_LEADING_TOKENS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        learner = Tokenizer(models.BPE())
        learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        learner.train_from_iterator(itertools.chain([first], texts), trainer)
        vocabulary = learner.get_vocab()
        merges = [(left, right) for left, right in json.loads(learner.to_str())["model"]["merges"]]
        model = models.BPE(vocab=vocabulary | {"<mask>": len(vocabulary)}, merges=merges)
        return cls(_pipeline(model, add_prefix_space=False))

    def __call__(
        self,
        texts: str | Sequence[str],
        max_length: int | None = None,
        truncation: bool | None = None,
        padding: bool | str = False,
        return_tensors: str | None = None,
        add_prefix_space: bool | None = None,
    ) -> Encoded:
        """Encode one text, or several, as `<s> text </s>`. The string `</s>` in a text becomes the token.

        Args:
            texts: a text, or a list of B texts.
            max_length: tokens to keep of a text, special tokens included, at least 3; `</s>` stays last. Default: with
                truncation or `padding="max_length"`, `model_max_length`.
            truncation: whether to cut at `max_length`. Default, as in transformers: if `max_length` is given and there
                is no padding.
            padding: on the right: False for none, True or "longest" to the longest text of the call, "max_length" to
                `max_length`.
            return_tensors: "pt" for int64 tensors (B, S), B = 1 for a single text. Default: lists, flat for one text.
            add_prefix_space: for this call, in place of the tokenizer's own setting.

        Raises:
            InputError: texts that are no strings, hold unpaired surrogates (no Unicode text), or none at all; options
                out of range or without effect; tensors asked for texts of different lengths without padding.
        """
        for name, value, allowed in (
            ("padding", padding, (False, True, "longest", "max_length")),
            ("return_tensors", return_tensors, (None, "pt")),
            ("truncation", truncation, (None, False, True)),
        ):
            if value not in allowed:
                raise InputError(f"{name}={value!r}: give one of {allowed}")
        if truncation is None:
            truncation = max_length is not None and not padding
        if max_length is not None:
            _check_integer("max_length", max_length, 3)
            if not truncation and padding != "max_length":
                raise InputError(f"max_length={max_length} needs truncation=True or padding='max_length'")
        limit = self.model_max_length if max_length is None else max_length

        rows = self._encode([texts] if isinstance(texts, str) else texts, add_prefix_space)
        rows = [[self.bos_token_id, *(row[: limit - 2] if truncation else row), self.eos_token_id] for row in rows]
        width = 0
        if padding:
            width = limit if padding == "max_length" else max(map(len, rows))
        mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
        rows = [row + [self.pad_token_id] * (width - len(row)) for row in rows]
        if return_tensors == "pt":
            if len(set(map(len, rows))) > 1:
                raise InputError(
                    f"return_tensors='pt': the {len(rows)} texts have different lengths, so give padding=True "
                    "(with truncation=True if one is longer than max_length)"
                )
            return Encoded(input_ids=torch.tensor(rows), attention_mask=torch.tensor(mask))
        if isinstance(texts, str):
            return Encoded(input_ids=rows[0], attention_mask=mask[0])
        return Encoded(input_ids=rows, attention_mask=mask)

    def encode_many(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """The `input_ids` that `tokenizer(texts, max_length=max_length, truncation=True)` gives, but faster.

        Long texts are encoded in parts, cut where no token can span the cut, and only until there are enough tokens.
        """
        _check_integer("max_length", max_length, 3)
        room = max_length - 2
        rows: list[list[int]] = [[] for _ in texts]
        starts = [0] * len(texts)
        todo, size = range(len(texts)), round(room * _CHARACTERS_PER_TOKEN)
        while todo or not texts:  # _encode refuses an empty list
            ends = [self._cut(texts[i], starts[i] + size) for i in todo]
            parts = self._encode([texts[i][starts[i] : end] for i, end in zip(todo, ends, strict=True)], None)
            for i, end, part in zip(todo, ends, parts, strict=True):
                rows[i] += part
                starts[i] = end
            todo = [i for i in todo if starts[i] < len(texts[i]) and len(rows[i]) < room]
            size = room  # usually little is missing
        return [[self.bos_token_id, *row[:room], self.eos_token_id] for row in rows]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """The ids of texts without `<s>` and `</s>`, and the characters (begin, end) that each id stands for.

        A space before a word is none of its characters. Where several ids make up a character, each stands for it.
        """
        return [(encoding.ids, encoding.offsets) for encoding in self._encodings(texts, None, with_offsets=True)]

    def _cut(self, text: str, least: int) -> int:
        """The first place from `least` on at which a text may be cut: before a space and a letter, after a word."""
        if least >= len(text) or self._tokens_span_words:
            return len(text)
        found = _WORD_END.search(text, least)
        return found.start() if found else len(text)

    def decode(
        self, ids: int | Ids, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> str:
        """The text of one sequence of ids: a list, a 1-D tensor, or a single id.

        Args:
            ids: ids from 0. Those beyond the vocabulary, which a padded output table may generate, give no text.
            skip_special_tokens: leave out `<s>`, `</s>` and the other special tokens.
            clean_up_tokenization_spaces: without effect, as in recent transformers: BART's text does not need it.

        Raises:
            InputError: ids that are negative (-100 marks ignored labels), not integers, or several sequences.
        """
        if isinstance(ids, int) or (torch.is_tensor(ids) and ids.dim() == 0):
            ids = [int(ids)]
        return self.batch_decode([ids], skip_special_tokens)[0]

    def batch_decode(
        self,
        sequences: Sequence[Ids] | torch.Tensor,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[str]:
        """The texts of several sequences of ids: lists or 1-D tensors, or one tensor (B, S). Options as in `decode`."""
        rows = [row if isinstance(row, list) else _as_list(row) for row in _as_list(sequences)]
        try:
            return self._backend.decode_batch(rows, skip_special_tokens=skip_special_tokens)
        except (TypeError, OverflowError) as error:
            raise InputError(
                f"cannot decode: expected integer ids from 0, one list or 1-D tensor per sequence ({error})"
            ) from error

    def _encode(self, texts: Sequence[str], add_prefix_space: bool | None) -> list[list[int]]:
        return [encoding.ids for encoding in self._encodings(texts, add_prefix_space)]

    def _encodings(
        self, texts: Sequence[str], add_prefix_space: bool | None, with_offsets: bool = False
    ) -> list[Encoding]:
        if not isinstance(texts, Sequence) or isinstance(texts, bytes):
            raise InputError(f"texts must be a string or a list of strings, got {type(texts).__name__}")
        texts = list(texts)
        if not texts:
            raise InputError("texts is empty: give at least one text")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(f"texts[{index}] must be a string, got {type(text).__name__}")
        backend = self._backend
        if add_prefix_space not in (None, self.add_prefix_space):
            backend = self._with_other_prefix()
        try:
            encode = backend.encode_batch if with_offsets else backend.encode_batch_fast
            return encode(texts, add_special_tokens=False)
        except TypeError:
            for index, text in enumerate(texts):
                if found := _SURROGATE.search(text):
                    at = f"{found[0]!r} at character {found.start()}"
                    raise InputError(f"texts[{index}]: unpaired surrogate {at}") from None
            raise

    def _with_other_prefix(self) -> Tokenizer:
        # A second pipeline, because a change of the first would race with other threads' calls.
        if self._other_prefix is None:
            other = Tokenizer.from_str(self._backend.to_str())
            other.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=not self.add_prefix_space)
            self._other_prefix = other
        return self._other_prefix


def _pipeline(model: models.BPE, add_prefix_space: bool) -> Tokenizer:
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    return backend


def _as_list(values: Any) -> list[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)


def _check_integer(name: str, value: object, smallest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
        raise InputError(f"{name}={value!r}: give a whole number from {smallest}")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
