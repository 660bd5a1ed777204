"""Weights in and out: Hub directories, safetensors, torch files, Lightning and fairseq checkpoints.

Loading takes four steps: find the weights file, read it (`bart.tensor_files`), rename its tensors to the parameters of
our classes, and fill a model that was built on the meta device. So a load holds one copy of the weights besides the
mapped file.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from bart.configuration.configuration import Config, ModelConfig, kind_of
from bart.configuration.configuration_bart import BartConfig
from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError
from bart.files import read_json, replacing, write_json
from bart.hub import resolve
from bart.tensor_files import read_file
from bart.tokenization.tokenizer import PretrainedTokenizer

logger = logging.getLogger(__name__)


class Pretrained(Protocol):
    """What is to be known here of a model; `bart.modeling.pretrained.PretrainedModel` explains it."""

    config_class: type[ModelConfig]
    shared: str
    head: tuple[str, ...]
    lookalikes: tuple[str, ...]
    output_weight: str | None
    generation_config: GenerationConfig | None

    def __init__(self, config: Any) -> None: ...

    @classmethod
    def read_names(cls, state: dict[str, Tensor], path: Path) -> tuple[dict[str, Tensor], list[str]]: ...

    @property
    def optional(self) -> tuple[str, ...]: ...

    def new_weights(self, parts: tuple[str, ...]) -> dict[str, Tensor]: ...

    def eval(self) -> Any: ...


class Saved(Pretrained, Protocol):
    """What is to be known of a model to write it."""

    config: ModelConfig

    def published_as(self) -> tuple[str, str]: ...

    def stored_name(self, name: str) -> str: ...

    def state_dict(self) -> dict[str, Tensor]: ...


Model = TypeVar("Model", bound=Pretrained)
Made = TypeVar("Made")

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
# In the order of preference; model.pt is the name inside fairseq's released archives.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "model.pt",
)
# A Hub repository often has both kinds of weights; the second kind is downloaded only where the first is missing.
_HUB_PATTERNS = (
    [CONFIG_FILE, GENERATION_FILE, "model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"],
    [CONFIG_FILE, GENERATION_FILE, "pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"],
)

_NAMES_SHOWN = 3


def load_pretrained(
    model_class: type[Model],
    path_or_name: str | os.PathLike[str],
    config: ModelConfig | None = None,
    new_head: bool | None = None,
) -> Model:
    """Build a model from stored weights; it comes back in eval mode, on the CPU, with fp32 parameters.

    Half-precision weights are widened to fp32 (exactly), so that a model does not depend on the type in its file; call
    `.half()` or `.bfloat16()` for less.

    Args:
        path_or_name: a Hub-format directory (`model.safetensors` or `pytorch_model.bin`, whole or in shards), one such
            file, a Lightning `.ckpt` that holds the network under any attribute, a fairseq `model.pt`, the directory of
            a training run, which stands for the export in it, or a Hub name.
        config: the architecture; the weights must fit it and its decoding fields become the generation defaults.
            None: taken from the checkpoint itself (our `.ckpt`) or from `config.json` beside the weights, with the
            generation defaults of the same place. Labels that it names must be as many as the weights' head has;
            otherwise the weights tell their number.
        new_head: whether a head that classifies begins with random weights; by default, with a warning, if the weights
            have none.

    Raises:
        InputError: nothing at that path, a damaged or foreign file, no config to be found, embeddings that are not
            tied, a head that is missing or has other labels, or weights that do not fit; the latter lists missing,
            unexpected and wrongly shaped names.
    """
    path = _find_weights(path_or_name)
    checkpoint = _read(path)
    state, others = model_class.read_names(_state_dict(checkpoint, path), path)
    if model_class.lookalikes and "config" not in checkpoint and _published_class(path) in model_class.lookalikes:
        others += [name for name in state if name.startswith(model_class.head)]
        state = {name: tensor for name, tensor in state.items() if not name.startswith(model_class.head)}
    generation: GenerationConfig | None = None
    given = config
    if config is None:
        config, generation = _stored_config(checkpoint, path, [model_class.config_class])
        if config is None:
            raise InputError(f"{path}: no config in it and no {CONFIG_FILE} beside it; pass a config")
    output = model_class.output_weight
    begins = output is not None and (new_head or output not in state)
    if begins:
        if new_head is False:
            found = f"its head is {shorten(others)}" if others else "it has no head"
            raise InputError(f"{path}: no weights of a {model_class.__name__}, whose head is {output}; {found}")
        state = {name: tensor for name, tensor in state.items() if not name.startswith(model_class.head)}
    elif output is not None:
        _fit_labels(config, len(state[output]), path, given is not None)
    elif others and new_head is False:
        raise InputError(f"{path}: no weights of a {model_class.__name__}; its head is {shorten(others)}")
    if others:
        logger.warning("%s: weights of another head left out: %s", path, shorten(others))
    with torch.device("meta"):
        model = model_class(config)
    if begins:
        state |= model.new_weights(model.head)
        logger.warning("%s: a new head begins with random weights: %s", path, ", ".join(model.head))
    for part in model.optional:
        if not any(name.startswith(f"{part}.") for name in state):
            if new_head is False:
                raise InputError(f"{path}: no weights of a {model_class.__name__}: it has no {part}")
            state |= model.new_weights((part,))
            logger.warning("%s: it has no %s, which begins with random weights", path, part)
    _fill(model, state, path)
    if generation is not None and model.generation_config is not None:
        model.generation_config = generation
    return model.eval()


def stored_configs(
    path_or_name: str | os.PathLike[str], kinds: Sequence[type[Config]] = (BartConfig,)
) -> tuple[Config | None, GenerationConfig | None]:
    """The config in a checkpoint or beside its weights, and the generation defaults of the same place, if any.

    Sources and errors are those of `load_pretrained`. Of a Hub repository no weights are downloaded.

    Args:
        kinds: the classes of which the config may be.
    """
    path = resolve(path_or_name, [CONFIG_FILE, GENERATION_FILE])
    if path.is_dir():
        path = path / WEIGHT_FILES[0]
    # Files of weights alone need not be read.
    checkpoint = {} if path.suffix in (".safetensors", ".json") else read_file(path)
    return _stored_config(checkpoint, path, kinds)


def _fit_labels(config: ModelConfig, count: int, path: Path, is_given: bool) -> None:
    """Let a config have as many labels as the weights.

    transformers writes no labels where there are two, and takes what it wrote for three.

    Raises:
        InputError: a config that was given names others.
    """
    if len(config.labels) == count:
        return
    if is_given and not config.has_unnamed_labels:
        raise InputError(
            f"{path}: its head has {count} labels, and {len(config.labels)} are asked for "
            f"({shorten(config.labels)}); a new head would begin with random weights"
        )
    config.labels = [f"LABEL_{number}" for number in range(count)]


def _find_weights(path_or_name: str | os.PathLike[str]) -> Path:
    path = resolve(path_or_name, _HUB_PATTERNS[0])
    if path.is_file():
        return path
    if not any((path / name).is_file() for name in WEIGHT_FILES):
        path = resolve(path_or_name, _HUB_PATTERNS[1])
    for name in WEIGHT_FILES:
        if (path / name).is_file():
            return path / name
    raise InputError(f"{path}: a directory without weights; it must hold export/ or one of {', '.join(WEIGHT_FILES)}")


def _read(path: Path) -> dict[str, Any]:
    """The content of a weights file, or of all shards that an index names."""
    if path.suffix != ".json":
        return read_file(path)
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise InputError(f"{path}: no shard index; its weight_map must map the weights to files")
    checkpoint = {}
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or not (path.parent / name).is_file():
            raise InputError(f"{path}: it names the shard {name!r}, which is no file in {path.parent}")
        checkpoint.update(read_file(path.parent / name))
    return checkpoint


def _state_dict(checkpoint: dict[str, Any], path: Path) -> dict[str, Tensor]:
    """The tensors by name: below 'state_dict' (Lightning), below 'model' (fairseq) or at the top level."""
    content = next(
        (checkpoint[key] for key in ("state_dict", "model") if isinstance(checkpoint.get(key), dict)), checkpoint
    )
    state = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not state:
        raise InputError(f"{path}: no weights in it; its keys are {shorten(map(str, content))}")
    scale = checkpoint.get("lora_scale")
    return state if scale is None else _with_adapters(state, scale)


def _with_adapters(state: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Add LoRA's adapters, named as peft does, to the weights W: W + scale · B A (Hu et al., 2021, section 4.1)."""
    merged = {name.replace(".base_layer.", "."): tensor for name, tensor in state.items() if ".lora_" not in name}
    for name, a in state.items():
        if ".lora_A." in name:
            b, adapted = state[name.replace(".lora_A.", ".lora_B.")], f"{name.partition('.lora_A.')[0]}.weight"
            merged[adapted] = merged[adapted].float() + scale * (b.float() @ a.float())
    return merged


