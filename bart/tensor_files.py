"""Reading files of tensors, safetensors and torch checkpoints, without running code from them."""

from __future__ import annotations

import argparse
import json
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from bart.errors import InputError
from bart.files import sha256_of

_WHOLE: dict[tuple[Path, int, int, int], bool] = {}  # by files as they were, since many parts of one are read
CHECKSUM = "crc32"  # in the metadata of safetensors files that this project writes, which have none otherwise
SHARDS = "shards"  # in a checkpoint of several processes: the SHA-256 of each of its safetensors files, by their paths


def read_file(path: Path) -> dict[str, Any]:
    """Read one file: names to tensors, or the top level of a training checkpoint.

    The first bytes tell the format, never the name. Besides tensors and plain containers, torch files may hold
    `argparse.Namespace`, as those of fairseq and older Lightning do.

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
            with safetensors.safe_open(path, "pt") as file:
                content = {name: file.get_tensor(name) for name in file.offset_keys()}
                checksum = (file.metadata() or {}).get(CHECKSUM)
        except SafetensorError as error:
            raise InputError(f"{path}: a damaged, truncated or foreign safetensors file ({error})") from error
        if checksum not in (None, checksum_of(content)):
            raise InputError(f"{path}: a damaged safetensors file (its checksum does not fit)")
        return content
    if head.startswith((b"PK\x03\x04", b"\x80")):
        return _read_torch(path, zipped=head.startswith(b"PK"))
    hint = "; it is a Git LFS pointer: run `git lfs pull`" if head.startswith(b"version https:/") else ""
    raise InputError(f"{path}: neither a safetensors file nor a torch checkpoint{hint}")


def sort_metadata(path: Path) -> None:
    """Put the metadata of a safetensors file in order, which the library draws: equal weights are then equal bytes."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        file.seek(8)
        file.write(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size))


def checksum_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """The CRC-32 of the bytes of tensors in the order of their names, as decimal digits."""
    checksum = 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous().reshape(-1)
        checksum = zlib.crc32(tensor.view(torch.uint8).numpy().data, checksum)
    return str(checksum)


def is_whole(path: Path) -> bool:
    """Return true if a file is a zip file, as torch writes it, with all its parts and their checksums."""
    try:
        status = path.stat()
        key = path, status.st_ino, status.st_size, status.st_mtime_ns
        if key not in _WHOLE:
            with zipfile.ZipFile(path) as file:
                _WHOLE[key] = file.testzip() is None
        return _WHOLE[key]
    except Exception:  # zipfile raises nearly anything on damaged bytes, such as UnicodeDecodeError
        return False


def check_shards(path: Path, content: Mapping[str, Any]) -> None:
    """Raise InputError where a shard that this checkpoint names is missing, or other than it was written."""
    for name, sha256 in content.get(SHARDS, {}).items():
        shard = path.parent / name
        if not shard.is_file() or sha256_of(shard) != sha256:
            raise InputError(f"{shard}: missing, damaged or truncated; it is a part of {path}")


def read_shards(
    path: Path,
    content: Mapping[str, Any],
    begin: str = "",
    new: Callable[..., Any] = torch.empty,
    is_alone: bool = True,
) -> dict[str, torch.Tensor]:
    """The tensors in a checkpoint's shards whose names begin so, read into those that `new` gives for size and dtype.

    Of a DTensor, a process reads its own part; unless it `is_alone`, all of the default group call this.
    """
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load  # here, because it takes time to import

    reader = HuggingFaceStorageReader(str((path.parent / next(iter(content[SHARDS]))).parent))
    found: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    tensors = {name: new(of.size, dtype=of.properties.dtype) for name, of in found.items() if name.startswith(begin)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load(tensors, storage_reader=reader, no_dist=is_alone)
    return tensors


def _read_torch(path: Path, zipped: bool) -> dict[str, Any]:
    """Load a torch file. Files from before torch 1.6 are bare pickles, not zipped."""
    # torch takes any file named .safetensors for safetensors; an open file has no name.
    mapped = zipped and path.suffix != ".safetensors"
    if zipped and not is_whole(path):
        raise InputError(f"{path}: a damaged, truncated or foreign torch file (its checksums do not fit)")
    try:
        with path.open("rb") as file, torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected pickle protocol")  # the error below says more
            content = torch.load(path if mapped else file, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # torch's restricted unpickler raises nearly anything on damaged bytes
        foreign = re.search(r"(?:Unsupported global: GLOBAL|Unsupported class|unsupported GLOBAL) ([\w.]+)", str(error))
        if foreign is None:
            pickled = "" if zipped else "; a pickle that torch did not write is refused, since it could run any code"
            raise InputError(f"{path}: a damaged, truncated or foreign torch file{pickled}") from error
        raise InputError(
            f"{path}: it holds a pickled {foreign[1]}, which is refused, since it could run any code; only tensors, "
            "plain containers and argparse.Namespace are loaded, so save its state dict alone"
        ) from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: it holds a {type(content).__name__}, not a checkpoint")
    return content
