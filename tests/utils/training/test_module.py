from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

import finetune
from bart.modeling import modeling_bart
from tests.tiny_run import write_tiny_run


@pytest.mark.parametrize("drops", [{}, {"encoder": 0.5}, {"decoder": 0.9}, {"encoder": 0.9, "decoder": 0.5}])
def test_layerdrop_skips_layers_in_training_alone(
    drops: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One layer in each stack: in how many of 30 steps it ran; in validation it always does."""
    counts: dict[tuple[str, bool], int] = {}

    def count(layer_class: type[modeling_bart._Layer], name: str) -> None:
        forward = layer_class.forward

        def counting(self: modeling_bart._Layer, *args: object) -> Tensor:
            counts[name, self.training] = counts.get((name, self.training), 0) + 1
            return forward(self, *args)

        monkeypatch.setattr(layer_class, "forward", counting)

    count(modeling_bart.BartEncoderLayer, "encoder")
    count(modeling_bart.BartDecoderLayer, "decoder")
    argv = [*write_tiny_run(tmp_path, n_train=60), "--do_train", "--train_batch_size", "2"]
    argv += [word for name, chance in drops.items() for word in (f"--{name}_layerdrop", str(chance))]
    finetune.main([*argv, "--output_dir", str(tmp_path / "run")])
    for name in ("encoder", "decoder"):
        chance = drops.get(name, 0.0)
        tolerance = 9 if chance else 0  # 3 standard deviations at least
        assert abs(counts[name, True] - 30 * (1 - chance)) <= tolerance, name
    assert counts["encoder", False] == counts["decoder", False] > 0
