"""Learn a vocabulary from a data directory: `python -m utils.data.train_tokenizer --data_dir DIR --output_dir DIR`."""

from __future__ import annotations

from collections.abc import Sequence

from bart.tokenization.tokenization_bart import BartTokenizer
from utils.cli import ArgumentParser, run_main
from utils.data.line_files import SPLITS, read_pairs


def main(argv: Sequence[str] | None = None) -> None:
    """Train a byte-level BPE vocabulary on the sources and targets of the splits, and write it to a folder.

    Raises:
        InputError: data that is missing or malformed, a size out of range, a folder that cannot be written.
    """
    parser = ArgumentParser(
        prog="python -m utils.data.train_tokenizer",
        description="Train a byte-level BPE vocabulary on the line files of a data directory.",
    )
    parser.add_argument("--data_dir", required=True, help="folder with {train,val,test}.{source,target}")
    parser.add_argument("--output_dir", required=True, help="folder for the tokenizer's files, made if need be")
    parser.add_argument("--vocab_size", type=int, default=8000, help="number of tokens, at least 261 (default: 8000)")
    parser.add_argument(
        "--min_frequency", type=int, default=2, help="merge only pairs that occur this often (default: 2)"
    )
    parser.add_argument(
        "--splits", nargs="+", choices=SPLITS, default=["train"], help="splits to learn from (default: train)"
    )
    args = parser.parse_args(argv)

    texts = [text for split in dict.fromkeys(args.splits) for side in read_pairs(args.data_dir, split) for text in side]
    tokenizer = BartTokenizer.train(texts, args.vocab_size, args.min_frequency)
    tokenizer.save_pretrained(args.output_dir)
    print(f"{args.output_dir}: a vocabulary of {len(tokenizer)} tokens from {len(texts)} lines of {args.data_dir}")


if __name__ == "__main__":
    run_main(main)
