"""The base of tokenizers over the `tokenizers` library: text to ids and back, batches, pairs of texts, files."""

from __future__ import annotations

import inspect
import itertools
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.models import BPE

from bart.elsewhere import check_others, missing
from bart.errors import InputError, brief, naming
from bart.files import PathName, read_json, write_json
from bart.hub import resolve
from bart.tokenization.added_tokens import ADDED_FILE, FLAGS, ROLES, SPECIAL_FILE, add_tokens
from bart.tokenization.encoding import Encoded, check_integer

if TYPE_CHECKING:
    from typing import Self

    import torch

    Ids = Sequence[int] | torch.Tensor
logger = logging.getLogger(__name__)
TOKENIZER_FILE, SETTINGS_FILE = "tokenizer.json", "tokenizer_config.json"
_ANY_PIPELINE = ("PreTrainedTokenizer", "TokenizersBackend")  # classes that take all from tokenizer.json
_SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")  # in the order of transformers
_SURROGATE = re.compile("[\ud800-\udfff]")
_CHOICES = {
    "padding": (False, True, "longest", "max_length"),
    "return_tensors": (None, "pt", "np"),
    "truncation": (None, False, True, "longest_first"),
}


class OtherTokenizer(InputError):
    """A vocabulary is of another kind than the class that shall read it."""


def _check_side(_: PretrainedTokenizer, side: str) -> None:
    if side != "right":
        raise InputError(f"the side of padding and truncation is {side!r}; allowed: 'right'")


