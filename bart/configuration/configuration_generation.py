"""Decoding options: their names, defaults and limits."""

from __future__ import annotations

import dataclasses
import difflib
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from textwrap import shorten
from typing import Any, NoReturn

from bart.elsewhere import INSTEAD, missing
from bart.errors import InputError, in_short

# Options of transformers that change the result and are not built here, with the value that changes nothing.
_NOT_BUILT = dict.fromkeys(("typical_p", "encoder_repetition_penalty", "guidance_scale"), 1.0) | dict.fromkeys(
    "epsilon_cutoff eta_cutoff penalty_alpha min_p top_h dola_layers sequence_bias suppress_tokens "
    "begin_suppress_tokens forced_decoder_ids constraints exponential_decay_length_penalty force_words_ids "
    "renormalize_logits stop_strings token_healing watermarking_config prompt_lookup_num_tokens output_logits "
    "output_attentions output_hidden_states".split()
)
_NOT_BUILT["max_time"] = math.inf
# What files of transformers hold besides, without an effect on the ids.
_BOOKKEEPING = set(
    "_from_model_config _commit_hash transformers_version use_cache cache_implementation output_attentions "
    "output_hidden_states remove_invalid_values force_bos_token_to_be_generated".split()
)
_DEFAULT_NEW_TOKENS = 20
# The least values of integers; 0 for those that are not named.
_LEAST = {"max_length": 2, "max_new_tokens": 1, "num_beams": 1, "num_return_sequences": 1}
# The ranges of finite numbers, and their names.
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: value > 0, "a finite number above 0"),
    "repetition_penalty": (lambda value: value > 0, "a finite number above 0"),
    "length_penalty": (lambda value: True, "a finite number"),
    "diversity_penalty": (lambda value: value == 0, "0, as there are no beam groups: do_sample draws other sequences"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
}


