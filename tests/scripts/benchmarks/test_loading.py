"""scripts/benchmarks/training.py loading: the batches of its modes, and the table."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from bart.errors import InputError
from scripts.benchmarks import loading, training
from tests.tiny_shards import tiny_tokenizer, write_tiny_shards
from utils.data.corruption import Corruption
from utils.data.options import CorruptionOptions
from utils.data.pairs import Pair
from utils.data.shards import Manifest


def test_the_modes_are_measured(
    in_this_process: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loading, "WINDOW", 2)
    write_tiny_shards(tmp_path / "shards")
    output = tmp_path / "loading.json"
    options = ["--batch_size", "4", "--steps", "6", "--rounds", "1", "--output", str(output)]
    training.main(["loading", str(tmp_path / "shards"), *options])
    report = json.loads(output.read_text())
    assert [row["mode"] for row in report["results"]] == list(loading.MODES)
    assert report["results"][2]["speed_up"] == 1
    assert all(row["rate"] > 0 and row["megabytes"] > 10 for row in report["results"])
    assert capsys.readouterr().out.count("|\n") == 5


def test_the_peer_takes_as_much_as_ours(tmp_path: Path) -> None:
    """Its shares are those of words, and it gives every example once."""
    write_tiny_shards(tmp_path / "shards", bins=(128,), train=200)
    manifest = Manifest.read(tmp_path / "shards")
    corruption = Corruption(CorruptionOptions(), tiny_tokenizer(), 0)
    batches = loading.OneByOne(manifest, corruption, 20, list)
    pairs: list[Pair] = [pair for batch in islice(batches, 10) for pair in batch]
    assert len({tuple(pair.target) for pair in pairs}) == 200
    masks = [np.count_nonzero(pair.source == corruption.mask) for pair in pairs]
    left = [len(pair.source) - mask for pair, mask in zip(pairs, masks, strict=True)]
    share = 1 - sum(left) / sum(len(pair.target) for pair in pairs)
    assert 0.2 < share < 0.35  # spans overlap, so they take somewhat less than 0.3
    assert all(pair.source[0] == corruption.bos and pair.source[-1] == corruption.eos for pair in pairs)


def test_a_folder_without_shards_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such directory"):
        training.main(["loading", str(tmp_path / "none")])