class PretrainedTokenizer:
    """A pipeline, in files, that turns texts into ids and back.

    Attributes:
        names: of the classes of transformers with this pipeline; each may end in Fast.
        special_tokens: those that begin a text, pad it, end it, stand for what is unknown, and for what is masked.
        vocabulary_files: the files that a folder may hold in place of tokenizer.json.
        separators: how many end tokens lie between the texts of a pair.
        mask_takes_space: true if the spaces before a mask in a text belong to it.
        has_types: true if networks read which tokens are of the second text of a pair.
        vocab_size: number of ids, added tokens included (`len(tokenizer)` is the same), so the ids are below it.
        cls_token, pad_token, sep_token, unk_token, mask_token: `special_tokens` by transformers' names, as their ids;
            `bos_token_id` and `eos_token_id` are there for BERT, too.
        model_max_length: the longest sequence, special tokens included, when truncation names no other. Settable.
        clean_up_tokenization_spaces: the default of that option of `decode`.
        add_prefix_space: true, of byte-level BPE, if a text is read as if its first word followed a space.
        padding_side, truncation_side: always "right"; others are refused.

    Calls share no state, so threads may use one tokenizer with different options.
    """

    names: ClassVar[tuple[str, ...]]
    special_tokens: tuple[str, str, str, str, str]
    vocabulary_files: ClassVar[tuple[str, ...]]
    separators: ClassVar[int]
    mask_takes_space: ClassVar[bool] = False
    has_types: ClassVar[bool] = False
    clean_up_tokenization_spaces: bool = False
    add_prefix_space: bool = False
    bos_token: str | None = None
    eos_token: str | None = None
    padding_side = truncation_side = property(lambda _: "right", _check_side)

    def __init__(self, backend: Tokenizer, model_max_length: int, *, source: str) -> None:
        """Wrap a pipeline, whose ids are 0 ... V-1; errors call it `source`."""
        if not self.is_pipeline(backend):
            raise OtherTokenizer(
                f"{source}: a pipeline of {type(backend.model).__name__}; allowed: that of {type(self).__name__}"
            )
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
        self.bos_token_id, self.pad_token_id, self.eos_token_id, self.unk_token_id, self.mask_token_id = (
            vocabulary[token] for token in self.special_tokens
        )
        self.cls_token_id, self.sep_token_id = self.bos_token_id, self.eos_token_id
        self.cls_token, self.pad_token, self.sep_token, self.unk_token, self.mask_token = self.special_tokens
        self.vocab_size = len(vocabulary)
        self.model_max_length = model_max_length
        self._backend = backend

    @classmethod
    def is_pipeline(cls, backend: Tokenizer) -> bool:
        """True if a pipeline is of this kind."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> NoReturn:
        raise missing(self, name)

    # ---- Tokens

    def __len__(self) -> int:
        return self.vocab_size

    def get_vocab(self) -> dict[str, int]:
        """The ids of all tokens, added ones included."""
        return self._backend.get_vocab(with_added_tokens=True)

    def add_tokens(
        self, new_tokens: str | AddedToken | Sequence[str | AddedToken], special_tokens: bool = False
    ) -> int:
        """Add tokens, which `skip_special_tokens` leaves out if they are special; return their number.

        A model needs rows for them: `model.resize_token_embeddings(len(tokenizer))`.
        """
        tokens = [new_tokens] if isinstance(new_tokens, (str, AddedToken)) else list(new_tokens)
        added = self._backend.add_special_tokens(tokens) if special_tokens else self._backend.add_tokens(tokens)
        self.vocab_size = self._backend.get_vocab_size(with_added_tokens=True)
        vars(self).pop("without_prefix_space", None)  # a copy, which lacks them
        return added

    # ---- Text to ids

    def __call__(
        self,
        text: str | Sequence[str] | None = None,
        text_pair: str | Sequence[str] | None = None,
        text_target: str | Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: bool | str | None = None,
        padding: bool | str = False,
        return_tensors: str | None = None,
        add_special_tokens: bool = True,
        return_offsets_mapping: bool = False,
        **others: Any,
    ) -> Encoded:
        """Encode one text, or several, or pairs of texts: BART's as `<s> A </s></s> B </s>`, BERT's as `[CLS] A [SEP] B
        [SEP]`. The string of a special token in a text becomes the token.

        Args:
            text: a text, or a list of B texts.
            text_pair: the second text of each.
            text_target: a text, or B texts, whose ids are `labels`, or without text `input_ids`.
            max_length: tokens to keep of a text or pair, special tokens included. Default: `model_max_length`.
            truncation: true, or "longest_first", to cut at `max_length`, of a pair the longer text first. Default:
                True if `max_length` is given and there is no padding.
            padding: on the right: True or "longest" to the longest text of the call, "max_length" to `max_length`.
            return_tensors: "pt" for int64 tensors (B, S), "np" for arrays. Default: lists, flat for one text.
            add_special_tokens: false to leave out what begins, separates and ends texts.
            return_offsets_mapping: true for the characters (begin, end) of its text that each id stands for, without
                the space before a word; (0, 0) for special tokens.
            others: of transformers, at values that change nothing.

        Returns:
            `input_ids`, `attention_mask`; of BERT `token_type_ids`, 1 for a second text; `offset_mapping` on demand.

        Raises:
            InputError: texts that are no strings, or hold unpaired surrogates; options out of range or without effect;
                tensors asked for texts of different lengths without padding.
        """
        if others.get("add_prefix_space") is self.add_prefix_space:
            del others["add_prefix_space"]
        if others:
            check_others(type(self).__name__, [*inspect.signature(self).parameters][:-1], others)
        for name, value in (("padding", padding), ("return_tensors", return_tensors), ("truncation", truncation)):
            if value not in _CHOICES[name]:
                raise InputError(f"{name}={value!r}: give one of {_CHOICES[name]}")
        if max_length is not None:
            check_integer("max_length", max_length, 3 if add_special_tokens else 1)
        if truncation is None:
            truncation = max_length is not None and not padding
        if max_length is not None and not truncation and padding != "max_length":
            raise InputError(f"max_length={max_length} needs truncation=True or padding='max_length'")
        limit = self.model_max_length if max_length is None else max_length
        if text is None:
            text, text_target = text_target, None

        columns: dict[str, list[list[Any]]] = {"input_ids": []}
        for pair in self._encode_pairs(text, text_pair, return_offsets_mapping):
            parts = [encoding.ids for encoding in pair]
            if truncation and parts[1:]:  # `cut` leaves room for what stands around the texts
                parts = [*self.cut(parts[0], parts[1], limit + (0 if add_special_tokens else 2 + self.separators))]
            elif truncation:
                parts = [parts[0][: limit - (2 if add_special_tokens else 0)]]
            row = self._joined(parts, self.bos_token_id, self.eos_token_id, add_special_tokens)
            columns["input_ids"].append(row)
            if self.has_types:
                second = len(parts[0]) + (1 + self.separators if add_special_tokens else 0) if parts[1:] else len(row)
                columns.setdefault("token_type_ids", []).append([0] * second + [1] * (len(row) - second))
            if return_offsets_mapping:
                offsets = [encoding.offsets[: len(part)] for encoding, part in zip(pair, parts, strict=True)]
                whole = self._joined(offsets, (0, 0), (0, 0), add_special_tokens)
                columns.setdefault("offset_mapping", []).append(whole)
        width = 0
        if padding:
            width = limit if padding == "max_length" else max(map(len, columns["input_ids"]))
        encoded = self._batch(columns, isinstance(text, str), width, return_tensors)
        if text_target is not None:
            options: dict[str, Any] = {"max_length": max_length, "truncation": truncation, "padding": padding}
            options |= {"return_tensors": return_tensors, "add_special_tokens": add_special_tokens}
            encoded["labels"] = self(text_target, **options)["input_ids"]
        return encoded

    def _encode_pairs(self, texts: Any, text_pair: Any, with_offsets: bool) -> list[tuple[Encoding, ...]]:
        is_single = isinstance(texts, str)
        firsts = self._encode([texts] if is_single else texts, with_offsets)
        if text_pair is None or (is_single and text_pair == ""):
            return [(first,) for first in firsts]
        if is_single != isinstance(text_pair, str):
            raise InputError("texts and text_pair must both be one text, or both lists of texts")
        seconds = self._encode([text_pair] if is_single else text_pair, with_offsets)
        if len(seconds) != len(firsts):
            raise InputError(f"text_pair has {len(seconds)} texts; allowed: {len(firsts)}, one for each of texts")
        return list(zip(firsts, seconds, strict=True))

    def encode(self, text: str, text_pair: str | None = None, **options: Any) -> list[int] | torch.Tensor:
        """The `input_ids` of a text or a pair of texts; options are those of a call."""
        if not isinstance(text, str):
            raise InputError(f"text must be a string, got {type(text).__name__}; the tokenizer itself takes a list")
        return self(text, text_pair, **options)["input_ids"]

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text, without those that begin and end it."""
        return self._encode([text], with_offsets=True)[0].tokens

    def cut(self, first: list[int], second: list[int], most: int) -> tuple[list[int], list[int]]:
        """Cut the ids of a pair of texts so that `join` makes at most so many of them, as transformers does it."""
        check_integer("max_length", most, 2 + self.separators)
        room = most - 2 - self.separators
        if len(first) + len(second) <= room:
            return first, second
        shorter = min(len(first), len(second), room // 2)
        if len(first) <= len(second):
            return first[:shorter], second[: room - shorter]
        return first[: room - shorter], second[:shorter]

    def join(self, first: list[int], second: list[int]) -> tuple[list[int], int]:
        """The ids of a pair of texts, with what begins, separates and ends them; and where the second text begins."""
        ids = self._joined([first, second], self.bos_token_id, self.eos_token_id, True)
        return ids, 1 + len(first) + self.separators

    def _joined(self, parts: Sequence[list[Any]], first: Any, last: Any, is_whole: bool) -> list[Any]:
        if not is_whole:
            return list(itertools.chain(*parts))
        rest = [*[last] * self.separators, *parts[1]] if parts[1:] else []
        return [first, *parts[0], *rest, last]

    def _batch(self, columns: dict[str, list[Any]], is_single: bool, width: int, return_tensors: str | None) -> Encoded:
        missing = [width - len(row) for row in columns["input_ids"]]
        columns["attention_mask"] = [[1] * len(row) for row in columns["input_ids"]]
        fillers = {"input_ids": self.pad_token_id, "attention_mask": 0, "token_type_ids": 0, "offset_mapping": (0, 0)}
        for name, filler in fillers.items():
            if name in columns:
                columns[name] = [row + [filler] * more for row, more in zip(columns[name], missing, strict=True)]
        if not return_tensors:
            return Encoded({name: values[0] if is_single else values for name, values in columns.items()})
        if len(set(map(len, columns["input_ids"]))) > 1:
            raise InputError(
                f"return_tensors={return_tensors!r}: the {len(missing)} texts have different lengths, so give "
                "padding=True (with truncation=True if one is longer than max_length)"
            )
        import torch  # here, because --help of commands that read vocabularies needs no torch

        tensors = {name: torch.tensor(values) for name, values in columns.items()}
        return Encoded({name: x if return_tensors == "pt" else x.numpy() for name, x in tensors.items()})

    def _encode(self, texts: Sequence[Any], with_offsets: bool) -> list[Encoding]:
        if not isinstance(texts, Sequence) or isinstance(texts, bytes):
            raise InputError(f"texts must be a string or a list of strings, got {type(texts).__name__}")
        texts = list(texts)
        if not texts:
            raise InputError("texts is empty: give at least one text")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(f"texts[{index}] must be a string, got {type(text).__name__}")
        try:
            encode = self._backend.encode_batch if with_offsets else self._backend.encode_batch_fast
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
            ids: ids from 0. Those beyond the vocabulary give no text.
            clean_up_tokenization_spaces: leave out spaces before English marks and contractions; by default as the
                tokenizer's files say, or false. Without effect on byte-level BPE, as in transformers 5.

        Raises:
            InputError: ids that are negative, not integers, or several sequences.
        """
        if isinstance(ids, int) or (hasattr(ids, "dim") and ids.dim() == 0):
            ids = [int(ids)]  # type: ignore[arg-type]  # a tensor of torch, which is not imported
        return self.batch_decode([ids], skip_special_tokens, clean_up_tokenization_spaces)[0]

    def batch_decode(
        self,
        sequences: Sequence[Ids] | torch.Tensor,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[str]:
        """The texts of several sequences of ids: lists or 1-D tensors, or one tensor (B, S). Options as in `decode`."""
        backend = self._backend
        try:
            rows = [row if isinstance(row, list) else _as_list(row) for row in _as_list(sequences)]
            texts = backend.decode_batch(rows, skip_special_tokens=skip_special_tokens)
        except (TypeError, OverflowError) as error:
            raise InputError(
                f"cannot decode: expected integer ids from 0, one list or 1-D tensor per sequence ({error})"
            ) from error
        cleans = clean_up_tokenization_spaces
        if (self.clean_up_tokenization_spaces if cleans is None else cleans) and not isinstance(backend.model, BPE):
            for spaced in _SPACED:
                texts = [text.replace(spaced, spaced.strip()) for text in texts]
        return texts

    # ---- Files

    @classmethod
    def from_pretrained(cls, path_or_name: PathName, **others: Any) -> Self:
        """Load a tokenizer; settings and added tokens are those that transformers finds there.

        Args:
            path_or_name: a folder with `tokenizer.json`, or with all of `vocabulary_files`; a Hub name; a file of such
                a folder; a run's directory; or a checkpoint of this project.

        Raises:
            InputError: nothing there, no tokenizer in it, or files that cannot be read as one.
        """
        check_others("from_pretrained()", ("path_or_name",), others)
        files = (SETTINGS_FILE, SPECIAL_FILE, ADDED_FILE, "config.json")
        path = resolve(path_or_name, [TOKENIZER_FILE, *cls.vocabulary_files, *files])
        names = (TOKENIZER_FILE, cls.vocabulary_files[0])
        if path.is_file() and path.suffix != ".ckpt" and any((path.parent / name).exists() for name in names):
            path = path.parent
        if path.is_file():
            from bart.tensor_files import read_file  # here, because it needs torch

            text = read_file(path).get("tokenizer_json")
            if not isinstance(text, str):
                raise InputError(f"{path}: the checkpoint has no tokenizer: name a folder or a Hub name that has one")
            return cls.from_json(text, source=str(path))
        settings, special, added, model = (read_json(path / name) if (path / name).exists() else {} for name in files)
        named = settings.get("tokenizer_class") or model.get("tokenizer_class") or cls.names[0]
        kind = str(named).removesuffix("Fast")
        if kind not in cls.names + _ANY_PIPELINE:
            raise OtherTokenizer(f"{path}: its tokenizer_class is {named!r}; allowed: {', '.join(cls.names)}")
        backend, source = cls._pipeline_in(path, path_or_name)
        own = None  # ids by the post-processor in the file, where that class takes it
        if kind in _ANY_PIPELINE:
            own = [backend.encode("a").ids, backend.encode("a", "b").ids]
        elif cls.is_pipeline(backend):
            try:
                cls.configure(backend, settings)
            except TypeError as error:
                raise InputError(f"{path / SETTINGS_FILE}: {brief(error)}") from error
        with naming(path):
            add_tokens(backend, settings, special, added, cls.special_tokens)
        tokenizer = cls(backend, source=str(source))  # type: ignore[call-arg]  # subclasses have a default
        if own not in (None, [tokenizer.encode("a"), tokenizer.encode("a", "b")]):
            raise InputError(
                f"{source}: its post-processor makes {own[1]} of a pair; allowed: {tokenizer.encode('a', 'b')}"
            )
        if settings.get("padding_side", "right") != "right":
            logger.warning("%s: padding_side is %s; batches are padded on the right", path, settings["padding_side"])
        if settings.get("truncation_side", "right") != "right":
            raise InputError(f"{path}: its truncation_side is {settings['truncation_side']!r}; allowed: 'right'")
        tokenizer.clean_up_tokenization_spaces = settings.get("clean_up_tokenization_spaces") is True
        length = settings.get("model_max_length", settings.get("max_len"))  # as transformers 2 called it
        if length is not None:
            if isinstance(length, bool) or not isinstance(length, (int, float)) or not length >= 3:
                raise InputError(
                    f"{path / SETTINGS_FILE}: its model_max_length is {length!r}; allowed: a number of at least 3"
                )
            if length < 10**9:  # transformers writes 1e30 where there is no limit
                tokenizer.model_max_length = int(length)
        return tokenizer

    @classmethod
    def _pipeline_in(cls, folder: Path, name: PathName) -> tuple[Tokenizer, Path]:
        """The pipeline that a folder holds, which an error calls `name`, and the first of the files it is read from."""
        source, files = folder / TOKENIZER_FILE, [folder / file for file in cls.vocabulary_files]
        if source.exists():
            return _parsed(Tokenizer.from_file, str(source), str(source)), source
        if all(file.exists() for file in files):
            try:
                return cls.pipeline_of(files), files[0]
            except Exception as error:  # the library raises bare Exception for every fault of the files
                named = " and ".join([str(files[0]), *(file.name for file in files[1:])])
                raise InputError(f"{named}: {brief(error)}") from error
        raise OtherTokenizer(f"{name}: holds neither {TOKENIZER_FILE} nor {' with '.join(cls.vocabulary_files)}")

    @classmethod
    def pipeline_of(cls, files: Sequence[Path]) -> Tokenizer:
        """The pipeline of `vocabulary_files`."""
        raise NotImplementedError

    @classmethod
    def configure(cls, backend: Tokenizer, settings: dict[str, Any]) -> None:
        """Set all that transformers' class sets by tokenizer_config.json alone, whatever tokenizer.json says."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, text: str, *, source: str = "tokenizer JSON") -> Self:
        """Inverse of `to_json`; reads any `tokenizer.json` of this kind. Errors call it `source`."""
        return cls(_parsed(Tokenizer.from_str, text, source), source=source)  # type: ignore[call-arg]

    def to_json(self) -> str:
        """The whole tokenizer, apart from `model_max_length`, in the format of `tokenizer.json`."""
        return self._backend.to_str()

    def settings(self) -> dict[str, Any]:
        """The settings in tokenizer_config.json for `transformers`, apart from tokens and model_max_length."""
        raise NotImplementedError

    def save_pretrained(self, directory: PathName) -> None:
        """Write `tokenizer.json`, `tokenizer_config.json` and `vocabulary_files`; make the folder if need be.

        `transformers.AutoTokenizer` loads the folder, with or without a model's `config.json` in it.

        Raises:
            InputError: the folder cannot be written.
        """
        folder = Path(directory)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / TOKENIZER_FILE).write_text(self.to_json(), encoding="utf-8")
            added = {
                str(number): {flag: getattr(token, flag) for flag in FLAGS}
                for number, token in self._backend.get_added_tokens_decoder().items()
            }
            settings = {**self.settings(), **{role: token for role in ROLES if (token := getattr(self, role))}}
            settings |= {"added_tokens_decoder": added, "model_max_length": self.model_max_length}
            write_json(folder / SETTINGS_FILE, settings, sort_keys=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot write the tokenizer here: {error.strerror}") from error
        try:
            self._backend.model.save(str(folder))  # vocabulary_files
        except Exception as error:  # the library raises bare Exception, in which the system's number of a fault stands
            number = re.search(r"\(os error (\d+)\)$", str(error))
            cause = OSError(int(number[1]), str(error)) if number else error
            raise InputError(f"{folder}: cannot write the tokenizer here: {brief(error)}") from cause


def _as_list(values: Any) -> list[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)


def _parsed(parse: Callable[[str], Tokenizer], given: str, source: str) -> Tokenizer:
    try:
        backend = parse(given)
    except Exception as error:  # the library raises bare Exception for every fault of file and text
        raise InputError(f"{source}: not a tokenizer.json: {brief(error)}") from error
    # The file may hold settings for other uses; each call decides about truncation and padding.
    backend.no_truncation()
    backend.no_padding()
    return backend
