"""The base of tokenizers over the `tokenizers` library: batches, ids back to text, files.

Shapes: B batch, S sequence length in tokens, special tokens included.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tokenizers import AddedToken, Encoding, Tokenizer

from bart.errors import InputError, naming
from bart.files import PathName, read_json, write_json
from bart.hub import push, resolve
from bart.tensor_files import read_file
from bart.tokenization.added_tokens import ADDED_FILE, FLAGS, ROLES, SPECIAL_FILE, add_tokens
from bart.tokenization.vocabulary import Vocabulary

if TYPE_CHECKING:
    from typing import Self

_SURROGATE = re.compile("[\ud800-\udfff]")
TOKENIZER_FILE, SETTINGS_FILE = "tokenizer.json", "tokenizer_config.json"
# Columns with a place for each token.
_OF_TOKENS = {"input_ids", "attention_mask", "token_type_ids", "offset_mapping", "special_tokens_mask"}
NO_PADDING = "do_not_pad"
SIDES = ("padding_side", "truncation_side")
_STRATEGIES = ("longest_first", "only_first", "only_second", "do_not_truncate")


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


def _always_right(name: str) -> property:
    """An attribute that is "right", and can be set to nothing else."""

    def check(_: object, value: object) -> None:
        if value != "right":
            raise InputError(f"{name} is {value!r}; allowed: 'right'")

    return property(lambda _: "right", check)


class PretrainedTokenizer(Vocabulary):
    """A vocabulary with its pipeline.

    Attributes:
        kind: the kind of its pipeline, for errors.
        special_tokens: those that begin a text, pad it, end it, stand for what is unknown, and for what is masked.
        vocabulary_files: the files that a folder may hold in place of tokenizer.json.
        separators: how many end tokens lie between the texts of a pair.
        mask_takes_space: true if the spaces before a mask in a text belong to it.
        has_types: true if networks read which tokens are of the second text of a pair.
        cls_token, pad_token, sep_token, unk_token, mask_token: the same by transformers' names.
        bos_token, eos_token: of BART the first and the third, too; None of BERT.
        bos_token_id, cls_token_id, eos_token_id, sep_token_id, pad_token_id, unk_token_id, mask_token_id: their ids;
            BERT's first and third ones are called bos and eos here, too.
        model_max_length: the longest sequence, special tokens included, when truncation names no other. Settable.
        padding_side, truncation_side: the end of a text that padding and cuts concern, which is always "right".

    Calls share no state, so threads may use one tokenizer with different options.
    """

    kind: ClassVar[str]
    special_tokens: tuple[str, str, str, str, str]
    vocabulary_files: ClassVar[tuple[str, ...]]
    separators: ClassVar[int]
    mask_takes_space: ClassVar[bool] = False
    has_types: ClassVar[bool] = False
    bos_token: str | None = None
    eos_token: str | None = None
    padding_side, truncation_side = map(_always_right, SIDES)

    def __init__(self, backend: Tokenizer, model_max_length: int, *, source: str) -> None:
        """Wrap a pipeline; errors call it `source`.

        Raises:
            InputError: the pipeline is of another kind, lacks a special token, or its ids are not 0 ... V-1.
        """
        if not self.is_pipeline(backend):
            raise InputError(f"{source}: not {self.kind}, but {type(backend.model).__name__}")
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.special_tokens = self._special_tokens(backend)
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
        self.cls_token_id, self.sep_token_id = self.bos_token_id, self.eos_token_id
        self.cls_token, self.pad_token, self.sep_token, self.unk_token, self.mask_token = self.special_tokens
        self.vocab_size = len(vocabulary)
        self.model_max_length = model_max_length
        self._backend = backend

    @staticmethod
    def is_pipeline(backend: Tokenizer) -> bool:
        """True if a pipeline is of this kind."""
        raise NotImplementedError

    @classmethod
    def _special_tokens(cls, backend: Tokenizer) -> tuple[str, str, str, str, str]:
        """The special tokens of a pipeline, whose model may have a name of its own for what is unknown."""
        unknown = getattr(backend.model, "unk_token", None) or cls.special_tokens[3]
        return (*cls.special_tokens[:3], unknown, cls.special_tokens[4])

    # ---- Files

    @classmethod
    def from_pretrained(cls, path_or_name: PathName) -> Self:
        """Load a tokenizer.

        Args:
            path_or_name: a folder with `tokenizer.json`, or with all of `vocabulary_files`; a Hub name; a file of such
                a folder; a run's directory; or a checkpoint of this project, which holds its tokenizer. Settings and
                added tokens of a folder come from `tokenizer_config.json`, and without `added_tokens_decoder` in it
                from `special_tokens_map.json` and `added_tokens.json`, as in transformers.

        Raises:
            InputError: nothing there, no tokenizer in it, or files that cannot be read as one.
        """
        others = (SETTINGS_FILE, SPECIAL_FILE, ADDED_FILE)
        path = resolve(path_or_name, [TOKENIZER_FILE, *cls.vocabulary_files, *others])
        names = (TOKENIZER_FILE, cls.vocabulary_files[0])
        if path.is_file() and path.suffix != ".ckpt" and any((path.parent / name).exists() for name in names):
            path = path.parent
        if path.is_file():
            text = read_file(path).get("tokenizer_json")
            if not isinstance(text, str):
                raise InputError(f"{path}: the checkpoint has no tokenizer: name a folder or a Hub name that has one")
            return cls.from_json(text, source=str(path))
        settings, special, added = (read_json(path / name) if (path / name).exists() else {} for name in others)
        files = [path / name for name in cls.vocabulary_files]
        unknown = (settings | special).get("unk_token")
        unk_token = unknown.get("content") if isinstance(unknown, dict) else unknown
        if not isinstance(unk_token, str | None) or (unknown and not unk_token):
            raise InputError(f"{path}: its unk_token is {unknown!r}; allowed: a token, or an object with its content")
        source = path / TOKENIZER_FILE if (path / TOKENIZER_FILE).exists() else files[0]
        if source.name == TOKENIZER_FILE:
            backend = _parsed(Tokenizer.from_file, str(source), str(source))
        elif all(file.exists() for file in files):
            try:
                backend = cls.pipeline_of(files, unk_token)
            except Exception as error:  # the library raises bare Exception for every fault of the files
                named = " and ".join([str(files[0]), *(file.name for file in files[1:])])
                raise InputError(f"{named}: {one_line(error)}") from error
        else:
            pieces = next(path.glob("*.model"), None)
            hint = "" if pieces is None else f"; {pieces.name} is of SentencePiece (mBART's, T5's), which is not read"
            raise InputError(
                f"{path_or_name}: holds neither {TOKENIZER_FILE} nor {' with '.join(cls.vocabulary_files)}{hint}"
            )
        try:
            cls.configure(backend, settings)
        except TypeError as error:
            raise InputError(f"{path / SETTINGS_FILE}: {one_line(error)}") from error
        with naming(path):
            add_tokens(backend, settings, special, added, cls._special_tokens(backend))
        tokenizer = cls(backend, source=str(source))
        with naming(path):
            for name in SIDES:
                setattr(tokenizer, name, settings.get(name, "right"))
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
    def pipeline_of(cls, files: Sequence[Path], unk_token: str | None) -> Tokenizer:
        """The pipeline of `vocabulary_files`, and of the token for what is unknown, if other files name it."""
        raise NotImplementedError

    @classmethod
    def configure(cls, backend: Tokenizer, settings: dict[str, Any]) -> None:
        """Set what the content of tokenizer_config.json names, which goes before tokenizer.json in transformers."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, text: str, *, source: str = "tokenizer JSON") -> Self:
        """Inverse of `to_json`; reads any `tokenizer.json` of this kind. Errors call it `source`."""
        return cls(_parsed(Tokenizer.from_str, text, source), source=source)

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
        except Exception as error:  # the library raises bare Exception for every fault of files and disk
            raise InputError(f"{folder}: cannot write the tokenizer here: {one_line(error)}") from error

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload what `save_pretrained` writes to the Hub; options and result are those of `bart.hub.push`."""
        return push(self.save_pretrained, repo_id, **options)

    # ---- Text to ids

    def __call__(
        self,
        texts: str | Sequence[str] | Sequence[Sequence[str]],
        text_pair: str | Sequence[str] | None = None,
        max_length: int | None = None,
        truncation: bool | str | None = None,
        padding: bool | str = False,
        return_tensors: str | None = None,
        add_prefix_space: bool | None = None,
        add_special_tokens: bool = True,
        return_offsets_mapping: bool = False,
        return_special_tokens_mask: bool = False,
        pad_to_multiple_of: int | None = None,
        is_split_into_words: bool = False,
    ) -> Encoded:
        """Encode one text, or several, or pairs of texts: BART's as `<s> A </s></s> B </s>`, BERT's as `[CLS] A [SEP] B
        [SEP]`. The string of a special token in a text becomes the token.

        Args:
            texts: a text, a list of B texts, or a list of B pairs.
            text_pair: the second text of each; an empty one of a single text counts as none, as in transformers.
            max_length: tokens to keep of a text or pair, special tokens included, at least 3, and those of a pair.
                Default: with truncation or `padding="max_length"`, `model_max_length`.
            truncation: True or "longest_first" to cut at `max_length`, of a pair the longer text first; "only_first" or
                "only_second" to cut that text of a pair; False or "do_not_truncate" for none. Default, as in
                transformers: True if `max_length` is given and there is no padding.
            padding: on the right: False or "do_not_pad" for none, True or "longest" to the longest text of the call,
                "max_length" to `max_length`.
            return_tensors: "pt" for int64 tensors (B, S), "np" for arrays; B = 1 for one text. Default: lists, flat
                for one text.
            add_prefix_space: of byte-level BPE, for this call, in place of the tokenizer's own setting.
            add_special_tokens: false to leave out what begins, separates and ends texts.
            return_offsets_mapping: true for the characters (begin, end) of its text that each id stands for, without
                the space before a word; (0, 0) for special tokens.
            return_special_tokens_mask: true for 1 where an id begins, separates, ends or pads texts, and 0 elsewhere.
            pad_to_multiple_of: with padding, its length becomes a multiple of it.
            is_split_into_words: true if each text is a list of words; offsets then count within a word. Byte-level BPE
                puts a space between words where add_prefix_space is true, and else joins them, as in transformers.

        Returns:
            `input_ids`, `attention_mask`, and where networks read them `token_type_ids`, 1 for a second text and what
            ends it; and `offset_mapping` and `special_tokens_mask`, if asked for.

        Raises:
            InputError: texts that are no strings, hold unpaired surrogates (no Unicode text), or none at all; second
                texts that are not as many; options out of range or without effect; a text of which nothing would be
                left; tensors asked for texts of different lengths without padding.
        """
        strategy, limit = self._limit(max_length, truncation, padding, return_tensors)
        padding = padding != NO_PADDING and padding
        if pad_to_multiple_of is not None:
            check_integer("pad_to_multiple_of", pad_to_multiple_of, 1)
            if strategy and padding and limit % pad_to_multiple_of:
                raise InputError(f"pad_to_multiple_of={pad_to_multiple_of!r}: max_length is {limit}, no multiple of it")

        def is_one(value: Any) -> bool:
            has_words = is_split_into_words and isinstance(value, (list, tuple)) and value
            return isinstance(value[0] if has_words else value, str)

        is_single = is_one(texts)
        may_be_pairs = text_pair is None and not is_split_into_words and isinstance(texts, (list, tuple))
        if may_be_pairs and texts and all(map(_is_pair, texts)):
            texts, text_pair = zip(*texts, strict=True)
        how = (add_prefix_space, return_offsets_mapping, is_split_into_words)
        rows = self._encode([texts] if is_single else texts, *how)
        pairs: list[tuple[Encoding, ...]] = [(row,) for row in rows]
        begin, between, end = (1, self.separators, 1) if add_special_tokens else (0, 0, 0)
        if text_pair is None or (is_single and text_pair == ""):
            if strategy == "only_second" and max(map(len, rows)) > limit - begin - end:
                raise InputError("truncation='only_second' needs text_pair where a text is longer than max_length")
        else:
            if is_single != is_one(text_pair):
                raise InputError("texts and text_pair must both be one text, or both lists of texts")
            seconds = self._encode([text_pair] if is_single else text_pair, *how)
            if len(seconds) != len(rows):
                raise InputError(f"text_pair has {len(seconds)} texts; allowed: {len(rows)}, one for each of texts")
            pairs = list(zip(rows, seconds, strict=True))

        columns: dict[str, list[list[Any]]] = {"input_ids": []}
        for pair in pairs:
            parts = [part.ids for part in pair]
            if strategy and parts[1:]:  # `cut` leaves room for what stands between the texts
                parts = self.cut(*parts, limit + (0 if add_special_tokens else 2 + self.separators), strategy)
            elif strategy:
                parts = [parts[0][: limit - begin - end]]
            row = self._joined(parts, self.bos_token_id, self.eos_token_id, add_special_tokens)
            columns["input_ids"].append(row)
            if self.has_types:
                second = begin + len(parts[0]) + between if parts[1:] else len(row)
                columns.setdefault("token_type_ids", []).append([int(place >= second) for place in range(len(row))])
            if return_offsets_mapping:
                offsets = [encoding.offsets[: len(part)] for encoding, part in zip(pair, parts, strict=True)]
                whole = self._joined(offsets, (0, 0), (0, 0), add_special_tokens)
                columns.setdefault("offset_mapping", []).append(whole)
            if return_special_tokens_mask:
                marks = self._joined([[0] * len(part) for part in parts], 1, 1, add_special_tokens)
                columns.setdefault("special_tokens_mask", []).append(marks)
        return self._batch(columns, is_single, limit, padding, return_tensors, pad_to_multiple_of)

    def encode(self, text: str, text_pair: str | None = None, **options: Any) -> list[int] | torch.Tensor:
        """The `input_ids` of a text or a pair of texts; options are those of a call."""
        if not isinstance(text, str):
            raise InputError(f"text must be a string, got {type(text).__name__}; the tokenizer itself takes a list")
        return self(text, text_pair, **options)["input_ids"]

    def tokenize(self, text: str, pair: str | None = None, add_special_tokens: bool = False) -> list[str]:
        """The tokens of a text or a pair of texts; by default without those that begin, separate and end them."""
        parts = [encoding.tokens for encoding in self._encode([text, *([pair] if pair else [])], with_offsets=True)]
        return self._joined(parts, self.special_tokens[0], self.special_tokens[2], add_special_tokens)

    def _joined(self, parts: Sequence[list[Any]], first: Any, last: Any, is_whole: bool) -> list[Any]:
        """The parts of a text or pair, and if it is whole what begins, separates and ends them."""
        if not is_whole:
            return list(itertools.chain(*parts))
        rest = [*[last] * self.separators, *parts[1]] if parts[1:] else []
        return [first, *parts[0], *rest, last]

    def pad(
        self,
        encoded_inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        padding: bool | str = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        return_tensors: str | None = None,
    ) -> Encoded:
        """Pad what calls gave, such as a batch that a DataLoader collates.

        Args:
            encoded_inputs: the result of a call, or a list of results for one text each. What has no place for each
                token, such as a label, is left as it is.
            padding, return_tensors: as in a call; tensors give tensors.
            max_length: of padding="max_length"; by default `model_max_length`.
            pad_to_multiple_of: the padded length becomes a multiple of it.

        Raises:
            InputError: there are no input_ids; options out of range; tensors asked for of values that fit none.
        """
        if not isinstance(encoded_inputs, Mapping):
            rows = list(encoded_inputs)
            encoded_inputs = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
        if "input_ids" not in encoded_inputs:
            raise InputError(f"pad() got {', '.join(encoded_inputs) or 'nothing'}; allowed: input_ids and other names")
        _, limit = self._limit(max_length, False, "max_length" if max_length else padding, return_tensors)
        self._limit(None, False, padding, return_tensors)
        padding = padding != NO_PADDING and padding
        columns = {name: _without_tensors(values) for name, values in encoded_inputs.items()}
        is_single = not columns["input_ids"] or not isinstance(columns["input_ids"][0], list)
        if any(map(torch.is_tensor, encoded_inputs["input_ids"])):
            return_tensors = return_tensors or "pt"
        if is_single:
            columns = {name: [values] for name, values in columns.items()}
        return self._batch(columns, is_single, limit, padding, return_tensors, pad_to_multiple_of)

    def encode_many(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """The ids of texts, each with what begins and ends it, at most max_length of them."""
        check_integer("max_length", max_length, 3)
        rows = self._encode(texts)
        return [[self.bos_token_id, *row.ids[: max_length - 2], self.eos_token_id] for row in rows]

    def cut(
        self, first: list[int], second: list[int], most: int, strategy: str = "longest_first"
    ) -> tuple[list[int], list[int]]:
        """Cut the ids of a pair of texts so that `join` makes at most so many of them, as transformers does it.

        Raises:
            InputError: `most` has no room for special tokens; nothing would be left of the one text that may be cut.
        """
        check_integer("max_length", most, 2 + self.separators)
        room = most - 2 - self.separators
        over = len(first) + len(second) - room
        if over <= 0:
            return first, second
        if strategy != "longest_first" and room:
            cut = first if strategy == "only_first" else second
            if over >= len(cut):
                raise InputError(
                    f"truncation={strategy!r}: a pair has {over} tokens too many, and that text {len(cut)}; give a "
                    "greater max_length, or truncation=True"
                )
            return (first[:-over], second) if strategy == "only_first" else (first, second[:-over])
        shorter = min(len(first), len(second), room // 2)
        if len(first) <= len(second):
            return first[:shorter], second[: room - shorter]
        return first[: room - shorter], second[:shorter]

    def join(self, first: list[int], second: list[int]) -> tuple[list[int], int]:
        """The ids of a pair of texts, with what begins, separates and ends them; and where the second text begins."""
        ids = self._joined([first, second], self.bos_token_id, self.eos_token_id, True)
        return ids, 1 + len(first) + self.separators

    def _limit(
        self, max_length: int | None, truncation: bool | str | None, padding: bool | str, return_tensors: str | None
    ) -> tuple[str | None, int]:
        """Check a call's options; return the strategy of truncation, or None, and the number of tokens to keep."""
        for name, value, allowed in (
            ("padding", padding, (False, True, "longest", "max_length", NO_PADDING)),
            ("return_tensors", return_tensors, (None, "pt", "np")),
            ("truncation", truncation, (None, False, True, *_STRATEGIES)),
        ):
            if value not in allowed:
                raise InputError(f"{name}={value!r}: give one of {allowed}")
        if truncation is None:
            truncation = max_length is not None and not padding
        strategy = {True: "longest_first", False: None, "do_not_truncate": None}.get(truncation, truncation)
        if max_length is not None:
            check_integer("max_length", max_length, 3)
            if strategy is None and padding != "max_length":
                raise InputError(f"max_length={max_length} needs truncation=True or padding='max_length'")
        return strategy, self.model_max_length if max_length is None else max_length

    def _batch(
        self,
        columns: dict[str, list[Any]],
        is_single: bool,
        limit: int,
        padding: bool | str,
        return_tensors: str | None,
        multiple: int | None = None,
    ) -> Encoded:
        """Rows of `input_ids` and of other numbers of each token, padded, with their mask."""
        rows, width = columns["input_ids"], 0
        if padding:
            width = limit if padding == "max_length" else max(map(len, rows))
        if padding and multiple is not None:
            check_integer("pad_to_multiple_of", multiple, 1)
            width += -width % multiple
        missing = [width - len(row) for row in rows]
        columns.setdefault("attention_mask", [[1] * len(row) for row in rows])
        for name in _OF_TOKENS & columns.keys():
            fillers = {"input_ids": self.pad_token_id, "offset_mapping": (0, 0), "special_tokens_mask": 1}
            filler = fillers.get(name, 0)
            columns[name] = [row + [filler] * more for row, more in zip(columns[name], missing, strict=True)]
        if return_tensors:
            if len(set(map(len, columns["input_ids"]))) > 1:
                raise InputError(
                    f"return_tensors={return_tensors!r}: the {len(rows)} texts have different lengths, so give "
                    "padding=True (with truncation=True if one is longer than max_length)"
                )
            try:
                tensors = {name: torch.tensor(values) for name, values in columns.items()}
            except (TypeError, ValueError) as error:
                names = ", ".join(columns)
                raise InputError(f"return_tensors={return_tensors!r}: {names} make no tensors ({error})") from error
            return Encoded({name: x if return_tensors == "pt" else x.numpy() for name, x in tensors.items()})
        return Encoded({name: values[0] if is_single else values for name, values in columns.items()})

    def _encode(
        self,
        texts: Sequence[Any],
        add_prefix_space: bool | None = None,
        with_offsets: bool = False,
        are_words: bool = False,
    ) -> list[Encoding]:
        if add_prefix_space is not None:
            raise InputError(f"add_prefix_space={add_prefix_space!r} is an option of byte-level BPE alone")
        return self._encodings(texts, None, with_offsets, are_words)

    def _encodings(
        self, texts: Sequence[Any], backend: Tokenizer | None, with_offsets: bool, are_words: bool
    ) -> list[Encoding]:
        if not isinstance(texts, Sequence) or isinstance(texts, bytes):
            raise InputError(f"texts must be a string or a list of strings, got {type(texts).__name__}")
        texts = list(texts)
        if not texts:
            raise InputError("texts is empty: give at least one text")
        for index, text in enumerate(texts):
            if are_words and not (isinstance(text, (list, tuple)) and all(isinstance(word, str) for word in text)):
                raise InputError(f"texts[{index}] must be a list of words (is_split_into_words), got {text!r:.40}")
            if not are_words and not isinstance(text, str):
                raise InputError(f"texts[{index}] must be a string, got {type(text).__name__}")
        backend = backend or self._backend
        try:
            encode = backend.encode_batch if with_offsets else backend.encode_batch_fast
            return encode(texts, are_words, add_special_tokens=False)
        except TypeError:
            for index, text in enumerate(map("".join, texts)):
                if surrogate := _SURROGATE.search(text):
                    at = f"{surrogate[0]!r} at character {surrogate.start()}"
                    raise InputError(f"texts[{index}]: unpaired surrogate {at}") from None
            raise


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


def _parsed(parse: Callable[[str], Tokenizer], given: str, source: str) -> Tokenizer:
    try:
        return parse(given)
    except Exception as error:  # the library raises bare Exception for every fault of file and text
        raise InputError(f"{source}: not a tokenizer.json: {one_line(error)}") from error


def _is_pair(texts: object) -> bool:
    return isinstance(texts, (list, tuple)) and len(texts) == 2


def _without_tensors(values: Any) -> Any:
    """Lists in place of tensors and arrays, also of those in a list."""
    if isinstance(values, (list, tuple)):
        return [_without_tensors(value) for value in values]
    return values.tolist() if hasattr(values, "tolist") else values


def check_integer(name: str, value: object, smallest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
        raise InputError(f"{name}={value!r}: give a whole number from {smallest}")


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
