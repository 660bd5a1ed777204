"""The place of a model or tokenizer: a path on this machine, or a repository on the Hugging Face Hub."""

from __future__ import annotations

import os
from pathlib import Path

from bart.errors import InputError, brief
from bart.files import PathName

EXPORT = "export"  # the folder of a run's directory that holds its model
_FILE_SUFFIXES = (".ckpt", ".pt", ".bin", ".safetensors", ".json")


def resolve(path_or_name: PathName, patterns: list[str]) -> Path:
    """Find the folder or file that `path_or_name` means; InputError where there is none.

    What exists on this machine wins; the directory of a training run stands for the export in it. Otherwise files of
    these glob patterns are downloaded from the Hub into its cache (`HF_HOME`), which serves alone without a network.
    """
    text = os.fspath(path_or_name)
    if not text.strip():
        raise InputError(f"{text!r} names nothing: give a folder, a checkpoint file, or a Hub name")
    path = Path(text).expanduser()
    if path.is_dir() and not any(next(path.glob(pattern), None) for pattern in patterns):
        if (path / EXPORT).is_dir():
            return path / EXPORT
        if checkpoints := sorted(file.name for file in path.glob("*.ckpt")):
            raise InputError(
                f"{path}: a run that has no {EXPORT}/; name one of its checkpoints: {', '.join(checkpoints)}"
            )
    if path.exists():
        return path
    if text.startswith((".", "/", "~")) or text.endswith(_FILE_SUFFIXES) or text.count("/") > 1 or "\\" in text:
        raise InputError(f"{text}: no such file or folder")
    # Imported here: local paths, the common case, need not wait for an HTTP client to load.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, HTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        folder = Path(snapshot_download(text, allow_patterns=patterns))
    except HFValidationError:
        raise InputError(f"{text!r} is neither a file or folder here nor a Hub name, such as org/name") from None
    except LocalEntryNotFoundError as error:
        partial = getattr(error, "snapshot_path", None)
        if partial is None:
            reason = "the Hub cannot be reached (or HF_HUB_OFFLINE is set) and its cache lacks it"
            raise InputError(f"{text}: no such file or folder here; {reason}") from error
        folder = Path(partial)
    except RepositoryNotFoundError as error:  # also where it is private or gated
        reason = "and no repository on the Hub that you may read: ask for access there and set HF_TOKEN"
        raise InputError(f"{text}: no such file or folder here, {reason}") from error
    except (HTTPError, OSError) as error:
        raise InputError(f"{text}: could not be downloaded from the Hub: {brief(error)}") from error
    if not folder.is_dir() or not any(folder.iterdir()):
        raise InputError(f"{text}: the Hub repository has none of the files {', '.join(patterns)}")
    return folder
