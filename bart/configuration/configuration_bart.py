"""The architecture of a BART model, in the fields of the published `config.json` files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError
from bart.files import read_json, write_json

ACTIVATIONS = ("gelu", "relu", "gelu_new", "silu")

# Fields of published configs that are like known ones, but no misspellings of them.
_ALIKE = ("source_encoder_layers", "source_vocab_size", "sep_token_id", "static_position_embeddings", "classif_dropout")
# Values of fields that mean a network that modeling_bart.py does not implement.
_UNSUPPORTED = {
    "static_position_embeddings": True,
    "normalize_embedding": False,
    "tie_word_embeddings": False,
    "add_bias_logits": True,
    "is_encoder_decoder": False,
}


@dataclass(init=False)
class BartConfig:
    """Architecture of a BART model; the defaults are `facebook/bart-large`.

    Other keywords are kept in `extra`; they can be read and set as attributes, and `to_dict` writes them back. Decoding
    options among them (`num_beams`, `length_penalty`, …) become the model's generation defaults.

    Raises:
        InputError: a keyword looks like a misspelt field, or a value is out of range.
    """

    vocab_size: int = 50265
    max_position_embeddings: int = 1024  # positions a source or target may have; the table has 2 rows more
    d_model: int = 1024
    encoder_layers: int = 12
    encoder_attention_heads: int = 16
    encoder_ffn_dim: int = 4096
    encoder_layerdrop: float = 0.0  # probability of skipping a whole layer in training (Fan et al., 2020)
    decoder_layers: int = 12
    decoder_attention_heads: int = 16
    decoder_ffn_dim: int = 4096
    decoder_layerdrop: float = 0.0
    dropout: float = 0.1  # on embeddings and on every branch before its residual addition
    attention_dropout: float = 0.0  # on attention weights
    activation_dropout: float = 0.0  # after the feed-forward activation
    classifier_dropout: float = 0.0  # before and within a head that classifies
    activation_function: str = "gelu"
    init_std: float = 0.02
    scale_embedding: bool = False  # multiply token embeddings by sqrt(d_model)
    pre_ln: bool = False  # norms inside the residual branches, one more after each stack (mBART's arrangement)
    pad_token_id: int = 1
    bos_token_id: int = 0
    eos_token_id: int = 2
    decoder_start_token_id: int = 2

    def __init__(self, **fields: Any) -> None:
        object.__setattr__(self, "extra", {})
        if fields.get("model_type") == "mbart" or fields.get("normalize_before"):
            fields.setdefault("pre_ln", True)
        for field in dataclasses.fields(self):
            value = fields.pop(field.name, None)  # transformers writes null for what is not set
            setattr(self, field.name, field.default if value is None else value)
        for name, value in fields.items():
            setattr(self, name, value)
        self.validate()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIELD_NAMES or name == "labels":
            object.__setattr__(self, name, value)
            return
        if name not in self.extra and name not in _ALIKE and name not in _DECODING_NAMES:
            near = get_close_matches(name, [*_FIELD_NAMES, *_DECODING_NAMES], n=1, cutoff=0.8)
            if near:
                raise InputError(f"config field {name!r} is unknown; did you mean {near[0]!r}?")
        self.extra[name] = value

    def __getattr__(self, name: str) -> Any:
        # Called only where normal lookup fails. While a copy is unpickled, `extra` itself is missing.
        if name != "extra" and name in self.__dict__.get("extra", {}):
            return self.extra[name]
        raise AttributeError(f"BartConfig has no field {name!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BartConfig) and self.to_dict() == other.to_dict()

    @property
    def labels(self) -> list[str]:
        """Names of a head's labels, in the order of its outputs; by default transformers' three."""
        named = self.extra.get("id2label") or {}
        if named:
            return [str(named[key]) for key in sorted(named, key=int)]
        return [f"LABEL_{number}" for number in range(self.extra.get("num_labels") or 3)]

    @labels.setter
    def labels(self, names: Sequence[str]) -> None:
        self.extra.pop("num_labels", None)  # which transformers takes from these
        self.extra["id2label"] = {str(number): name for number, name in enumerate(names)}
        self.extra["label2id"] = {name: number for number, name in enumerate(names)}

    @property
    def has_unnamed_labels(self) -> bool:
        """Whether the labels have but numbers, as transformers writes them."""
        return self.labels == [f"LABEL_{number}" for number in range(len(self.labels))]

    @property
    def source_encoder_layers(self) -> int:
        """Layers of an encoder that reads sources of another vocabulary in place of the encoder's token embeddings."""
        return self.extra.get("source_encoder_layers") or 0

    @property
    def source_vocab_size(self) -> int:
        """Ids that sources may have."""
        return self.extra.get("source_vocab_size") or self.vocab_size

    def validate(self) -> None:
        """Raise InputError naming the first field whose value no BART can have."""

        def check(ok: bool, name: str, allowed: str) -> None:
            if not ok:
                raise InputError(f"config field {name!r} is {getattr(self, name)!r}; allowed: {allowed}")

        for name in _FIELD_NAMES:
            value = getattr(self, name)
            if _FIELD_TYPES[name] == "int":
                least = 0 if name.endswith("_token_id") else 1
                check(type(value) is int and value >= least, name, f"an integer of at least {least}")
            elif _FIELD_TYPES[name] == "bool":
                check(type(value) is bool, name, "true or false")
            elif _FIELD_TYPES[name] == "float":
                number = isinstance(value, (int, float)) and not isinstance(value, bool)
                if name == "init_std":
                    check(number and value > 0, name, "a positive number")
                else:
                    check(number and 0 <= value < 1, name, "a number from 0 up to, not including, 1")
        check(self.activation_function in ACTIVATIONS, "activation_function", ", ".join(ACTIVATIONS))
        for name in ("encoder_attention_heads", "decoder_attention_heads"):
            check(self.d_model % getattr(self, name) == 0, name, f"a divisor of d_model ({self.d_model})")
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
            check(getattr(self, name) < self.vocab_size, name, f"below vocab_size ({self.vocab_size})")
        for name, least in (("source_encoder_layers", 0), ("source_vocab_size", 1)):
            check(
                type(getattr(self, name)) is int and getattr(self, name) >= least,
                name,
                f"an integer of at least {least}",
            )
        for name, value in _UNSUPPORTED.items():
            if self.extra.get(name) is value:
                raise InputError(f"config field {name!r} is {value!r}; this BART supports only {not value!r}")

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> BartConfig:
        """Read a config.json of ours or of the Hub.

        Raises:
            InputError: the file is missing, is not a JSON object, or holds a bad field (the message names the file).
        """
        path = Path(path)
        fields = read_json(path)
        try:
            return cls(**fields)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """All fields, known and unknown, as a config.json holds them."""
        return {name: getattr(self, name) for name in _FIELD_NAMES} | self.extra

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the config as JSON."""
        write_json(Path(path), self.to_dict())


_FIELD_TYPES = {field.name: str(field.type) for field in dataclasses.fields(BartConfig)}
_FIELD_NAMES = tuple(_FIELD_TYPES)
_DECODING_NAMES = frozenset(field.name for field in dataclasses.fields(GenerationConfig)) - set(_FIELD_NAMES)
