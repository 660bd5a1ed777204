"""Data sets on the Hugging Face Hub as Parquet files; no code of theirs is run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bart.errors import InputError
from utils.cli import brief
from utils.data.download import RetryPolicy, TransientError, is_transient
from utils.data.fields import KNOWN_FIELDS
from utils.data.line_files import SPLITS

if TYPE_CHECKING:
    from huggingface_hub.hf_api import DatasetInfo

# Where the Hub puts the Parquet files that it makes itself of a set in another format.
REVISIONS = ("main", "refs/convert/parquet")
# `train-00000-of-00003.parquet`, or `train/0000.parquet` in what the Hub makes.
_FILE = re.compile(r"(train|validation|test)(?:-\d+-of-\d+|/\d+)\.parquet")


@dataclass(frozen=True)
class HubFile:
    """A file of a repository: its URL, and the bytes and SHA-256 that the Hub says it has."""

    name: str
    url: str
    size: int | None
    sha256: str | None


def list_parquet(repository: str, folders: Sequence[str], retries: RetryPolicy) -> tuple[str, dict[str, list[HubFile]]]:
    """Find a set's files: those in the first of the folders that has each split, in the first of `REVISIONS`.

    Args:
        folders: "data/", or "" for the top.

    Returns:
        The commit, and split -> files in order.

    Raises:
        InputError: there is no such repository, it is closed, or it has no such files.
        RunError: the Hub cannot be reached.
    """
    from huggingface_hub import hf_hub_url

    for revision in REVISIONS:
        info = retries.call(f"{repository} on the Hub", lambda name=revision: _info(repository, name, retries))
        if info is None:
            continue
        for folder in folders:
            splits: dict[str, list[HubFile]] = {split: [] for split in SPLITS}
            for file in sorted(info.siblings or [], key=lambda file: file.rfilename):
                if file.rfilename.startswith(folder) and (found := _FILE.fullmatch(file.rfilename[len(folder) :])):
                    url = hf_hub_url(repository, file.rfilename, repo_type="dataset", revision=info.sha)
                    size, sha256 = (file.lfs.size, file.lfs.sha256) if file.lfs else (file.size, None)
                    splits["val" if found[1] == "validation" else found[1]].append(
                        HubFile(file.rfilename, url, size, sha256)
                    )
            if all(splits.values()):
                return info.sha, splits
    places = " or ".join(repr(folder) for folder in folders)
    raise InputError(f"{repository} on the Hub: no Parquet files of train, validation and test under {places}")


def hub_headers() -> dict[str, str]:
    """What a request for a file of the Hub carries: HF_TOKEN, where there is one."""
    from huggingface_hub.utils import build_hf_headers

    return build_hf_headers()


def _info(repository: str, revision: str, retries: RetryPolicy) -> DatasetInfo | None:
    """What the Hub says of a revision, None where it is missing."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        info = HfApi().dataset_info(repository, revision=revision, files_metadata=True, timeout=retries.timeout)
    except RevisionNotFoundError:
        return None
    except (GatedRepoError, RepositoryNotFoundError):
        raise InputError(
            f"{repository}: the Hub has no such data set, or not for everyone: set HF_TOKEN if you may see it"
        ) from None
    except OfflineModeIsEnabled:
        raise InputError(f"{repository}: HF_HUB_OFFLINE is set, so the Hub is not asked") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        message = f"the Hub answers {status} {error.response.reason_phrase}"
        if is_transient(status):
            raise TransientError(message) from None
        raise InputError(f"{repository}: {message}") from None
    except HTTPError as error:
        raise TransientError(f"the Hub cannot be reached ({str(error) or type(error).__name__})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TransientError(f"the Hub's answer makes no sense ({type(error).__name__}: {error})") from None
    if not info.sha:
        raise TransientError("the Hub's answer names no commit")
    return info


def count_rows(files: Sequence[Path]) -> int:
    """Rows of Parquet files, by their footers.

    Raises:
        InputError: one is no Parquet file.
    """
    import pyarrow
    from pyarrow.parquet import read_metadata

    rows = 0
    for file in files:
        try:
            rows += read_metadata(file).num_rows
        except pyarrow.ArrowException as error:
            raise InputError(f"{file}: not a Parquet file ({brief(error)})") from None
    return rows


def read_rows(files: Sequence[Path]) -> Iterator[tuple[str, str, str]]:
    """Read a split row by row.

    Yields:
        (name, document, summary); the name is the column `id`, or the row's number from 1. A text that is missing is
        empty.

    Raises:
        InputError: the columns are not those of any known set, or hold no texts.
    """
    from datasets import IterableDataset
    from pyarrow import types
    from pyarrow.parquet import read_schema

    schemas = [read_schema(file) for file in files]
    common = set(schemas[0].names).intersection(*(schema.names for schema in schemas))
    found = [fields for fields in KNOWN_FIELDS if common.issuperset(fields)]
    if not found:
        raise InputError(
            f"{files[0].name}: no known columns of documents and summaries among {', '.join(sorted(common))}"
        )
    source, target = found[0]
    for file, schema in zip(files, schemas, strict=True):
        for field in (source, target):
            kind = schema.field(field).type
            if not (types.is_string(kind) or types.is_large_string(kind)):
                raise InputError(f"{file.name}: column {field} holds {kind}; strings are expected")
    wanted = [source, target, *(["id"] if "id" in common else [])]
    rows = IterableDataset.from_parquet([str(file) for file in files], columns=wanted)
    for number, row in enumerate(rows, 1):
        yield str(row.get("id") or number), row[source] or "", row[target] or ""
