"""The base of tokenizers over the `tokenizers` library: batches, ids back to text, files.

Shapes: B batch, S sequence length in tokens, special tokens included.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tokenizers import AddedToken, Encoding, Tokenizer

from bart.errors import InputError
from bart.files import read_json, write_json
from bart.hub import push, resolve
from bart.tensor_files import read_file

if TYPE_CHECKING:
    from typing import Self

_SURROGATE = re.compile("[\ud800-\udfff]")
TOKENIZER_FILE, SETTINGS_FILE = "tokenizer.json", "tokenizer_config.json"
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


class PretrainedTokenizer:
    """A vocabulary with its pipeline.

    Attributes:
        kind: the kind of its pipeline, for errors.
        special_tokens: those that begin a text, pad it, end it, stand for what is unknown, and for what is masked.
        vocabulary_files: the files that a folder may hold in place of tokenizer.json.
        separators: how many end tokens lie between the texts of a pair.
        mask_takes_space: true if the spaces before a mask in a text belong to it.
        has_types: true if networks read which tokens are of the second text of a pair.
        bos_token_id, eos_token_id, pad_token_id, unk_token_id, mask_token_id: their ids.
        vocab_size: number of ids, added tokens included (`len(tokenizer)` is the same), so the ids are below it.
        model_max_length: the longest sequence, special tokens included, when truncation names no other. Settable.

    Calls share no state, so threads may use one tokenizer with different options.
    """

    kind: ClassVar[str]
    special_tokens: ClassVar[tuple[str, str, str, str, str]]
    vocabulary_files: ClassVar[tuple[str, ...]]
    separators: ClassVar[int]
    mask_takes_space: ClassVar[bool] = False
    has_types: ClassVar[bool] = False

    def __init__(self, backend: Tokenizer, model_max_length: int, *, source: str) -> None:
        """Wrap a pipeline; errors call it `source`.

        Raises:
            InputError: the pipeline is of another kind, lacks a special token, or its ids are not 0 ... V-1.
        """
        if not self.is_pipeline(backend):
            raise InputError(f"{source}: not {self.kind}")
        vocabulary = backend.get_vocab(with_added_tokens=True)
        if missing := [token for token in self.special_tokens if token not in vocabulary]:
            raise InputError(f"{source}: the vocabulary lacks {' '.join(missing)} (of {' '.join(self.special_tokens)})")
        if set(vocabulary.values()) != set(range(len(vocabulary))):
            raise InputError(f"{source}: the {len(vocabulary)} token ids must be 0 to {len(vocabulary) - 1}, each once")
        declared = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
        mask = self.special_tokens[-1]
        backend.add_special_tokens(
            [
                AddedToken(token, lstrip=token == mask and self.mask_takes_space, normalized=False, special=True)
                for token in self.special_tokens
                if token not in declared
            ]
        )
        # A tokenizer.json may hold settings for other uses; each call decides about truncation and padding.
        backend.no_truncation()
        backend.no_padding()
        self.bos_token_id, self.pad_token_id, self.eos_token_id, self.unk_token_id, self.mask_token_id = (
            vocabulary[token] for token in self.special_tokens
        )
        self.vocab_size = len(vocabulary)
        self.model_max_length = model_max_length
        self._backend = backend

    @staticmethod
    def is_pipeline(backend: Tokenizer) -> bool:
        """True if a pipeline is of this kind."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.vocab_size

    # ---- Files

    @classmethod
    def from_pretrained(cls, path_or_name: str | os.PathLike[str]) -> Self:
        """Load a tokenizer.

        Args:
            path_or_name: a folder with `tokenizer.json`, or with all of `vocabulary_files` (`tokenizer_config.json`
                gives settings, where present); a Hub name; a file of such a folder; a run's directory; or a checkpoint
                of this project, which holds its tokenizer.

        Raises:
            InputError: nothing there, no tokenizer in it, or files that cannot be read as one.
        """
        path = resolve(path_or_name, [TOKENIZER_FILE, *cls.vocabulary_files, SETTINGS_FILE])
        names = (TOKENIZER_FILE, cls.vocabulary_files[0])
        if path.is_file() and path.suffix != ".ckpt" and any((path.parent / name).exists() for name in names):
            path = path.parent
        if path.is_file():
            text = read_file(path).get("tokenizer_json")
            if not isinstance(text, str):
                raise InputError(f"{path}: the checkpoint has no tokenizer: name a folder or a Hub name that has one")
            return cls.from_json(text, source=str(path))
        settings = read_json(path / SETTINGS_FILE) if (path / SETTINGS_FILE).exists() else {}
        files = [path / name for name in cls.vocabulary_files]
        if (path / TOKENIZER_FILE).exists():
            tokenizer = cls.from_json(_read_text(path / TOKENIZER_FILE), source=str(path / TOKENIZER_FILE))
        elif all(file.exists() for file in files):
            try:
                backend = cls.pipeline_of(files, settings)
            except Exception as error:  # the library raises bare Exception for every fault of the files
                named = " and ".join([str(files[0]), *(file.name for file in files[1:])])
                raise InputError(f"{named}: {one_line(error)}") from error
            tokenizer = cls(backend, source=str(files[0]))
        else:
            raise InputError(
                f"{path_or_name}: holds neither {TOKENIZER_FILE} nor {' with '.join(cls.vocabulary_files)}"
            )
        length = settings.get("model_max_length")
        # transformers writes 1e30 where there is no limit.
        if isinstance(length, int) and 2 < length < 10**9:
            tokenizer.model_max_length = length
        return tokenizer

    @classmethod
    def pipeline_of(cls, files: Sequence[Path], settings: dict[str, Any]) -> Tokenizer:
        """The pipeline that `vocabulary_files` and the content of tokenizer_config.json give."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, text: str, *, source: str = "tokenizer JSON") -> Self:
        """Inverse of `to_json`; reads any `tokenizer.json` of this kind. Errors call it `source`."""
        try:
            backend = Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception for every fault of the text
            raise InputError(f"{source}: not a tokenizer.json: {one_line(error)}") from error
        return cls(backend, source=source)

    def to_json(self) -> str:
        """The whole tokenizer, apart from `model_max_length`, in the format of `tokenizer.json`."""
        return self._backend.to_str()

    def same_vocabulary(self, tokenizer: PretrainedTokenizer) -> bool:
        """True if both have the same tokens, with the same ids."""
        return self._backend.get_vocab(with_added_tokens=True) == tokenizer._backend.get_vocab(with_added_tokens=True)

    def settings(self) -> dict[str, Any]:
        """The content of tokenizer_config.json that `transformers` wants, apart from model_max_length."""
        raise NotImplementedError

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json`, `tokenizer_config.json` and `vocabulary_files`; make the folder if need be.

        `transformers.AutoTokenizer` loads the folder, with or without a model's `config.json` in it.

        Raises:
            InputError: the folder cannot be written.
        """
        folder = Path(directory)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / TOKENIZER_FILE).write_text(self.to_json(), encoding="utf-8")
            settings = {**self.settings(), "model_max_length": self.model_max_length}
            write_json(folder / SETTINGS_FILE, settings, sort_keys=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot write the tokenizer here: {error.strerror}") from error
        try:
            self._backend.model.save(str(folder))  # vocabulary_files
        except Exception as error:  # the library raises bare Exception for every fault of files and disk
            raise InputError(f"{folder}: cannot write the tokenizer here: {one_line(error)}") from error

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload what `save_pretrained` writes to the Hub; options and result are those of `bart.hub.push`."""
        return push(self.save_pretrained, repo_id, **options)

    # ---- Text to ids

    def encode_many(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """The ids of texts, each with what begins and ends it, at most max_length of them."""
        check_integer("max_length", max_length, 3)
        rows = self._encode(texts)
        return [[self.bos_token_id, *row[: max_length - 2], self.eos_token_id] for row in rows]

    def cut(self, first: list[int], second: list[int], most: int) -> tuple[list[int], list[int]]:
        """Cut the ids of a pair of texts so that `join` makes at most so many of them.

        The longer text is cut first, as transformers does it.
        """
        room = most - 2 - self.separators
        if len(first) + len(second) <= room:
            return first, second
        shorter = min(len(first), len(second), room // 2)
        if len(first) <= len(second):
            return first[:shorter], second[: room - shorter]
        return first[: room - shorter], second[:shorter]

    def join(self, first: list[int], second: list[int]) -> tuple[list[int], int]:
        """The ids of a pair of texts, with what begins, separates and ends them; and where the second text begins."""
        start = [self.bos_token_id, *first, *[self.eos_token_id] * self.separators]
        return [*start, *second, self.eos_token_id], len(start)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """The ids of texts without special tokens, and the characters (begin, end) that each id stands for.

        A space before a word is none of its characters. Where several ids make up a character, each stands for it.
        """
        return [(encoding.ids, encoding.offsets) for encoding in self._encodings(texts, with_offsets=True)]

    def _limit(
        self, max_length: int | None, truncation: bool | None, padding: bool | str, return_tensors: str | None
    ) -> tuple[bool, int]:
        """True if texts are to be cut, and the number of tokens to keep; after a check of a call's options."""
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
            check_integer("max_length", max_length, 3)
            if not truncation and padding != "max_length":
                raise InputError(f"max_length={max_length} needs truncation=True or padding='max_length'")
        return truncation, self.model_max_length if max_length is None else max_length

    def _batch(
        self,
        rows: list[list[int]],
        is_single: bool,
        limit: int,
        padding: bool | str,
        return_tensors: str | None,
        **numbers: list[list[int]],
    ) -> Encoded:
        """Rows of ids, padded, with their mask, and other numbers of each id, which are 0 for padding."""
        width = 0
        if padding:
            width = limit if padding == "max_length" else max(map(len, rows))
        missing = [width - len(row) for row in rows]
        columns = {"input_ids": [row + [self.pad_token_id] * more for row, more in zip(rows, missing, strict=True)]}
        numbers["attention_mask"] = [[1] * len(row) for row in rows]
        for name, values in numbers.items():
            columns[name] = [row + [0] * more for row, more in zip(values, missing, strict=True)]
        if return_tensors == "pt":
            if len(set(map(len, columns["input_ids"]))) > 1:
                raise InputError(
                    f"return_tensors='pt': the {len(rows)} texts have different lengths, so give padding=True "
                    "(with truncation=True if one is longer than max_length)"
                )
            return Encoded({name: torch.tensor(values) for name, values in columns.items()})
        return Encoded({name: values[0] if is_single else values for name, values in columns.items()})

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._encodings(texts)]

    def _encodings(
        self, texts: Sequence[str], backend: Tokenizer | None = None, with_offsets: bool = False
    ) -> list[Encoding]:
        if not isinstance(texts, Sequence) or isinstance(texts, bytes):
            raise InputError(f"texts must be a string or a list of strings, got {type(texts).__name__}")
        texts = list(texts)
        if not texts:
            raise InputError("texts is empty: give at least one text")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(f"texts[{index}] must be a string, got {type(text).__name__}")
        backend = backend or self._backend
        try:
            encode = backend.encode_batch if with_offsets else backend.encode_batch_fast
            return encode(texts, add_special_tokens=False)
        except TypeError:
            for index, text in enumerate(texts):
                if surrogate := _SURROGATE.search(text):
                    at = f"{surrogate[0]!r} at character {surrogate.start()}"
                    raise InputError(f"texts[{index}]: unpaired surrogate {at}") from None
            raise

    # ---- Ids to text

    def decode(
        self, ids: int | Ids, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> str:
        """The text of one sequence of ids: a list, a 1-D tensor, or a single id.

        Args:
            ids: ids from 0. Those beyond the vocabulary, which a padded output table may generate, give no text.
            skip_special_tokens: leave out special tokens.
            clean_up_tokenization_spaces: without effect, as in recent transformers.

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


def texts_to_learn(texts: Iterable[str]) -> Iterator[str]:
    """Texts to learn a vocabulary from, without empty ones.

    Raises:
        InputError: there are none, or it is a single text.
    """
    if isinstance(texts, str):
        raise InputError("texts must be several texts, not one string")
    texts = filter(None, texts)
    first = next(texts, None)
    if first is None:
        raise InputError("texts is empty: there is nothing to learn a vocabulary from")
    return itertools.chain([first], texts)


def _as_list(values: Any) -> list[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)


def check_integer(name: str, value: object, smallest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
        raise InputError(f"{name}={value!r}: give a whole number from {smallest}")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
