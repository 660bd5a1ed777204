"""Training steps on a CUDA device that is not there: nothing waits or leaks, and mistakes are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fake_cuda.device import needs_compiler
from tests.fake_cuda.training import MIXES, PLANTED, USUAL, kept_by_a_layer, launches_of_a_step, waits_in_a_step
from tests.tiny_run import Train

pytestmark = needs_compiler


@pytest.fixture
def run(tiny: list[str], tmp_path: Path) -> list[str]:
    return [*tiny, "--max_steps", "1", "--gradient_accumulation_steps", "2", "--output_dir", str(tmp_path / "run")]


def test_planted_faults_are_found_and_nothing_else(run: list[str]) -> None:
    nothing, *faults = waits_in_a_step(run, [(USUAL, None), *((USUAL, name) for name in PLANTED)], last=6)
    assert nothing == {}
    for found, (_, message) in zip(faults, PLANTED.values(), strict=True):
        assert any(message in wait for wait in found), (message, found)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--activation_checkpointing",)], ids=str)
def test_no_precision_and_no_optimizer_lets_a_step_wait(run: list[str], options: tuple[str, ...]) -> None:
    found = waits_in_a_step([*run, *options], [(mix, None) for mix in MIXES])
    assert dict(zip(MIXES, found, strict=True)) == {mix: {} for mix in MIXES}


@pytest.mark.slow
def test_no_adapter_lets_a_step_wait(run: list[str], train: Train) -> None:
    weights = train("weights", "--max_steps", 1) / "export"
    options = ["--lora_rank", 2, "--model_name_or_path", weights]
    assert waits_in_a_step([*run, *options], [(USUAL, None)]) == [{}]


def test_memory_of_a_layer() -> None:
    """Queries, keys and values 6 bytes, context 2, states after both sums 2 each, normed and not, inner states 8."""
    assert 24 <= kept_by_a_layer(1024) / 1024 < 24.2


@pytest.mark.slow
def test_launches_of_a_network_of_twelve_layers_each(run: list[str], tmp_path: Path) -> None:
    """Recorded passes add to gradients by one call for all, and a step launches little beside its replays."""
    config = json.loads(Path(run[run.index("--config_path") + 1]).read_text())
    (tmp_path / "large.json").write_text(json.dumps({**config, "encoder_layers": 12, "decoder_layers": 12}))
    eager, replayed, recorded = launches_of_a_step([*run, "--config_path", tmp_path / "large.json"])
    assert 600 < eager.total() <= 700, eager
    assert replayed.total() - eager.total() <= 2 and replayed["_foreach_add_"] == 1, replayed
    assert 20 < recorded.total() < 60 and recorded["_foreach_copy_"] == 1, recorded
