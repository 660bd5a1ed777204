"""Weights of Hub directories, Lightning and fairseq checkpoints: they are found, read, and fill a model on the meta
device, so that a load holds one copy of them besides the mapped file.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bart.configuration.configuration import CONFIG_FILE, GENERATION_FILE, ModelConfig
from bart.errors import InputError
from bart.files import PathName, read_json
from bart.hub import resolve
from bart.tensor_files import SHARDS, check_shards, read_file, read_shards

logger = logging.getLogger(__name__)
_ADAPTER_FILE = "adapter_config.json"  # of peft
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_TORCH_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
# In the order of preference; model.pt is the name inside fairseq's released archives.
WEIGHT_FILES = (*_SAFETENSORS, *_TORCH_FILES, "model.pt")
_CONFIG_FILES = (CONFIG_FILE, GENERATION_FILE, _ADAPTER_FILE)
_NAMES_SHOWN = 3


def fit_labels(config: ModelConfig, count: int, path: Path, is_given: bool, is_asked: bool = False) -> None:
    """Let a config have as many labels as the weights; InputError if others were given or asked for."""
    if len(config.labels) == count:
        return
    if is_asked or (is_given and not config.has_unnamed_labels):
        raise InputError(
            f"{path}: its head has {count} labels, and {len(config.labels)} are asked for "
            f"({shorten(config.labels)}); new_head=True begins a head with random weights"
        )
    config.labels = [f"LABEL_{number}" for number in range(count)]


def type_of(dtype: torch.dtype | str | None, config: ModelConfig, state: Mapping[str, Tensor]) -> torch.dtype:
    """The type of parameters that `dtype` of from_pretrained means; see there."""
    if dtype == "auto":
        stored = next((tensor.dtype for tensor in state.values() if tensor.is_floating_point()), None)
        dtype = config.extra.get("dtype") or config.extra.get("torch_dtype") or stored
    found = getattr(torch, str(dtype or torch.get_default_dtype()).removeprefix("torch."), None)
    if found not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        raise InputError(f"dtype is {dtype!r}; allowed: 'auto', or float32, float16, bfloat16 or float64 of torch")
    return found


def find_weights(path_or_name: PathName) -> Path:
    path = resolve(path_or_name, [*_CONFIG_FILES, *_SAFETENSORS, "model-*-of-*.safetensors"])
    if path.is_file():
        return path
    if not any((path / name).is_file() for name in WEIGHT_FILES):  # a Hub repository often has both kinds
        path = resolve(path_or_name, [*_CONFIG_FILES, *_TORCH_FILES, "pytorch_model-*-of-*.bin"])
    if (path / _ADAPTER_FILE).is_file():  # which transformers would add to the weights beside it
        raise InputError(f"{path}: an adapter of peft: merge it into its base model by merge_and_unload(), save that")
    for name in WEIGHT_FILES:
        if (path / name).is_file():
            return path / name
    raise InputError(f"{path}: a directory without weights; it must hold export/ or one of {', '.join(WEIGHT_FILES)}")


def read(path: Path) -> dict[str, Any]:
    """The content of a weights file, or of all shards that an index names."""
    if path.suffix != ".json":
        content = read_file(path)
        if SHARDS in content:
            check_shards(path, content)
            state = read_shards(path, content, begin="state_dict/")
            content["state_dict"] |= {name.partition("/")[2]: tensor for name, tensor in state.items()}
        return content
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise InputError(f"{path}: no shard index; its weight_map must map the weights to files")
    checkpoint = {}
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or not (path.parent / name).is_file():
            raise InputError(f"{path}: it names the shard {name!r}, which is no file in {path.parent}")
        checkpoint.update(read_file(path.parent / name))
    return checkpoint


def state_dict(checkpoint: dict[str, Any], path: Path) -> dict[str, Tensor]:
    """The tensors by name: below 'state_dict' (Lightning) or 'model' (fairseq), at the top level, or below one key."""
    below = {key: part for key, part in checkpoint.items() if isinstance(part, dict) and _matrices_of(part)}
    keys: Sequence[str] = [key for key in ("state_dict", "model") if key in below][:1] or (
        [] if _matrices_of(checkpoint) else [*below]
    )
    if len(keys) > 1:
        raise InputError(f"{path}: weights below {', '.join(map(str, keys))}; allowed: one of them, or 'state_dict'")
    content = below[keys[0]] if keys else checkpoint
    state = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if "state_dict" in keys:
        state = _without_losses(state, path)
    if not state:
        raise InputError(f"{path}: no weights in it; its keys are {shorten(map(str, content))}")
    scale = checkpoint.get("lora_scale")
    return state if scale is None else _with_adapters(state, scale)


def _matrices_of(content: Mapping[Any, Any]) -> list[Any]:
    """The names of the matrices of numbers in a part of a checkpoint."""
    tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    return [name for name, tensor in tensors.items() if tensor.dim() > 1 and tensor.is_floating_point()]


def _without_losses(state: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The weights of a Lightning module without those of its parts that have no matrices: of a loss, or a metric."""
    networks = {name.split(".")[0] for name in _matrices_of(state)}
    left_out = [name for name in state if name.split(".")[0] not in networks]
    if left_out and networks:
        logger.warning("%s: entries that are no weights are left out: %s", path, shorten(left_out))
        return {name: tensor for name, tensor in state.items() if name not in left_out}
    return state


def _with_adapters(state: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Add LoRA's adapters, named as peft does, to the weights W: W + scale · B A (Hu et al., 2021, section 4.1)."""
    merged = {name.replace(".base_layer.", "."): tensor for name, tensor in state.items() if ".lora_" not in name}
    for name, a in state.items():
        if ".lora_A." in name:
            b, adapted = state[name.replace(".lora_A.", ".lora_B.")], f"{name.partition('.lora_A.')[0]}.weight"
            merged[adapted] = merged[adapted].float() + scale * (b.float() @ a.float())
    return merged


def fill(model: Any, state: dict[str, Tensor], path: Path) -> None:
    """Move `state` into a model on the meta device, keeping ties; the tensors are copied out of the mapped file."""
    copies = tied_copies(model)
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
    if damaged := [name for name, tensor in filled.items() if not torch.stack(tensor.aminmax()).isfinite().all()]:
        raise InputError(f"{path}: {len(damaged)} of its weights hold NaN or infinite numbers: {shorten(damaged)}")
    embeddings = nn.Parameter(filled[model.shared])
    model.load_state_dict(filled | dict.fromkeys([model.shared, *copies], embeddings), assign=True)


def tied_copies(model: Any) -> set[str]:
    """The other names of the token embeddings."""
    shared = model.get_parameter(model.shared)
    named = model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if parameter is shared and name != model.shared}


def published_class(path: Path) -> str | None:
    """The class that the config.json beside weights names."""
    file = path.with_name(CONFIG_FILE)
    named = read_json(file).get("architectures") if file.is_file() else None
    return named[0] if isinstance(named, list) and named else None


def prefix_of(state: Mapping[str, Tensor], anchor: re.Pattern[str], network: str, path: Path) -> str:
    """The beginning of the names of the one network's weights, before a part that `anchor` matches; else InputError."""
    stems = sorted({anchor.sub("", name) for name in state if anchor.search(name)})
    if len(stems) != 1:
        networks = f"{len(stems)} {network} networks ({shorten(stems)})" if stems else f"no {network} network"
        raise InputError(f"{path}: {networks} in it; its names are {shorten(state)}")
    return stems[0]


def shorten(names: Iterable[str]) -> str:
    """The first names, and how many there are besides."""
    names = list(names)
    rest = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
