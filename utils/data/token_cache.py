"""Token ids of line files, made once and mapped from an Arrow file on the disk."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from filelock import FileLock, Timeout

from bart.errors import InputError
from bart.files import replacing
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.data.line_files import check_counts, pair_paths
from utils.data.tokenized import TokenizedTexts, kind_of_ids, tokenise
from utils.errors import RunError, unwritable
from utils.files import file_digest
from utils.lines import iter_lines

logger = logging.getLogger(__name__)
_FORMAT = "2"  # of the files of the cache and of what is in them; another number makes them anew
KEPT = 4  # caches of one text file: those of the settings that were used last


@dataclass(frozen=True)
class TextFile:
    """A line file in which no fault was found, and the folder for what is known about it.

    Attributes:
        digest: stands for its bytes.
        lines: how many it has.
        limit: how many lines are used, the first ones; all if negative.
    """

    path: Path
    digest: str
    lines: int
    cache: Path
    limit: int = -1

    def __len__(self) -> int:
        return self.lines if self.limit < 0 else min(self.limit, self.lines)

    @property
    def identity(self) -> dict[str, Any]:
        """What a run that resumes must find again, as plain values for a checkpoint, wherever the file lies."""
        return {"digest": self.digest, "lines": len(self)}

    def read(self) -> list[str]:
        """The lines that are used."""
        return list(self._texts())

    def _texts(self) -> Iterator[str]:
        return islice(iter_lines(self.path), len(self))

    def tokenized(self, tokenizer: BartTokenizer, max_length: int) -> TokenizedTexts:
        """The lines as token ids, mapped from an Arrow file, which is made if it is missing or too short.

        The name of the Arrow file tells what it was made of: the bytes of the text file, the vocabulary, the length.
        If several processes need it, one makes it and the others wait. It is in place only when all of it is written.

        Raises:
            RunError: the disk is full, or the text file changed meanwhile.
        """
        made_with = (_FORMAT, max_length, tokenizer.add_prefix_space, tokenizer.to_json())
        settings = xxhash.xxh3_128_hexdigest("\0".join(map(str, made_with)).encode())
        path = self.cache / f"{self.path.name}-{self.digest[:16]}-{settings[:16]}.arrow"
        if (found := self._mapped(path)) is not None:
            return found
        with _alone(self.cache):
            if (found := self._mapped(path)) is not None:
                return found
            for leftover in self.cache.glob(".*.arrow.*.tmp"):  # of a process that was killed
                leftover.unlink()
            schema = pa.schema([("ids", pa.list_(pa.from_numpy_dtype(kind_of_ids(tokenizer))))])
            try:
                with replacing(path) as temporary:
                    with pa.ipc.new_file(str(temporary), schema) as file:
                        for ids, lengths in tokenise(self._texts(), len(self), tokenizer, max_length):
                            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
                            file.write(pa.record_batch([pa.ListArray.from_arrays(offsets, ids)], schema=schema))
                    _check_unchanged(self.path, self.digest)
            except OSError as error:
                raise unwritable(str(path), error) from None
            self._remove_stale()
        found = self._mapped(path)
        assert found is not None
        return found

    def _mapped(self, path: Path) -> TokenizedTexts | None:
        """The first lines of a cache, of which only what is used is read; None if there is none or it has too few."""
        try:
            file = pa.ipc.open_file(pa.memory_map(str(path)))
            columns = [file.get_batch(i).column(0) for i in range(file.num_record_batches)]
        except FileNotFoundError:
            return None
        except (pa.ArrowInvalid, OSError) as error:
            logger.warning("%s is damaged (%s): it is made anew", path, str(error).splitlines()[0])
            return None
        if sum(map(len, columns)) < len(self):
            return None
        with suppress(OSError):  # it may be another user's
            os.utime(path)  # tells _remove_stale that it was used
        chunks = ((column.values.to_numpy(), np.diff(column.offsets.to_numpy())) for column in columns)
        return TokenizedTexts(chunks, self.limit)

    def _remove_stale(self) -> None:
        """Remove what is kept about other bytes of this text file, and all but the KEPT caches that were used last.

        A process that has mapped one of them goes on with it: on Linux and macOS the bytes of a file that was removed
        stay until the last mapping is gone.
        """
        name = re.compile(rf"{re.escape(self.path.name)}-(?P<digest>[0-9a-f]{{16}})(-[0-9a-f]{{16}}\.arrow|\.lines)")
        present = []
        for path in self.cache.iterdir():
            if (found := name.fullmatch(path.name)) is None:
                continue
            if found["digest"] != self.digest[:16]:
                path.unlink(missing_ok=True)
            elif path.suffix == ".arrow":
                present.append(path)
        for path in sorted(present, key=lambda path: path.stat().st_mtime_ns, reverse=True)[KEPT:]:
            path.unlink(missing_ok=True)


PairFiles = tuple[TextFile, TextFile]  # sources and targets


def check_pairs(
    data_dir: str | os.PathLike[str], split: str, limit: int = -1, cache_dir: str | None = None
) -> PairFiles:
    """Look for faults in a split's files of sources and targets. Bytes that were looked at before are not read again.

    Args:
        limit: how many examples are used, the first ones; all if negative.
        cache_dir: the folder for what is kept; by default `.cache` in the data directory, or a folder of the user's
            where that cannot be written.

    Raises:
        InputError: the directory or a file is missing or malformed, the counts differ, or the cache cannot be written.
        RunError: the disk is full, or a file changed while it was read.
    """
    paths = pair_paths(data_dir, split)
    cache = _cache_folder(Path(data_dir), cache_dir)
    source, target = (TextFile(path, *_checked(path, cache), cache, limit) for path in paths)
    check_counts(paths, source.lines, target.lines)
    return source, target


def _cache_folder(data_dir: Path, cache_dir: str | None) -> Path:
    """A folder for this data directory alone."""
    own = f"{data_dir.resolve().name}-{xxhash.xxh3_64_hexdigest(os.fsencode(data_dir.resolve()))}"
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bart-pytorch"
    folders = [data_dir / ".cache", users / own] if cache_dir is None else [Path(cache_dir) / own]
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            reason = error
    raise unwritable(f"--cache_dir {folders[-1]}", reason)


def _checked(path: Path, cache: Path) -> tuple[str, int]:
    """The digest of a line file, and how many lines it has."""
    try:
        digest = file_digest(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    stamp = cache / f"{path.name}-{digest[:16]}.lines"
    try:
        return digest, int(stamp.read_text())
    except (OSError, ValueError):  # the file was never looked at, or the stamp is damaged
        lines = sum(1 for _ in iter_lines(path))
    _check_unchanged(path, digest)  # else the number would stand for bytes that were not counted
    with replacing(stamp) as temporary:
        temporary.write_text(f"{lines}\n")
    return digest, lines


def _check_unchanged(path: Path, digest: str) -> None:
    if file_digest(path) != digest:
        raise RunError(f"{path}: it changed while it was read; start again")


def _alone(cache: Path) -> FileLock:
    """Acquire a lock on the folder. The system frees it when the process ends."""
    lock = FileLock(cache / ".lock")
    try:
        return lock.acquire(timeout=1)
    except Timeout:
        logger.info("waiting for another process that tokenises these texts")
        return lock.acquire()
