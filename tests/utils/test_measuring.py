"""What the benchmarks share."""

from __future__ import annotations

import os

import numpy as np
import pytest

from utils.measuring import in_turns, made_up_config, process_memory_gb, table
from utils.processes import in_new_process


def who(mode: str, number: int) -> dict[str, object]:
    return {"mode": mode, "number": number, "process": os.getpid()}


def test_every_run_is_a_process_of_its_own_and_modes_take_turns(capfd: pytest.CaptureFixture[str]) -> None:
    results = in_turns(["one", "other"], 2, who, 7)
    assert {mode: [run["mode"] for run in runs] for mode, runs in results.items()} == {
        "one": ["one", "one"],
        "other": ["other", "other"],
    }
    runs = [run for done in results.values() for run in done]
    assert len({run["process"] for run in runs} | {os.getpid()}) == 5
    assert {run["number"] for run in runs} == {7}
    order = ["one, 1", "other, 1", "one, 2", "other, 2"]
    assert capfd.readouterr().err.splitlines() == [f"running {turn} of 2" for turn in order]


def test_the_memory_of_a_process_is_its_own() -> None:
    held = np.ones(2**25)  # 0.27 GB
    assert process_memory_gb() > held.nbytes / 1e9
    assert 0 < in_new_process(process_memory_gb) < held.nbytes / 1e9


def test_tables_have_a_place_for_what_is_not_known() -> None:
    rows = [{"name": "a", "rate": 1234.5, "count": 3}, {"name": "b | c", "rate": 0.01234}]
    columns = {"name": "name", "rate": "per second", "count": "count"}
    plain = [line.split() for line in table(rows, columns).splitlines()]
    assert plain[1:] == [["a", "1,234", "3"], ["b", "|", "c", "0.0123", "-"]]
    head, _, *rest = table(rows, columns, "pipe").splitlines()
    assert head.split("|")[1].strip() == "name"
    assert r"b \| c" in rest[1]


def test_a_made_up_network_is_as_large_as_its_name_says() -> None:
    config = made_up_config("base", vocab_size=50265, dropout=0.0)
    assert (config.d_model, config.encoder_layers, config.decoder_attention_heads) == (768, 6, 12)
    assert (config.decoder_ffn_dim, config.vocab_size, config.dropout) == (3072, 50265, 0.0)