@dataclass(init=False)
class GenerationConfig:
    """Options of :func:`bart.generation.generate`; names, defaults and meaning are those of transformers. `vars` of it
    are those that were given.

    Lengths count decoder ids, the start token included. ``None`` means "off" where it is not the default. Options of a
    method that is not in use (``temperature`` without sampling) have no effect.

    Raises:
        InputError: a value out of range, or options that exclude each other.
    """

    max_length: int | None = None
    """Longest sequence, at least 2. ``None``: 21, or what the model's positions allow if that is less."""
    min_length: int = 0
    """EOS is banned while the sequence is shorter than this."""
    max_new_tokens: int | None = None
    """Most ids after the start token; takes the place of ``max_length``, which is one more."""
    min_new_tokens: int | None = None
    """Fewest ids after the start token before EOS is allowed; takes the place of ``min_length``, which is one more."""

    num_beams: int = 1
    """Beams per article; 1 is greedy search, or plain sampling."""
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    """Diverse beam groups are not built: these two options have one value each, which transformers writes."""
    length_penalty: float = 1.0
    """A finished hypothesis scores (sum of log-probabilities) / (ids after the start token) ** length_penalty."""
    early_stopping: bool | str = False
    """When an article with num_beams finished hypotheses is done. ``True``: at once. ``False``: when the best open
    beam, normalised at its present length, is no better than the worst of them. ``"never"``: as ``False``, but
    normalised at ``max_length`` if the length penalty is positive."""
    num_return_sequences: int = 1
    """Sequences returned per article, best first: at most num_beams, or any number when sampling without beams."""

    do_sample: bool = False
    """Draw the next token (with beams: the next candidates) at random instead of taking the best."""
    temperature: float = 1.0
    """Scores are divided by it when sampling."""
    top_k: int = 50
    """When sampling, only the top_k best tokens stay, and ties with the last of them (0: all)."""
    top_p: float = 1.0
    """When sampling, only the smallest set of best tokens whose probabilities sum to top_p stays."""

    no_repeat_ngram_size: int = 0
    """No n-gram of this size occurs twice in a sequence (0: off)."""
    encoder_no_repeat_ngram_size: int = 0
    """No n-gram of this size is taken from the source (0: off)."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative scores of ids that the sequence holds (Keskar et al., 2019)."""
    bad_words_ids: list[list[int]] | None = None
    """Id sequences that are never generated. One that is a single EOS is ignored."""
    forced_bos_token_id: int | None = None
    """The id right after the start token."""
    forced_eos_token_id: int | list[int] | None = None
    """The id, or one of the ids, in the last place of a sequence as long as max_length."""

    pad_token_id: int | None = None
    """Fills sequences after their end. ``None``: the first EOS id."""
    bos_token_id: int | None = None
    """The start token if decoder_start_token_id is ``None``."""
    eos_token_id: int | list[int] | None = None
    """The id, or ids, that end a sequence. ``None``: every sequence runs to max_length."""
    decoder_start_token_id: int | None = None
    """The first id of every sequence. ``None``: bos_token_id."""

    output_scores: bool = False
    """Return the scores of every step, and with beams of every sequence; needs return_dict_in_generate to be seen."""
    return_dict_in_generate: bool = False
    """Return a GenerationOutput instead of the ids alone."""

    def __init__(self, **options: Any) -> None:
        for name, value in options.items():
            setattr(self, name, value)
            option = _OPTIONS[name]
            if value is not None:
                ok, allowed = _check(option, value)
                self._require(ok, name, allowed)
            elif option.default is not None:
                # top_k is the one option whose default is not its neutral value.
                setattr(self, name, 0 if name == "top_k" else option.default)
        self._require(self.num_beam_groups == 1, "num_beam_groups", "1; do_sample draws other sequences")
        beams = self.num_beams
        if beams > 1 or not self.do_sample:
            allowed = f"at most num_beams ({beams})" + ("" if beams > 1 else " without do_sample")
            self._require(self.num_return_sequences <= beams, "num_return_sequences", allowed)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, n=1, cutoff=0.8)
            hint = INSTEAD.get(name, "leave it off, or give a logits_processor that does it")
            hint = f"did you mean {near[0]!r}?" if near else hint
            raise InputError(f"{name} is {shorten(repr(value), 80)}, which is no generation option here: {hint}")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> NoReturn:
        raise missing(self, name)

    def _require(self, ok: bool, name: str, allowed: str) -> None:
        if not ok:
            raise InputError(f"{name} is {getattr(self, name)!r}; allowed: {allowed}")

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> GenerationConfig:
        """Options of a generation_config.json, without unknown ones; a warning names those that could change ids."""
        given = cls.effective(options)
        without_effect = {*_OPTIONS, *_BOOKKEEPING, *(_NOT_BUILT.keys() - given.keys())}
        if unknown := [name for name, value in options.items() if value and name not in without_effect]:
            warnings.warn(f"generation config: options not supported here are ignored: {unknown}", stacklevel=2)
        return cls(**{name: value for name, value in given.items() if name in _OPTIONS})

    @classmethod
    def given_in(cls, config: Any) -> dict[str, Any]:
        """The options given in a config, ours or one of transformers, or in a dict; InputError for others."""
        if hasattr(config, "to_dict"):
            return vars(config) if isinstance(config, cls) else cls.effective(config.to_dict())
        if config is not None and not isinstance(config, Mapping):
            allowed = "a GenerationConfig, or a dict of its fields"
            raise InputError(f"generation_config is {in_short(config)}; allowed: {allowed}")
        return {name: value for name, value in (config or {}).items() if value is not None}

    @classmethod
    def effective(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the options that have a value and are built here, or are not and could change the result."""
        given = {name: value for name, value in options.items() if value is not None}
        # Of transformers 2 and 3, which had it in the model's config alone.
        if given.get("_from_model_config") and given.pop("force_bos_token_to_be_generated", False):
            given["forced_bos_token_id"] = given.get("bos_token_id")
        # 0 and empty lists switch an option off, unless another number does.
        missed = {name for name, off in _NOT_BUILT.items() if (given.get(name) != off if off else given.get(name))}
        return {name: value for name, value in given.items() if name in missed or name in _OPTIONS}

    @classmethod
    def from_model_config(cls, fields: Mapping[str, Any]) -> GenerationConfig:
        """The decoding options among the fields of a model's configuration, its special ids included.

        As of transformers' BART, EOS is forced at ``max_length`` unless the config has ``forced_eos_token_id``.
        """
        known = {*_OPTIONS, *_NOT_BUILT, "force_bos_token_to_be_generated"}
        options = {name: value for name, value in fields.items() if name in known}
        return cls.from_dict({"forced_eos_token_id": fields["eos_token_id"], "_from_model_config": True} | options)

    def to_dict(self) -> dict[str, Any]:
        """Every option by name; ``from_dict`` reverses this, and transformers reads it."""
        return dataclasses.asdict(self)

    def choices(self) -> dict[str, Any]:
        """The options by name that are not at their defaults, ids of tokens aside."""
        changed = {name: value for name, value in self.to_dict().items() if value != _OPTIONS[name].default}
        return {name: value for name, value in changed.items() if not name.endswith("token_id")}

    def merged(self, **options: Any) -> GenerationConfig:
        """A copy with some options replaced; InputError for an unknown option, or a bad value."""
        return GenerationConfig(**{**vars(self), **options})

    @property
    def eos_token_ids(self) -> list[int]:
        """All ids that end a sequence; may be empty."""
        return _as_list(self.eos_token_id)

    @property
    def forced_eos_token_ids(self) -> list[int]:
        """All ids allowed in the last place of a sequence as long as max_length; empty: any."""
        return _as_list(self.forced_eos_token_id)

    @property
    def fill_token_id(self) -> int | None:
        """The id that fills sequences after their end; None if nothing ends before max_length."""
        return self.pad_token_id if self.pad_token_id is not None else next(iter(self.eos_token_ids), None)

    @property
    def start_token_id(self) -> int:
        """The first decoder id; InputError where neither decoder_start_token_id nor bos_token_id is set."""
        start = self.decoder_start_token_id if self.decoder_start_token_id is not None else self.bos_token_id
        if start is None:
            raise InputError("decoder_start_token_id and bos_token_id are both None; one of them must be an id")
        return start

    @property
    def shortest(self) -> int:
        """The length from which on EOS is allowed."""
        return self.min_length if self.min_new_tokens is None else self.min_new_tokens + 1

    def longest(self, positions: int) -> int:
        """The greatest length of a sequence, at most one more than the positions, for the last id is never read."""
        if self.max_new_tokens is not None:
            name, value, start = "max_new_tokens", self.max_new_tokens, 1
        elif self.max_length is not None:
            name, value, start = "max_length", self.max_length, 0
        else:
            return max(2, min(_DEFAULT_NEW_TOKENS + 1, positions))
        if value + start > positions + 1:
            most = positions + 1 - start
            raise InputError(f"{name} is {value}; allowed: at most {most}, for the model has {positions} positions")
        return value + start

    def check_vocabulary(self, size: int) -> None:
        """Raise InputError if an option holds an id outside a vocabulary of that size, or all ids are EOS."""
        for name, ids in {
            "bad_words_ids": [token for word in self.bad_words_ids or [] for token in word],
            "forced_bos_token_id": _as_list(self.forced_bos_token_id),
            "forced_eos_token_id": self.forced_eos_token_ids,
            "eos_token_id": self.eos_token_ids,
            "pad_token_id": _as_list(self.pad_token_id),
            "decoder_start_token_id": [self.start_token_id],
        }.items():
            if max(ids, default=0) >= size:
                raise InputError(f"{name} holds {max(ids)}; allowed: ids below the vocabulary's size, {size}")
        if len(self.eos_token_ids) >= size:
            raise InputError(f"eos_token_id holds {len(self.eos_token_ids)} ids; allowed: fewer than there are, {size}")


_OPTIONS = {option.name: option for option in dataclasses.fields(GenerationConfig)}


def _check(option: dataclasses.Field[Any], value: Any) -> tuple[bool, str]:
    """True if a value that is not None is in the option's range; and the range in words."""
    name = option.name
    kind = str(option.type).removesuffix(" | None")
    if kind == "bool":
        return isinstance(value, bool), "True or False"
    if kind == "int":
        least = _LEAST.get(name, 0)
        return type(value) is int and value >= least, f"an integer of at least {least}"
    if kind == "float":
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        in_range, allowed = _RANGES[name]
        return is_number and in_range(value), allowed
    if name == "early_stopping":
        return isinstance(value, bool) or value == "never", 'True, False or "never"'
    if name == "bad_words_ids":
        return isinstance(value, list) and all(map(_is_ids, value)), "a list of lists of ids, none of them empty"
    return _is_ids([value]) or _is_ids(value), "an id or a list of ids"


def _as_list(ids: int | list[int] | None) -> list[int]:
    return [ids] if isinstance(ids, int) else list(ids or [])


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(type(item) is int and item >= 0 for item in value)
