"""Learn a vocabulary from texts: `python -m utils.corpora.train_tokenizer --data_dir DIR --output_dir DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bart.tokenization.tokenization_bart import BartTokenizer
from utils.cli import option, parse_dataclass, run_main
from utils.data.line_files import read_pairs


@dataclass(frozen=True)
class Options:
    """The command line."""

    data_dir: str = option(help="folder with train.source and train.target")
    output_dir: str = option(help="folder for the tokenizer's files, made if need be")
    vocab_size: int = option(8000, help="number of tokens, at least 261")
    min_frequency: int = option(2, help="merge only pairs that occur this often")


def main(argv: Sequence[str] | None = None) -> None:
    """Train a byte-level BPE vocabulary on the sources and targets of the training split, and write it to a folder.

    Raises:
        InputError: data are missing or malformed, a size is out of range, or the folder cannot be written.
    """
    options = parse_dataclass(
        Options,
        argv,
        "Train a byte-level BPE vocabulary on the training split of a data directory.",
    )
    texts = [text for side in read_pairs(options.data_dir, "train") for text in side]
    tokenizer = BartTokenizer.train(texts, options.vocab_size, options.min_frequency)
    tokenizer.save_pretrained(options.output_dir)
    print(
        f"{options.output_dir}: a vocabulary of {len(tokenizer)} tokens from {len(texts)} lines of {options.data_dir}"
    )


if __name__ == "__main__":
    run_main(main)
