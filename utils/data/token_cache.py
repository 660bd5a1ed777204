"""Token ids of text files, made once and mapped from an Arrow file on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from bart.errors import InputError
from bart.files import PathName, cache_home, replacing
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.app.errors import RunError, unwritable
from utils.app.output_files import LOCK, file_digest, held, writable_folder, write_whole
from utils.app.progress import progress
from utils.data.splits import EVERY, Choice
from utils.data.tables import pair_paths, paired
from utils.data.tokenized import TokenizedTexts, tokenise, tokens_schema
from utils.text.lines import iter_lines, references_of

_FORMAT = "6"  # of the files of the cache and of their content; a new number makes them anew
IDS, DIGEST = "ids.arrow", "ids.xxh3"


@dataclass(frozen=True)
class TextFile:
    """A text file that was checked, one example a line, and the folder of its caches."""

    path: Path
    digest: str
    lines: int
    cache: Path
    kept: Path | None = None  # file of the numbers, from 0, of the lines that are used; its name is their digest
    lists: int = 0  # lines that are lists of references, of which the first is tokenised

    def __len__(self) -> int:
        return self.lines if self.kept is None else len(np.load(self.kept, mmap_mode="r"))

    @property
    def identity(self) -> dict[str, Any]:
        """Plain values for a checkpoint, which a run that resumes must find again, wherever the file lies."""
        kept = {} if self.kept is None else {"kept": self.kept.stem}
        return {"digest": self.digest, "lines": len(self), **kept}

    def texts(self) -> Iterator[str]:
        """The lines that are used, as they are read."""
        lines = iter_lines(self.path)
        if self.kept is None:
            return lines
        is_kept = np.zeros(self.lines, bool)
        is_kept[np.load(self.kept)] = True
        return compress(lines, is_kept)

    def tokenized(self, tokenizer: BartTokenizer, max_length: int) -> TokenizedTexts:
        """Tokenise the lines; the ids are mapped from an Arrow file, made and checked by one process of a machine."""
        from utils.app.distributed import told_by_first  # here, because utils.corpora.prepare needs no torch

        kept = self.identity.get("kept")
        made_with = (_FORMAT, self.digest, max_length, kept, tokenizer.add_prefix_space, tokenizer.to_json())

        def make() -> Path:
            folder = made_once(
                *(self.cache, self.path.name, made_with, DIGEST),
                lambda folder: self._write(folder, tokenizer, max_length),
            )
            with suppress(OSError):
                if file_digest(folder / IDS) == (folder / DIGEST).read_text():
                    return folder / IDS
            raise RunError(f"{folder}: it is damaged; remove it and start again")

        ids = told_by_first(f"ids of {self.path} {made_with}", make)
        return TokenizedTexts(pa.ipc.open_file(pa.memory_map(str(ids))).read_all().to_batches())

    def _write(self, folder: Path, tokenizer: BartTokenizer, max_length: int) -> None:
        folder.mkdir(exist_ok=True)
        with pa.ipc.new_file(str(folder / IDS), tokens_schema(tokenizer)) as file:
            texts = (references_of(line)[0] if self.lists else line for line in self.texts())
            for batch in tokenise(texts, len(self), tokenizer, max_length):
                file.write(batch)
        if file_digest(self.path) != self.digest:
            raise RunError(f"{self.path}: it changed while it was read; start again")
        write_whole(folder / DIGEST, file_digest(folder / IDS))


PairFiles = tuple[TextFile, TextFile]  # sources and targets


def check_pairs(data_dir: PathName, split: str, choice: Choice = EVERY, cache_dir: str | None = None) -> PairFiles:
    """Check a split's files of sources and targets, of which the examples are used that are chosen by their sources."""
    paths = pair_paths(data_dir, split)
    cache = cache_folder(Path(data_dir), cache_dir)
    pairs = progress(f"reading {split}", None, "examples", paired(*paths))
    are_lists = [references_of(summary) != [summary] for _, summary in pairs]
    source, target = (TextFile(path, file_digest(path), len(are_lists), cache) for path in paths)
    if choice != Choice(tables=choice.tables):  # not all
        kept = tuple(number for number, _ in choice.of(enumerate(source.texts()), itemgetter(1)))
        if len(kept) < source.lines:
            file = cache / f"{xxhash.xxh3_128_hexdigest(repr(kept).encode())}.npy"
            with replacing(file) as temporary, temporary.open("wb") as opened:
                np.save(opened, np.array(kept, np.int32))
            source, target = replace(source, kept=file), replace(target, kept=file)
            are_lists = [are_lists[number] for number in kept]
    return source, replace(target, lists=sum(are_lists))


def cache_folder(data_dir: Path, cache_dir: str | None) -> Path:
    """The folder of the caches of a data directory or set, which no other one uses; it is made if need be."""
    is_here = data_dir.is_dir()  # unless it is the name of a set
    path = data_dir.resolve() if is_here else data_dir
    if cache_dir is None and is_here:
        with suppress(InputError, RunError):
            return writable_folder("--cache_dir", data_dir / ".cache")
    name = f"{path.name}-{xxhash.xxh3_64_hexdigest(os.fsencode(path))}"
    return writable_folder("--cache_dir", Path(cache_dir or cache_home()) / name)


def made_once(cache: Path, name: str, identity: object, whole: str, make: Callable[[Path], None]) -> Path:
    """The folder of a cache for this name and identity, which `make` fills unless the file `whole` is there."""
    folder = cache / f"{name}-{xxhash.xxh3_128_hexdigest(repr(identity).encode())}"
    if (folder / whole).is_file():  # without the lock, which may be another user's, or held for long
        return folder
    try:
        with held(cache / LOCK, "waiting for another process that prepares these texts", waits=True):
            if not (folder / whole).is_file():
                make(folder)
    except OSError as error:
        raise unwritable(str(folder), error) from None
    return folder
