"""A task in one file: reversing words, as `finetune.py --task path/to/reversing.py` trains it.

The data directory holds train.txt, val.txt and test.txt, one word a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from bart.errors import InputError
from utils.data.tables import Pairs
from utils.tasks.text_to_text import TextToText


class Reversing(TextToText):
    """Words to themselves, read backwards. Validation and scoring report the share of words that are right."""

    metrics: ClassVar[Mapping[str, str]] = {"accuracy": "max"}
    target, endpoint = "letter", "/reverse"

    def read(self, split: str, for_scoring: bool = False) -> Pairs:
        held_in, choice = self.place.chosen(split)
        path = Path(self.place.data_dir) / f"{held_in}.txt"
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        words = choice.of(path.read_text(encoding="utf-8").split(), str)
        return words, [word[::-1] for word in words]

    def scores_of_each(self, predictions: Sequence[str], references: Sequence[str]) -> Mapping[str, Sequence[float]]:
        pairs = zip(predictions, references, strict=True)
        return {"accuracy": [float(prediction == reference) for prediction, reference in pairs]}
