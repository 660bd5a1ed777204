"""Weights in and out: Hub directories, safetensors, torch files, Lightning and fairseq checkpoints.

Reading goes in four steps, each a function here: find the weights file, read it (its format is told by its first bytes,
never by its name), bring its names to those of `BartForConditionalGeneration`, and fill a model built on the meta
device, so that a load holds one copy of the weights besides the mapped file.

Torch files are loaded with `weights_only=True`; the one class allowed beyond tensors and plain containers is
`argparse.Namespace`, which fairseq and older Lightning checkpoints carry. Nothing else is ever unpickled.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import pickle
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.files import replacing
from bart.generation import GenerationConfig
from bart.hub import resolve

if TYPE_CHECKING:
    from bart.modeling.modeling_bart import BartForConditionalGeneration
    from bart.tokenization.tokenization_bart import BartTokenizer

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=nn.Module)

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
# A Hub repository often holds both; the second set is downloaded only where the first brought no weights.
_HUB_PATTERNS = (
    [CONFIG_FILE, GENERATION_FILE, "model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"],
    [CONFIG_FILE, GENERATION_FILE, "pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"],
)

_SHARED = "model.shared.weight"
_ANCHOR = re.compile(r"(?:^|(?<=\.))(shared|encoder\.embed_(tokens|positions))\.weight$")  # what tells a prefix
_COUNTERS = re.compile(r"(^|\.)((en|de)coder\.version|_float_tensor)$")  # bookkeeping of fairseq, not weights
_HEADS = re.compile(r"(^|\.)(classification_heads?|qa_outputs)\.")
_FAIRSEQ_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_new",  # the tanh formula, in spite of its name
    "gelu_fast": "gelu_new",
    "swish": "silu",
}
# What torch's restricted unpickler raises on damaged bytes: found by flipping and cutting bytes of real files.
_DAMAGED = (
    OSError,
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    struct.error,
)
_NAMES_SHOWN = 3


# ---------------------------------------------------------------------------------------------------------- loading


def load_pretrained(
    model_class: type[Model], path_or_name: str | os.PathLike[str], config: BartConfig | None = None
) -> Model:
    """Builds a model from stored weights; it comes back in eval mode, on the CPU, with fp32 parameters.

    Weights stored in half precision are widened to fp32 (exactly), so that a model behaves alike whatever its file
    holds; call `.half()` or `.bfloat16()` for less.

    Args:
        model_class: `BartForConditionalGeneration` or a class with its parameter names and constructor.
        path_or_name: a Hub-format directory (`model.safetensors` or `pytorch_model.bin`, whole or in shards), one such
            file, a Lightning `.ckpt` that holds the network under any attribute, a fairseq `model.pt`, or a Hub name.
        config: the architecture; the weights must fit it and its decoding fields become the generation defaults.
            None: taken from the checkpoint itself (our `.ckpt`, fairseq's arguments) or from `config.json` beside the
            weights, with the generation defaults of the same place.

    Raises:
        InputError: nothing at that path, a damaged or foreign file, no config to be found, embeddings that are not
            tied, or weights that do not fit; the latter lists missing, unexpected and wrongly shaped names.
    """
    weights = _find_weights(path_or_name)
    checkpoint = _read_sharded(weights) if weights.suffix == ".json" else read_file(weights)
    state = _canonical_names(_state_dict(checkpoint, weights), weights)
    generation: GenerationConfig | None = None
    if config is None:
        config, generation = _stored_config(checkpoint, state, weights)
        if config is None:
            raise InputError(f"{weights}: no config in it and no {CONFIG_FILE} beside it; pass a config")
    with torch.device("meta"):
        model = model_class(config)
    _fill(model, state, weights)
    if generation is not None:
        model.generation_config = generation
    return model.eval()


def stored_config(path_or_name: str | os.PathLike[str]) -> BartConfig | None:
    """The config that lies in a checkpoint or beside its weights, if any; sources and errors of `load_pretrained`."""
    weights = _find_weights(path_or_name)
    if weights.suffix in (".safetensors", ".json"):  # these hold weights alone, so they need not be read
        return _stored_config({}, {}, weights)[0]
    checkpoint = read_file(weights)
    return _stored_config(checkpoint, _canonical_names(_state_dict(checkpoint, weights), weights), weights)[0]


def _find_weights(path_or_name: str | os.PathLike[str]) -> Path:
    path = resolve(path_or_name, _HUB_PATTERNS[0])
    if path.is_file():
        return path
    if not any((path / name).is_file() for name in WEIGHT_FILES):
        path = resolve(path_or_name, _HUB_PATTERNS[1])
    for name in WEIGHT_FILES:
        if (path / name).is_file():
            return path / name
    raise InputError(f"{path}: a directory without weights; it must hold one of {', '.join(WEIGHT_FILES)}")


def _read_sharded(index: Path) -> dict[str, Any]:
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise InputError(f"{index}: no 'weight_map' from names to files, so this is not an index of shards")
    state: dict[str, Any] = {}
    for name in sorted(set(weight_map.values())):
        shard = index.parent / name
        if Path(name).name != name or not shard.is_file():
            raise InputError(f"{index}: it names the shard {name!r}, which is no file in {index.parent}")
        state.update(read_file(shard))
    return state


def read_file(path: Path) -> dict[str, Any]:
    """The content of one file: names to tensors, or the top level of a training checkpoint; nothing in it is run.

    Raises:
        InputError: the file is missing, empty, damaged or foreign.
    """
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if not head:
        raise InputError(f"{path}: the file is empty")
    if head[8:9] == b"{":  # eight bytes of header length, then JSON
        try:
            return safetensors.torch.load_file(path)
        except SafetensorError as error:
            raise InputError(f"{path}: a damaged, truncated or foreign safetensors file ({error})") from error
    if head.startswith((b"PK\x03\x04", b"\x80")):
        return _read_torch(path, zipped=head.startswith(b"PK"))
    hint = "; it is a Git LFS pointer: run `git lfs pull`" if head.startswith(b"version https:/") else ""
    raise InputError(f"{path}: neither a safetensors file nor a torch checkpoint{hint}")


def _read_torch(path: Path, zipped: bool) -> dict[str, Any]:
    """Loads a torch file, without running code from it; files from before torch 1.6 are bare pickles, not zipped."""
    # torch picks its reader by the suffix .safetensors, whatever the content; an open file has no suffix.
    mapped = zipped and path.suffix != ".safetensors"
    try:
        with (
            path.open("rb") as file,
            torch.serialization.safe_globals([argparse.Namespace]),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "Detected pickle protocol")  # a foreign pickle: the error says so
            content = torch.load(path if mapped else file, map_location="cpu", weights_only=True, mmap=mapped)
    except _DAMAGED as error:
        foreign = re.search(r"Unsupported (?:global: GLOBAL|class) ([\w.]+)", str(error))
        if foreign is None:
            raise InputError(f"{path}: a damaged, truncated or foreign torch file") from error
        raise InputError(
            f"{path}: it holds a pickled {foreign[1]}; only tensors, plain containers and argparse.Namespace are "
            "loaded, so save its state dict alone"
        ) from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: it holds a {type(content).__name__}, not a checkpoint")
    return content


def _state_dict(checkpoint: dict[str, Any], path: Path) -> dict[str, Tensor]:
    """The tensors by name: below 'state_dict' (Lightning), below 'model' (fairseq) or at the top level."""
    for key in ("state_dict", "model"):
        if isinstance(checkpoint.get(key), dict):
            checkpoint = checkpoint[key]
            break
    state = {str(name): value for name, value in checkpoint.items() if isinstance(value, Tensor)}
    if not state:
        raise InputError(f"{path}: no weights in it; its keys are {_shorten(map(str, checkpoint))}")
    return state


def _canonical_names(state: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Renames to `BartForConditionalGeneration`'s names, each weight once (the tied embeddings as model.shared.weight).

    Raises:
        InputError: no BART network in it, or more than one, or copies of the embeddings that differ.
    """
    stems = sorted({_ANCHOR.sub("", name) for name in state if _ANCHOR.search(name)})
    if len(stems) != 1:
        found = f"{len(stems)} BART networks ({_shorten(stems)})" if stems else "no BART network"
        raise InputError(f"{path}: {found} in it; its names are {_shorten(state)}")
    prefix = re.sub(r"(^|(?<=\.))model\.$", "", stems[0])
    heads = [name for name in state if _HEADS.search(name)]
    if heads:
        logger.warning("%s: heads left out, the model generates text: %s", path, _shorten(heads))

    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if _COUNTERS.search(name) or _HEADS.search(name):
            continue
        name = name.removeprefix(prefix)
        if name.startswith(("encoder.", "decoder.", "shared.")):
            name = f"model.{name}"
        if name.endswith((".in_proj_weight", ".in_proj_bias")):  # (3D, D) and (3D,): queries, keys, values
            owner, kind = name.rsplit(".in_proj_", 1)
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                renamed[f"{owner}.{part}_proj.{kind}"] = rows
        else:
            renamed[name] = tensor

    copies = (
        _SHARED,
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
        "model.decoder.output_projection.weight",
        "lm_head.weight",
    )
    tied = {name: renamed.pop(name) for name in copies if name in renamed}
    for name, tensor in tied.items():
        renamed.setdefault(_SHARED, tensor)
        if not torch.equal(tensor, renamed[_SHARED]):
            raise InputError(f"{path}: {name} differs from {next(iter(tied))}; BART's embeddings are tied")
    if _SHARED in renamed:
        # Bare BartModel files (facebook/bart-large) and fairseq's have none.
        renamed.setdefault("final_logits_bias", torch.zeros(1, renamed[_SHARED].shape[0]))
    return renamed


def _fill(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Moves `state` into a model on the meta device, keeping ties; the tensors are copied out of the mapped file."""
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
        listed = "; ".join(f"{len(names)} {kind}: {_shorten(names)}" for kind, names in problems.items() if names)
        raise InputError(f"{path}: the weights do not fit the model; {listed}")

    filled: dict[str, Tensor] = {}
    for name, slot in slots.items():
        # A copy, not the mapped pages: a file overwritten in place must not change or kill a running model.
        filled[name] = torch.empty(slot.shape, dtype=slot.dtype, device="cpu").copy_(state.pop(name))
    embeddings = nn.Parameter(filled[_SHARED])
    model.load_state_dict(filled | dict.fromkeys([_SHARED, *copies], embeddings), assign=True)


def _tied_copies(model: nn.Module) -> set[str]:
    """The other names of model.shared.weight."""
    shared = model.get_parameter(_SHARED)
    return {
        name
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter is shared and name != _SHARED
    }


# ------------------------------------------------------------------------------------------------ stored configuration


def _stored_config(
    checkpoint: dict[str, Any], state: dict[str, Tensor], weights: Path
) -> tuple[BartConfig | None, GenerationConfig | None]:
    """The config that lies in the checkpoint or beside it, and the generation defaults there, where there are any."""
    if isinstance(checkpoint.get("config"), dict):
        defaults = checkpoint.get("generation_config")
        config = _config(checkpoint["config"], weights)
        return config, _generation_config(defaults, weights) if isinstance(defaults, dict) else None
    beside = weights.with_name(CONFIG_FILE)
    if beside.is_file():
        config, defaults_file = _config(_read_json(beside), beside), weights.with_name(GENERATION_FILE)
        if not defaults_file.is_file():
            return config, None
        return config, _generation_config(_read_json(defaults_file), defaults_file)
    arguments = checkpoint.get("args")
    if arguments is None and isinstance(checkpoint.get("cfg"), dict):
        arguments = checkpoint["cfg"].get("model")
    if isinstance(arguments, argparse.Namespace):
        return _fairseq_config(arguments, state, weights), None
    return None, None


def _config(fields: dict[str, Any], path: Path) -> BartConfig:
    model_type = fields.get("model_type", "bart")
    if model_type not in ("bart", "mbart"):
        raise InputError(f"{path}: model_type {model_type!r}; allowed are 'bart' and 'mbart'")
    with _naming(path):
        return BartConfig(**fields)


def _generation_config(fields: dict[str, Any], path: Path) -> GenerationConfig:
    with _naming(path):
        return GenerationConfig.from_dict(fields)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Puts the file's name before the message of an InputError."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _fairseq_config(arguments: argparse.Namespace, state: dict[str, Tensor], path: Path) -> BartConfig:
    """The config for fairseq's training arguments; vocabulary and positions, which they lack, are the tables' rows."""
    given = vars(arguments)
    sizes = {"ffn_dim": "ffn_embed_dim", "layers": "layers", "attention_heads": "attention_heads"}
    sides = {f"{side}_{ours}": f"{side}_{theirs}" for side in ("encoder", "decoder") for ours, theirs in sizes.items()}
    tables = {"vocab_size": _SHARED, "max_position_embeddings": "model.encoder.embed_positions.weight"}
    lacking = [name for name in (*sides.values(), "encoder_embed_dim") if name not in given]
    lacking += [name for name in tables.values() if name not in state]
    if lacking:
        raise InputError(f"{path}: no config can be made for it, it lacks {_shorten(lacking)}; pass a config")
    pre_ln = bool(given.get("encoder_normalize_before", False))
    activation = given.get("activation_fn", "relu")
    for name, value, allowed in (
        ("decoder_embed_dim", given.get("decoder_embed_dim"), [given["encoder_embed_dim"]]),
        ("decoder_normalize_before", bool(given.get("decoder_normalize_before", False)), [pre_ln]),
        ("activation_fn", activation, list(_FAIRSEQ_ACTIVATIONS)),
    ):
        if value not in allowed:
            raise InputError(f"{path}: fairseq argument {name} is {value!r}; allowed here: {allowed}")
    rows = {ours: len(state[name]) for ours, name in tables.items()}
    rows["max_position_embeddings"] -= 2  # the padding index, 1, and everything below it take no position
    fields = {
        "d_model": given["encoder_embed_dim"],
        "activation_function": _FAIRSEQ_ACTIVATIONS[activation],
        "activation_dropout": given.get("activation_dropout") or given.get("relu_dropout") or 0.0,
        "scale_embedding": not given.get("no_scale_embedding", False),
        "pre_ln": pre_ln,
    }
    same = ("dropout", "attention_dropout", "encoder_layerdrop", "decoder_layerdrop")
    fields |= {name: given[name] for name in same if name in given}
    return _config(fields | rows | {ours: given[theirs] for ours, theirs in sides.items()}, path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # JSON and UTF-8 errors alike
        raise InputError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a JSON {type(content).__name__}, not an object")
    return content


def _shorten(names: Any) -> str:
    names = list(names)
    rest = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


# ----------------------------------------------------------------------------------------------------------- saving


def save_pretrained(
    model: BartForConditionalGeneration, directory: str | os.PathLike[str], tokenizer: BartTokenizer | None = None
) -> None:
    """Writes the Hub format that `transformers` loads: config.json, generation_config.json, model.safetensors.

    Tied copies of the embeddings are left out, as Hugging Face does. A Pre-LN model is written as an mBART, which is
    the same arrangement under the name that transformers knows. Decoding options go to generation_config.json alone
    (`model.generation_config` is their one truth), so config.json is free of them. Each file is written under a
    temporary name and renamed.

    Args:
        model: its parameters are stored in their own precision.
        directory: made if absent; files of the same names are replaced.
        tokenizer: saved beside the weights when given.

    Raises:
        InputError: the directory cannot be made.
        OSError: a file cannot be written.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory}: cannot be made a directory: {error.strerror}") from error
    config, generation = model.config, model.generation_config.to_dict()
    family = ("mbart", "MBartForConditionalGeneration") if config.pre_ln else ("bart", "BartForConditionalGeneration")
    decoding = GenerationConfig().to_dict().keys() | generation.keys()
    moved = {"torch_dtype"} | {name for name in config.extra if name in decoding}
    fields = {name: value for name, value in config.to_dict().items() if name not in moved}
    # transformers loads in the precision that the config names, so a stale one would cast the weights.
    fields |= {"model_type": family[0], "architectures": [family[1]], "dtype": str(model.dtype).removeprefix("torch.")}

    copies = _tied_copies(model)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in copies}
    _write_json(directory / CONFIG_FILE, fields)
    _write_json(directory / GENERATION_FILE, generation)
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


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
