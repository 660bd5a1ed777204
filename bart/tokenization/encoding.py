"""Text to ids over the `tokenizers` library: calls, batches, padding, pairs of texts.

Shapes: B batch, S sequence length in tokens, special tokens included.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from tokenizers import Encoding, Tokenizer

from bart.errors import InputError
from bart.inputs import check_others
from bart.tokenization.vocabulary import Vocabulary

_SURROGATE = re.compile("[\ud800-\udfff]")
# What fills the columns with a place for each token, besides the ids.
_FILLERS = {"attention_mask": 0, "token_type_ids": 0, "offset_mapping": (0, 0), "special_tokens_mask": 1}
_CHOICES = {
    "padding": (False, True, "longest", "max_length", "do_not_pad"),
    "return_tensors": (None, "pt", "np"),
    "truncation": (None, False, True, "longest_first", "only_first", "only_second", "do_not_truncate"),
}


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


class TextEncoder(Vocabulary):
    """A vocabulary that turns texts into ids.

    Attributes:
        special_tokens: those that begin a text, pad it, end it, stand for what is unknown, and for what is masked.
        separators: how many end tokens lie between the texts of a pair.
        has_types: true if networks read which tokens are of the second text of a pair.
        bos_token_id, pad_token_id, eos_token_id: the ids of the first three special tokens, of BERT too.
        model_max_length: the longest sequence, special tokens included, when truncation names no other. Settable.

    Calls share no state, so threads may use one tokenizer with different options.
    """

    special_tokens: tuple[str, str, str, str, str]
    separators: ClassVar[int]
    has_types: ClassVar[bool] = False
    bos_token_id: int
    pad_token_id: int
    eos_token_id: int
    model_max_length: int

    # ---- Text to ids

    def __call__(
        self,
        text: str | Sequence[str] | Sequence[Sequence[str]],
        text_pair: str | Sequence[str] | None = None,
        *,
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
        **others: Any,
    ) -> Encoded:
        """Encode one text, or several, or pairs of texts: BART's as `<s> A </s></s> B </s>`, BERT's as `[CLS] A [SEP] B
        [SEP]`. The string of a special token in a text becomes the token.

        Args:
            text: a text, a list of B texts, or a list of B pairs.
            text_pair: the second text of each; an empty one of a single text counts as none, as in transformers.
            max_length: tokens to keep of a text or pair, special tokens included; at least 3, and the number of a
                pair's special tokens, or without these 1. Default: with truncation or `padding="max_length"`,
                `model_max_length`.
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
            others: of transformers, at values that change nothing.

        Returns:
            `input_ids`, `attention_mask`, and where networks read them `token_type_ids`, 1 for a second text and what
            ends it; and `offset_mapping` and `special_tokens_mask`, if asked for.

        Raises:
            InputError: texts that are no strings, hold unpaired surrogates (no Unicode text), or none at all; second
                texts that are not as many; options out of range or without effect; a text of which nothing would be
                left; tensors asked for texts of different lengths without padding.
        """
        if others:
            check_others(type(self).__name__, inspect.signature(self).parameters, others)
        choices = {"padding": padding, "return_tensors": return_tensors, "truncation": truncation}
        limit = self._limit(max_length, pad_to_multiple_of, 3 if add_special_tokens else 1, **choices)
        if truncation is None:
            truncation = max_length is not None and not padding
        strategy = {True: "longest_first", False: None, "do_not_truncate": None}.get(truncation, truncation)
        if max_length is not None and strategy is None and padding != "max_length":
            raise InputError(f"max_length={max_length} needs truncation=True or padding='max_length'")
        padding = padding != "do_not_pad" and padding
        if strategy and padding and pad_to_multiple_of is not None and limit % pad_to_multiple_of:
            raise InputError(f"pad_to_multiple_of={pad_to_multiple_of!r}: max_length is {limit}, no multiple of it")

        how = (add_prefix_space, return_offsets_mapping, is_split_into_words)
        pairs, is_single = self._encode_pairs(text, text_pair, *how)
        columns: dict[str, list[list[Any]]] = {"input_ids": []}
        for pair in pairs:
            parts = self._cut_parts([encoding.ids for encoding in pair], limit, strategy, add_special_tokens)
            row = self._joined(parts, self.bos_token_id, self.eos_token_id, add_special_tokens)
            columns["input_ids"].append(row)
            if self.has_types:
                second = len(parts[0]) + (1 + self.separators if add_special_tokens else 0) if parts[1:] else len(row)
                columns.setdefault("token_type_ids", []).append([int(place >= second) for place in range(len(row))])
            if return_offsets_mapping:
                offsets = [encoding.offsets[: len(part)] for encoding, part in zip(pair, parts, strict=True)]
                whole = self._joined(offsets, (0, 0), (0, 0), add_special_tokens)
                columns.setdefault("offset_mapping", []).append(whole)
            if return_special_tokens_mask:
                marks = self._joined([[0] * len(part) for part in parts], 1, 1, add_special_tokens)
                columns.setdefault("special_tokens_mask", []).append(marks)
        return self._batch(columns, is_single, limit, padding, return_tensors, pad_to_multiple_of)

    def _encode_pairs(
        self, texts: Any, text_pair: Any, add_prefix_space: bool | None, with_offsets: bool, are_words: bool
    ) -> tuple[list[tuple[Encoding, ...]], bool]:
        """One or two encodings for each of the texts of a call, and true if it is of one text or pair."""

        def is_one(value: Any) -> bool:
            has_words = are_words and isinstance(value, (list, tuple)) and value
            return isinstance(value[0] if has_words else value, str)

        is_single = is_one(texts)
        may_be_pairs = text_pair is None and not are_words and isinstance(texts, (list, tuple))
        if may_be_pairs and texts and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in texts):
            texts, text_pair = zip(*texts, strict=True)
        firsts = self._encode([texts] if is_single else texts, add_prefix_space, with_offsets, are_words)
        if text_pair is None or (is_single and text_pair == ""):
            return [(first,) for first in firsts], is_single
        if is_single != is_one(text_pair):
            raise InputError("texts and text_pair must both be one text, or both lists of texts")
        seconds = self._encode([text_pair] if is_single else text_pair, add_prefix_space, with_offsets, are_words)
        if len(seconds) != len(firsts):
            raise InputError(f"text_pair has {len(seconds)} texts; allowed: {len(firsts)}, one for each of texts")
        return list(zip(firsts, seconds, strict=True)), is_single

    def _cut_parts(
        self, parts: list[list[int]], limit: int, strategy: str | None, is_whole: bool
    ) -> Sequence[list[int]]:
        """The ids of a text or pair, cut to `limit` tokens, with those that `_joined` adds if it is whole."""
        if strategy is None:
            return parts
        if parts[1:]:  # `cut` leaves room for what stands between the texts
            return self.cut(*parts, limit + (0 if is_whole else 2 + self.separators), strategy)
        room = limit - (2 if is_whole else 0)
        if strategy == "only_second" and len(parts[0]) > room:
            raise InputError("truncation='only_second' needs text_pair where a text is longer than max_length")
        return [parts[0][:room]]

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
        *,
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
        limit = self._limit(max_length, pad_to_multiple_of, padding=padding, return_tensors=return_tensors)
        padding = padding != "do_not_pad" and padding
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

    def _limit(self, max_length: int | None, multiple: int | None, least: int = 3, **choices: object) -> int:
        """Check a call's options; return the number of tokens to keep."""
        for name, value in choices.items():
            if value not in _CHOICES[name]:
                raise InputError(f"{name}={value!r}: give one of {_CHOICES[name]}")
        if multiple is not None:
            check_integer("pad_to_multiple_of", multiple, 1)
        if max_length is None:
            return self.model_max_length
        check_integer("max_length", max_length, least)
        return max_length

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
            width += -width % multiple
        missing = [width - len(row) for row in rows]
        columns.setdefault("attention_mask", [[1] * len(row) for row in rows])
        fillers = {"input_ids": self.pad_token_id, **_FILLERS}
        for name in fillers.keys() & columns.keys():
            columns[name] = [row + [fillers[name]] * more for row, more in zip(columns[name], missing, strict=True)]
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

    def _backend_for(self, add_prefix_space: bool | None) -> Tokenizer:
        """The pipeline of a call, in place of the tokenizer's own setting with that of the call."""
        if add_prefix_space:
            raise InputError(f"add_prefix_space={add_prefix_space!r} is an option of byte-level BPE alone")
        return self._backend

    def _encode(
        self,
        texts: Sequence[Any],
        add_prefix_space: bool | None = None,
        with_offsets: bool = False,
        are_words: bool = False,
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
        backend = self._backend_for(add_prefix_space)
        try:
            encode = backend.encode_batch if with_offsets else backend.encode_batch_fast
            return encode(texts, are_words, add_special_tokens=False)
        except TypeError:
            for index, text in enumerate(map("".join, texts)):
                if surrogate := _SURROGATE.search(text):
                    at = f"{surrogate[0]!r} at character {surrogate.start()}"
                    raise InputError(f"texts[{index}]: unpaired surrogate {at}") from None
            raise


def _without_tensors(values: Any) -> Any:
    """Lists in place of tensors and arrays, also of those in a list."""
    if isinstance(values, (list, tuple)):
        return [_without_tensors(value) for value in values]
    return values.tolist() if hasattr(values, "tolist") else values


def check_integer(name: str, value: object, smallest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
        raise InputError(f"{name}={value!r}: give a whole number from {smallest}")