def _fill(model: Any, state: dict[str, Tensor], path: Path) -> None:
    """Move `state` into a model on the meta device, keeping ties; the tensors are copied out of the mapped file."""
    copies = _tied_copies(model)
    slots = {name: slot for name, slot in model.state_dict().items() if name not in copies}

    wrong = []
    for name in slots.keys() & state.keys():
        if state[name].shape != slots[name].shape:
            wrong.append(f"{name} {tuple(state[name].shape)} where the model has {tuple(slots[name].shape)}")
        elif not state[name].is_floating_point():
            wrong.append(f"{name} of type {state[name].dtype}")
    problems = {
        "missing": sorted(slots.keys() - state.keys()),
        "unexpected": sorted(state.keys() - slots.keys()),
        "wrong shape": sorted(wrong),
    }
    if any(problems.values()):
        listed = "; ".join(f"{len(names)} {kind}: {shorten(names)}" for kind, names in problems.items() if names)
        raise InputError(f"{path}: the weights do not fit the model; {listed}")

    filled: dict[str, Tensor] = {}
    for name, slot in slots.items():
        # A copy: if the mapped file is overwritten, a running model must neither change nor be killed.
        filled[name] = torch.empty(slot.shape, dtype=slot.dtype, device="cpu").copy_(state.pop(name))
    embeddings = nn.Parameter(filled[model.shared])
    model.load_state_dict(filled | dict.fromkeys([model.shared, *copies], embeddings), assign=True)


