"""Shards of text that a user has not made into shards: made once, in the folder of caches."""

from __future__ import annotations

import logging
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
from utils.data.token_cache import cache_folder, made_once

logger = logging.getLogger(__name__)


def is_text(data_dir: str) -> bool:
    """True of a file, and of a folder without shards."""
    place = Path(data_dir)
    return place.is_file() or (place.is_dir() and not any((place / name).exists() for name in (MANIFEST, WORK)))


def shards_of_text(options: ShardOptions, tokenizer: PretrainedTokenizer, task: str, sequence_length: int) -> str:
    """Make shards of a file or a folder of text, once, and return their directory.

    Which documents are held out depends on the texts alone, whatever the seed of the run.
    """
    place, text_field = as_named(options.data_dir), options.text_field or "text"
    val_ratio = options.val_ratio or SHARDS_VAL_RATIO
    files = find_files("data_dir", [options.data_dir])

    def make(folder: Path) -> None:
        try:
            made_with = MakeShardsOptions(
                input=(options.data_dir,),
                tokenizer="",
                output=folder,
                task=task,
                sequence_length=sequence_length,
                val_ratio=val_ratio,
                text_field=text_field,
                # Processes take seconds to start, in which one alone reads a piece.
                workers=None if sum(file.stat().st_size for file in files) > PIECE else 0,
            )
            make_shards(made_with, tokenizer)
        except InputError as error:
            message = str(error).replace("--input ", "--data_dir ")
            raise InputError(message.replace("--sequence_length", "--max_source_length")) from None

    contents = [(str(file.relative_to(place.parent)), file_digest(file)) for file in files]
    identity = FORMAT, task, sequence_length, val_ratio, text_field, tokenizer.to_json(), contents
    cache = cache_folder(place if place.is_dir() else place.parent, options.cache_dir)
    folder = str(made_once(cache, f"{place.name}-shards", identity, MANIFEST, make))
    logger.info("shards of %s: %s", options.data_dir, folder)
    return folder
