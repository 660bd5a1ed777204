"""Raw text for pretraining from the Hub: `python -m utils.corpora.get_pretraining_data FOLDER [SET ...]`.

Sets are streamed, file by file, to Parquet files of one column, `text`. A run goes on with the commit of a killed one.
"""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.corpora.get_pretraining_data")

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from bart.errors import InputError, brief
from bart.files import replacing, write_json
from utils.app.cli import option, parse_dataclass
from utils.app.errors import RunError, unwritable
from utils.app.output_files import LOCK, held, writable_folder
from utils.app.progress import progress, start_log
from utils.app.unfinished import Unfinished
from utils.corpora.data_directory import PROVENANCE, is_made
from utils.corpora.documents import gathered
from utils.data.columns import column_of
from utils.data.places import HUB_NAME, load_from_hub, opening

if TYPE_CHECKING:
    import datasets

# The texts on which NVIDIA pretrained (Wikipedia, Common Crawl's news, OpenWebText), and books: sets of the Hub with
# data files, which `datasets` needs. Branches move, so the commit goes into provenance.json.
SETS = {
    "wikipedia": "wikimedia/wikipedia:20231101.en",
    "cc_news": "vblagoje/cc_news",
    "openwebtext": "Skylion007/openwebtext",
    "books": "sedthh/gutenberg_english",
}
TEXT, BEGUN = "text", ".begun.jsonl"
GROUP = 1 << 24  # characters of a row group


@dataclass(frozen=True)
class GetPretrainingDataOptions:
    folder: Path = option(positional=True, help="folder for the sets; each gets a folder of its name in it")
    sets: tuple[str, ...] = option(
        tuple(SETS), positional=True, help="some of these, or others of the Hub as NAME[:CONFIG][@REVISION]"
    )
    text_field: str | None = option(None, help="column of documents; by default text, in capitals or not")
    max_documents: int | None = option(None, least=1, metavar="N", help="take the first N documents of each set")

    def __post_init__(self) -> None:
        for name in self.sets:
            if name not in SETS and not ("/" in name and HUB_NAME.fullmatch(name)):
                raise InputError(f"{name!r} is no set; allowed: {', '.join(SETS)}, NAME[:CONFIG][@REVISION] of the Hub")


def get_set(name: str, options: GetPretrainingDataOptions) -> None:
    """Fetch a set, or those of its files that are missing."""
    folder = options.folder / name.replace("/", "-").replace(":", "-")
    facts = {"set": name, "text_field": options.text_field, "max_documents": options.max_documents}
    if is_made(folder, facts, ()):
        return
    done = Unfinished(folder / BEGUN, facts, "name another folder")
    if not done.done and folder.is_dir() and any(path.name not in (LOCK, BEGUN) for path in folder.iterdir()):
        raise InputError(f"{folder} holds other files, and is not overwritten: name another folder")
    place = next(done.values(), SETS.get(name, name))
    with opening(f"{place} on the Hub"):
        splits, place = load_from_hub(place, streaming=True)
        rows = splits.get("train", next(iter(splits.values())))
        rows = _texts(rows, options.text_field, place)
    try:
        writable_folder("FOLDER", folder)
        with held(folder / LOCK, f"{folder}: another run is fetching it"), closing(done):
            for leftover in folder.glob(".*.tmp"):  # of a process that was killed
                leftover.unlink()
            if not done.done:
                done.add(place)
            count = _fetch(rows, folder, name, options.max_documents)
            write_json(folder / PROVENANCE, {**facts, "from": place, "documents": count})
            done.finish()
    except OSError as error:
        raise unwritable(str(folder), error) from None
    print(f"{folder}: {count:,} documents of {place}")


def _texts(rows: datasets.IterableDataset, field: str | None, where: str) -> datasets.IterableDataset:
    columns = [name for name, value in next(iter(rows), {}).items() if isinstance(value, (str, bytes, type(None)))]
    usual = [column for column in columns if column.lower() == TEXT] or [TEXT]
    column = column_of("text_field", field, usual, columns, where)
    rows = rows.select_columns([column])
    return rows if column == TEXT else rows.rename_column(column, TEXT)


def _fetch(rows: datasets.IterableDataset, folder: Path, name: str, limit: int | None) -> int:
    """Write the files of a set that are not there, and return the number of documents in all files."""
    count, files = 0, rows.num_shards
    schema = pa.schema([(TEXT, pa.large_string())])
    with progress(name, limit, "documents") as shown:
        for number in range(files):
            path = folder / f"{number:05d}-of-{files:05d}.parquet"
            if path.exists():
                count += parquet.read_metadata(path).num_rows
                shown.begin(count)
                continue
            if count == limit:
                break
            left = None if limit is None else limit - count
            texts = _read(islice(rows.shard(num_shards=files, index=number), left), name)
            with replacing(path) as temporary, parquet.ParquetWriter(temporary, schema, compression="zstd") as file:
                for group in gathered(texts, lambda text: len(text or ""), GROUP):
                    file.write_table(pa.table([group], schema))
                    count += len(group)
                    shown.update(len(group))
    return count


def _read(texts: Iterable[Mapping[str, Any]], name: str) -> Iterator[str | None]:
    try:
        for row in texts:
            yield row[TEXT]
    except Exception as error:  # whatever the Hub's client or the format's reader raises
        raise RunError(f"{name}: cannot be read any further ({brief(error)}); the same command goes on") from error


def main(argv: Sequence[str] | None = None) -> None:
    text = "Fetch raw text for pretraining from the Hub, as Parquet files."
    options = parse_dataclass(GetPretrainingDataOptions, argv, text)
    start_log()
    for name in dict.fromkeys(options.sets):
        get_set(name, options)
