"""Shards of text that a user has not made into shards: made once, in the folder of caches."""

from __future__ import annotations

import hashlib
import logging
import shutil
from contextlib import suppress
from glob import escape
from pathlib import Path

from bart.errors import InputError
from bart.files import as_named
from bart.tokenization.tokenizer import PretrainedTokenizer
from utils.app.output_files import file_digest
from utils.corpora.documents import PIECE, find_files
from utils.corpora.make_shards import make_shards
from utils.corpora.shard_options import WORK, MakeShardsOptions
from utils.data.options import SHARDS_VAL_RATIO, ShardOptions
from utils.data.shard_format import FORMAT, MANIFEST
from utils.data.token_cache import KEPT, alone, cache_folder, mark_as_used, remove_unused

logger = logging.getLogger(__name__)


def is_text(data_dir: str) -> bool:
    """True of a file, and of a folder without shards."""
    place = Path(data_dir)
    return place.is_file() or (place.is_dir() and not any((place / name).exists() for name in (MANIFEST, WORK)))


def shards_of_text(options: ShardOptions, tokenizer: PretrainedTokenizer, task: str, sequence_length: int) -> str:
    """Make shards of a file or a folder of text, once, and return their directory.

    Its name holds a digest of the texts, the vocabulary and the options, so that shards of others are made anew, and
    all but the KEPT that were used last are removed. Which documents are held out depends on the texts alone, whatever
    the seed of the run.

    Args:
        tokenizer: whose ids the examples are.
        task, sequence_length: as of `MakeShardsOptions`.

    Raises:
        InputError: there are no files of text, or too few documents; or the cache cannot be written.
        RunError: the disk is full.
    """
    data_dir, text_field = options.data_dir, options.text_field or "text"
    val_ratio = options.val_ratio or SHARDS_VAL_RATIO
    place = as_named(data_dir)
    files = find_files("data_dir", [data_dir])
    contents = [(str(file.relative_to(place.parent)), file_digest(file)) for file in files]
    identity = FORMAT, task, sequence_length, val_ratio, text_field, tokenizer.to_json(), contents
    digest = hashlib.blake2b(repr(identity).encode(), digest_size=16).hexdigest()
    cache = cache_folder(place if place.is_dir() else place.parent, options.cache_dir)
    folder = cache / f"{place.name}-shards-{digest}"
    with alone(cache):  # of several processes, one makes them
        if not (folder / MANIFEST).is_file():
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
            # Processes take seconds to start, in which one alone reads a piece.
            workers = None if sum(file.stat().st_size for file in files) > PIECE else 0
            try:
                made_with = MakeShardsOptions(
                    input=(data_dir,),
                    tokenizer="",
                    output=folder,
                    task=task,
                    sequence_length=sequence_length,
                    val_ratio=val_ratio,
                    text_field=text_field,
                    workers=workers,
                )
                make_shards(made_with, tokenizer)
            except InputError as error:
                shutil.rmtree(folder, ignore_errors=True)
                message = str(error).replace("--input ", "--data_dir ")
                raise InputError(message.replace("--sequence_length", "--max_source_length")) from None
        with suppress(OSError):  # they may be another user's
            folder.touch()
        made = sorted(cache.glob(f"{escape(place.name)}-shards-*"), key=lambda path: path.stat().st_mtime_ns)
        mark_as_used(folder)
        remove_unused({*made[:-KEPT]} - {folder})
    logger.info("shards of %s: %s", data_dir, folder)
    return str(folder)