def _tied_copies(model: Any) -> set[str]:
    """The other names of the token embeddings."""
    shared = model.get_parameter(model.shared)
    named = model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if parameter is shared and name != model.shared}


def _published_class(path: Path) -> str | None:
    """The class that the config.json beside weights names."""
    file = path.with_name(CONFIG_FILE)
    named = read_json(file).get("architectures") if file.is_file() else None
    return named[0] if isinstance(named, list) and named else None


def _stored_config(
    checkpoint: dict[str, Any], path: Path, kinds: Sequence[type[Config]]
) -> tuple[Config | None, GenerationConfig | None]:
    """The config in the checkpoint or beside it, and the generation defaults of the same place; None where missing."""
    fields, defaults = checkpoint.get("config"), checkpoint.get("generation_config")
    config_file = defaults_file = path
    if not isinstance(fields, dict):
        config_file, defaults_file = path.with_name(CONFIG_FILE), path.with_name(GENERATION_FILE)
        fields, defaults = (read_json(file) if file.is_file() else None for file in (config_file, defaults_file))
    if fields is None:
        return None, None
    config = _made(lambda found: kind_of(found, kinds)(**found), fields, config_file)
    return config, None if defaults is None else _made(GenerationConfig.from_dict, defaults, defaults_file)


def _made(make: Callable[[Mapping[str, Any]], Made], fields: Mapping[str, Any], path: Path) -> Made:
    """A config made of fields, with the file's name before the message of an InputError."""
    try:
        return make(fields)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def prefix_of(state: Mapping[str, Tensor], anchor: re.Pattern[str], network: str, path: Path) -> str:
    """What the names of a network's weights begin with, before a part that `anchor` matches in one network once.

    Raises:
        InputError: there is no such network, or more than one.
    """
    stems = sorted({anchor.sub("", name) for name in state if anchor.search(name)})
    if len(stems) != 1:
        found = f"{len(stems)} {network} networks ({shorten(stems)})" if stems else f"no {network} network"
        raise InputError(f"{path}: {found} in it; its names are {shorten(state)}")
    return stems[0]


def shorten(names: Iterable[str]) -> str:
    """The first names, and how many there are besides."""
    names = list(names)
    rest = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def save_pretrained(
    model: Saved, directory: str | os.PathLike[str], tokenizer: PretrainedTokenizer | None = None
) -> None:
    """Write the Hub format that `transformers` loads: config.json, model.safetensors and, of a model that generates,
    generation_config.json.

    Tied copies of the embeddings are left out, as Hugging Face does. Decoding options are written to
    generation_config.json alone. Each file is written under a temporary name and renamed.

    Parameters are stored in their own precision. The directory is made if absent.

    Raises:
        InputError: the directory cannot be made.
        OSError: a file cannot be written.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory}: cannot be made a directory: {error.strerror}") from error
    config, generation = model.config, model.generation_config
    options = {} if generation is None else generation.to_dict()
    moved = config.extra.keys() & {*options, "torch_dtype"}
    fields = {name: value for name, value in config.to_dict().items() if name not in moved}
    # transformers loads in the precision that the config names, so a stale one would cast the weights.
    fields["dtype"] = str(model.get_parameter(model.shared).dtype).removeprefix("torch.")
    fields["model_type"], architecture = model.published_as()
    fields["architectures"] = [architecture]

    copies = _tied_copies(model)
    state = model.state_dict().items()
    state = {model.stored_name(name): tensor.contiguous() for name, tensor in state if name not in copies}
    write_json(directory / CONFIG_FILE, fields)
    if generation is not None:
        write_json(directory / GENERATION_FILE, options)
    with replacing(directory / WEIGHT_FILES[0]) as temporary:
        try:
            safetensors.torch.save_file(state, temporary, metadata={"format": "pt"})
        except SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(directory / WEIGHT_FILES[0])) from error
    if tokenizer is not None:
        tokenizer.save_pretrained(directory)
