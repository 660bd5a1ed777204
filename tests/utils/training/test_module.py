from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

import finetune
from bart.modeling import modeling_bart
from tests.tiny_run import write_tiny_run


@pytest.mark.parametrize(
    ("options", "encoder", "decoder"),
    [([], 30, 30), (["--encoder_layerdrop", "0.5"], 12, 30), (["--decoder_layerdrop", "0.9"], 30, 4)],
)
def test_layerdrop_skips_layers_in_training_alone(
    options: list[str], encoder: int, decoder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 steps of one layer each: the layers that ran, under the seed of the run, and every one in validation."""
    counts: dict[tuple[str, bool], int] = {}

    def count(layer_class: type[modeling_bart._Layer], name: str) -> None:
        forward = layer_class.forward

        def counting(self: modeling_bart._Layer, *args: object) -> Tensor:
            counts[name, self.training] = counts.get((name, self.training), 0) + 1
            return forward(self, *args)

        monkeypatch.setattr(layer_class, "forward", counting)

    count(modeling_bart.BartEncoderLayer, "encoder")
    count(modeling_bart.BartDecoderLayer, "decoder")
    argv = write_tiny_run(tmp_path, n_train=60)
    finetune.main([*argv, "--do_train", "--output_dir", str(tmp_path / "run"), "--train_batch_size", "2", *options])
    assert {name: counts[name, True] for name in ("encoder", "decoder")} == {"encoder": encoder, "decoder": decoder}
    assert counts["encoder", False] == counts["decoder", False] > 0
