"""Learn a vocabulary from texts: `python -m utils.corpora.train_tokenizer --data_dir DIR --output_dir DIR`."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.corpora.train_tokenizer")

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count

import xxhash

from bart.errors import InputError, naming
from bart.tokenization.encoding import texts_to_learn
from bart.tokenization.tokenization_bart import BartTokenizer
from bert.tokenization.tokenization_bert import BertTokenizer
from utils.app.cli import option, parse_dataclass
from utils.app.output_files import writable_folder
from utils.app.progress import progress, start_log
from utils.app.stores import STORES, in_store
from utils.corpora.data_directory import building
from utils.corpora.documents import TEXT_FILES, Piece, find_files, is_packed, measured, pieces_of, read_documents
from utils.data.tables import read_pairs
from utils.text.lines import reference_texts


@dataclass(frozen=True)
class TrainTokenizerOptions:
    output_dir: str = option(help="folder for the tokenizer's files")
    data_dir: str | None = option(None, help="folder with train.source and train.target")
    input: tuple[str, ...] = option(
        (),
        metavar="PATH",
        help=f"files of raw text ({', '.join(TEXT_FILES)}), and folders of them, here or as a {STORES}; instead of "
        "--data_dir",
        reaches=in_store,
    )
    text_field: str = option("text", help="field of JSON Lines and Parquet that holds a document")
    max_megabytes: int = option(
        1000, least=1, metavar="N", help="learn from about N megabytes of --input; documents are drawn at random"
    )
    model_type: str = option("bart", choices=("bart", "bert"), help="bart has byte-level BPE, bert has WordPiece")
    lowercase: bool = option(True, help="bert reads texts in lower case and without accents")
    vocab_size: int = option(8000, most=10_000_000, help="number of tokens; at least 261, for bert 7")
    min_frequency: int = option(2, help="merge only pairs that occur at least this often")

    def __post_init__(self) -> None:
        if (self.data_dir is None) == (not self.input):
            raise InputError(f"--data_dir is {self.data_dir}, --input is {' '.join(self.input)!r}: give one of them")
        if self.data_dir is not None and (self.text_field, self.max_megabytes) != ("text", 1000):
            raise InputError("--text_field and --max_megabytes are about --input; --data_dir is read whole")
        if not self.lowercase and self.model_type != "bert":
            raise InputError(f"--no_lowercase is about --model_type bert; --model_type is {self.model_type}")


def sampled(files: Sequence[Piece], text_field: str, megabytes: int) -> Iterator[str]:
    """Give about so many megabytes of the documents of files, chosen by a hash of their text."""
    files = [measured(file)[0] if is_packed(file.place) else file for file in files]
    share = megabytes * 1e6 / max(1, sum(file.size for file in files))
    pieces = [piece for file in files for piece in pieces_of(file)]
    for piece in progress("reading", len(pieces), "pieces", pieces):
        for document in read_documents(piece, text_field):
            text = document.text
            if not document.fault and xxhash.xxh3_64_intdigest(text.encode()) < share * (1 << 64):
                yield text


def main(argv: Sequence[str] | None = None) -> None:
    options = parse_dataclass(TrainTokenizerOptions, argv, "Train a vocabulary on a training split, or on raw text.")
    folder = writable_folder("--output_dir", options.output_dir)
    with building(folder) as place:
        if options.data_dir is not None:
            sources, targets = read_pairs(options.data_dir, "train")
            texts = chain(sources, reference_texts(targets))
            unit = f"lines of {options.data_dir}"
        else:
            start_log()
            files = find_files("input", options.input)
            texts = sampled(files, options.text_field, options.max_megabytes)
            unit = f"documents of {len(files)} files"
        numbers = count()
        with naming(options.data_dir or " ".join(options.input)):
            counted = texts_to_learn(text for text, _ in zip(texts, numbers, strict=False))
        if options.model_type == "bert":
            tokenizer = BertTokenizer.train(counted, options.vocab_size, options.min_frequency, options.lowercase)
        else:
            tokenizer = BartTokenizer.train(counted, options.vocab_size, options.min_frequency)
        tokenizer.save_pretrained(place)
    print(f"{options.output_dir}: a vocabulary of {len(tokenizer)} tokens from {next(numbers)} {unit}")
