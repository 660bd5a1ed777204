"""The base of the configs of all architectures: fields of published `config.json` files, labels, JSON."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from bart.configuration.configuration_generation import GenerationConfig
from bart.elsewhere import RECORDED, missing
from bart.errors import InputError, naming
from bart.files import PathName, read_json
from bart.hub import resolve

if TYPE_CHECKING:
    from typing import Self

Config = TypeVar("Config", bound="ModelConfig")
CONFIG_FILE, GENERATION_FILE = "config.json", "generation_config.json"
ACTIVATIONS = ("gelu", "relu", "gelu_new", "silu")
REGRESSION, SINGLE_LABEL, MULTI_LABEL = PROBLEMS = (
    "regression",
    "single_label_classification",
    "multi_label_classification",
)
# Those of `ModelConfig.supported` that all networks of transformers may have.
OF_ALL_NETWORKS = {"tie_word_embeddings": (True,), "pruned_heads": ({},), "quantization_config": (None,)}
# For fields that may be missing: a test of their values, and the values that are allowed.
OF_LABELS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "id2label": (
        lambda value: isinstance(value, Mapping) and {*map(str, value)} == {*map(str, range(len(value)))},
        "an object with names of labels by their numbers, from 0 on without a gap",
    ),
    "label2id": (lambda value: isinstance(value, Mapping), "an object with numbers of labels by their names"),
    "num_labels": (lambda value: type(value) is int and value >= 1, "an integer of at least 1"),
    "problem_type": (lambda value: value in PROBLEMS, ", ".join(PROBLEMS)),
}


class ModelConfig:
    """The architecture of a network; a subclass is a dataclass of its fields. Other keywords are kept in `extra`.

    Attributes:
        types: the type of each field, as it is written.
        model_types: the values that `model_type` may have.
        decoding_fields: names of decoding options, which `extra` may hold, to which misspelt ones are compared as well.
        alike: names in published configs that are like known ones, but no misspellings of them.
        aliases: other names that transformers gives fields.
        supported: fields in files of transformers that change the network, and the values that are implemented.
        label_count: how many labels a head has if the config names none.
        dropouts: the field of each kind of dropout that there is.
        depths: the field of each stack's number of layers.

    Raises:
        InputError: a keyword looks like a misspelt field, or a value is out of range.
    """

    types: ClassVar[Mapping[str, str]]
    model_types: ClassVar[tuple[str, ...]]
    decoding_fields: ClassVar[Collection[str]] = ()
    alike: ClassVar[Collection[str]] = ()
    aliases: ClassVar[Mapping[str, str]] = {}
    supported: ClassVar[Mapping[str, tuple[Any, ...]]]
    label_count: ClassVar[int]
    dropouts: ClassVar[Mapping[str, str]]
    depths: ClassVar[Mapping[str, str]]
    extra: dict[str, Any]

    def __init_subclass__(cls) -> None:
        # A text, or the type itself where a module does not postpone its annotations.
        types = {name: getattr(kind, "__name__", str(kind)) for name, kind in cls.__annotations__.items()}
        fields = {name: kind for name, kind in types.items() if not kind.startswith("ClassVar")}
        cls.types = getattr(cls, "types", {}) | fields

    def __init__(self, **fields: Any) -> None:
        object.__setattr__(self, "extra", {})
        for alias, name in self.aliases.items():
            value = fields.pop(alias, None)
            if value is not None and fields.get(name) is None:
                fields[name] = value
            elif value not in (None, fields.get(name)):
                allowed = f"{fields[name]!r}, as of {name!r}, whose second name it is"
                raise InputError(f"config field {alias!r} is {value!r}; allowed: {allowed}")
        for name in self.types:
            value = fields.pop(name, None)  # transformers writes null for what is not set
            setattr(self, name, getattr(type(self), name) if value is None else value)
        for name, value in fields.items():
            setattr(self, name, value)
        self.validate()

    def __setattr__(self, name: str, value: Any) -> None:
        name = self.aliases.get(name, name)
        if name in self.types or name == "labels":
            object.__setattr__(self, name, value)
            return
        if name not in self.extra and name not in self.alike and name not in self.decoding_fields:
            near = get_close_matches(name, [*self.types, *self.decoding_fields], n=1, cutoff=0.8)
            if near:
                raise InputError(f"config field {name!r} is unknown; did you mean {near[0]!r}?")
        self.extra[name] = value

    def __getattr__(self, name: str) -> Any:
        # Called only where normal lookup fails. While a copy is unpickled, `extra` itself is missing.
        if name in self.aliases:
            return getattr(self, self.aliases[name])
        if name != "extra" and name in self.__dict__.get("extra", {}):
            return self.extra[name]
        raise missing(self, f"field {name!r}")

    def __eq__(self, config: object) -> bool:
        return isinstance(config, type(self)) and self.to_dict() == config.to_dict()

    @property
    def labels(self) -> list[str]:
        """Names of a head's labels; by default, or if num_labels counts others, transformers' own."""
        named, count = self.extra.get("id2label") or {}, self.extra.get("num_labels")
        if named and count in (None, len(named)):
            return [str(named[key]) for key in sorted(named, key=int)]
        return [f"LABEL_{number}" for number in range(count or self.label_count)]

    @labels.setter
    def labels(self, names: Sequence[str]) -> None:
        self.extra.pop("num_labels", None)  # which transformers takes from these
        self.extra["id2label"] = {str(number): name for number, name in enumerate(names)}
        self.extra["label2id"] = {name: number for number, name in enumerate(names)}

    @property
    def has_unnamed_labels(self) -> bool:
        return self.labels == [f"LABEL_{number}" for number in range(len(self.labels))]

    def check(self, ok: bool, name: str, allowed: str) -> None:
        """Raise InputError for a field whose value is not ok."""
        if not ok:
            value = self.extra[name] if name in self.extra else getattr(self, name)
            raise InputError(f"config field {name!r} is {value!r}; allowed: {allowed}")

    def validate(self) -> None:
        """Raise InputError naming the first field whose value no such network can have."""
        for name, kind in self.types.items():
            value = getattr(self, name)
            if kind == "int":
                least = 0 if name.endswith("_token_id") else 1
                fits = type(value) is int and least <= value < 2**31
                self.check(fits, name, f"an integer of at least {least} that 31 bits hold")
            elif kind == "bool":
                self.check(type(value) is bool, name, "true or false")
            elif kind == "float":
                number = isinstance(value, (int, float)) and not isinstance(value, bool)
                if name in ("init_std", "initializer_range", "layer_norm_eps"):
                    self.check(number and 0 < value < math.inf, name, "a finite number above 0")
                else:
                    self.check(number and 0 <= value < 1, name, "a number from 0 up to, not including, 1")
            if name.endswith("_token_id"):
                self.check(value < self.vocab_size, name, f"below vocab_size ({self.vocab_size})")
            elif name.endswith("attention_heads"):
                width = self.aliases.get("d_model", "d_model")
                self.check(self.d_model % value == 0, name, f"a divisor of {width} ({self.d_model})")
        for name, (is_ok, allowed) in OF_LABELS.items():
            self.check(self.extra.get(name) is None or is_ok(self.extra[name]), name, allowed)
        for name, values in self.supported.items():
            value = self.extra.get(name)
            if value is not None and value not in values:
                network = self.model_types[0].upper()
                raise InputError(f"config field {name!r} is {value!r}; this {network} supports only {values[0]!r}")

    @property
    def num_labels(self) -> int:
        return len(self.labels)

    @property
    def id2label(self) -> dict[int, str]:
        return dict(enumerate(self.labels))

    @property
    def label2id(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.labels)}

    def updated(self, fields: Mapping[str, Any]) -> Self:
        """A copy with other values of some fields; InputError where a field is unknown, or a value out of range."""
        known = {*self.types, *self.aliases, *self.extra, *OF_LABELS, *RECORDED, *self.decoding_fields}
        for name in fields.keys() - known:
            near = get_close_matches(name, known, n=1)
            allowed = f"did you mean {near[0]!r}?" if near else "allowed: fields of its config, such as num_labels"
            raise InputError(f"from_pretrained() got {name!r}, which is unknown; {allowed}")
        updated = copy.deepcopy(self)
        for name, value in fields.items():
            setattr(updated, name, value)
        updated.validate()
        numbers = {str(name): str(number) for name, number in (fields.get("label2id") or {}).items()}
        names = {str(number): str(name) for number, name in (fields.get("id2label") or {}).items()}
        names = names or {number: name for name, number in numbers.items()}
        if names:
            labels = [names.get(str(number), "") for number in range(len(names))]
            own = {label: str(number) for number, label in enumerate(labels)}
            updated.check(numbers in ({}, own), "label2id", "the inverse of id2label, with numbers from 0 on")
            updated.check(len(own) == len(labels), "id2label", "another name for each label")
            updated.check(fields.get("num_labels") in (None, len(labels)), "num_labels", f"{len(labels)}, as the names")
            updated.labels = labels
        return updated

    @classmethod
    def from_pretrained(cls, path_or_name: PathName, **fields: Any) -> Self:
        """Read the config of a model in a folder, of a run, in a checkpoint of this project, or of the Hub.

        Args:
            fields: values in place of the stored ones, such as num_labels.

        Raises:
            InputError: there is none, or it is of another architecture; see also `updated`.
        """
        config, _ = stored_configs(path_or_name, [cls])
        if config is None:
            raise InputError(f"{path_or_name}: no config there")
        return config.updated(fields)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.types} | self.extra


def kind_of(fields: Mapping[str, Any], kinds: Sequence[type[Config]]) -> type[Config]:
    """The class among `kinds` to which the fields of a config.json belong; by default, that with most of them."""
    model_type = fields.get("model_type")
    if model_type is None:
        return max(kinds, key=lambda kind: len(kind.types.keys() & fields.keys()))
    for kind in kinds:
        if model_type in kind.model_types:
            return kind
    allowed = [repr(name) for kind in kinds for name in kind.model_types]
    raise InputError(f"model_type {model_type!r}; allowed: {' and '.join(allowed)}")


def stored_configs(
    path_or_name: PathName, kinds: Sequence[type[Config]]
) -> tuple[Config | None, GenerationConfig | None]:
    """The config of a model, which is of one of these kinds, and the generation defaults of the same place, if any.

    They lie in a checkpoint of this project, or beside weights, of which none are downloaded from the Hub.
    """
    path = resolve(path_or_name, [CONFIG_FILE, GENERATION_FILE])
    if path.is_dir():
        path = path / CONFIG_FILE
    if path.suffix in (".safetensors", ".json"):  # which hold no config beside the weights
        return stored_config({}, path, kinds)
    from bart.tensor_files import read_file  # here, because modules of options import this one, and need no torch

    return stored_config(read_file(path), path, kinds)


def stored_config(
    checkpoint: Mapping[str, Any], path: Path, kinds: Sequence[type[Config]]
) -> tuple[Config | None, GenerationConfig | None]:
    """The config in the checkpoint or beside it, and the generation defaults of the same place; None where missing."""
    fields, defaults = checkpoint.get("config"), checkpoint.get("generation_config")
    config_file = defaults_file = path
    if not isinstance(fields, dict):
        is_config = path.suffix == ".json" and not path.name.endswith(".index.json")
        config_file = path if is_config else path.with_name(CONFIG_FILE)
        defaults_file = path.with_name(GENERATION_FILE)
        fields, defaults = (read_json(file) if file.is_file() else None for file in (config_file, defaults_file))
    if fields is None:
        return None, None
    with naming(config_file):
        config = kind_of(fields, kinds)(**fields)
    with naming(defaults_file):
        return config, None if defaults is None else GenerationConfig.from_dict(defaults)
