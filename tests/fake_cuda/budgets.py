"""The kernels and the bytes of steps, of bart-large unless told otherwise, on a CUDA device that is not there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from bart.backend import IGNORE_INDEX
from bart.configuration.configuration_bart import BartConfig
from bart.cuda.backend import CudaBackend
from bart.generation import schedule
from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests import forked
from tests.fake_cuda.decoding import begun, for_inference
from tests.fake_cuda.device import ROOT, Watch, carrying_rows, fake, on_device, plug_in

CONFIG = ROOT / "configs" / "config_xsum.json"


def _training(
    config: BartConfig, ids: list[Tensor], freeze: bool, dtype: torch.dtype | None
) -> tuple[BartForConditionalGeneration, Callable[[], Tensor]]:
    """A model, and a call of its loss, under autocast to dtype; in a `fake` mode.

    ids: of sources and targets, without padding, made outside the mode.
    """
    model = on_device(BartForConditionalGeneration(config)).train()
    model.compute_with(CudaBackend(leaves_out_padding=True))
    network = model.model
    for part in (network.shared, network.encoder.embed_positions, network.decoder.embed_positions):
        part.requires_grad_(not freeze)
    mask, labels = map(carrying_rows, ids, (0, IGNORE_INDEX))

    def loss() -> Tensor:
        # As Lightning has it.
        autocast = torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None, cache_enabled=False)
        with autocast, model.backend.step(model.layers):
            return model(mask, mask, labels=labels, summed_loss=True, label_smoothing=0.1).loss

    return model, loss


def _training_step() -> tuple[int, float, Counter[str]]:
    plug_in()
    ids = [torch.ones(40, length, dtype=torch.long) for length in (1024, 64)]
    with fake():
        # --freeze_embeds, as in the recipe.
        model, loss = _training(BartConfig.from_json(CONFIG), ids, True, torch.bfloat16)
        for _ in range(2):  # the first step makes the copies of weights
            model.zero_grad()
            with Watch() as watch:
                loss().backward()
    return watch.kernels.total(), watch.elementwise, watch.kernels


def training_step() -> tuple[int, float, Counter[str]]:
    """Kernels, bytes of all but products and attention, and kernels by name, in a forward and a backward pass.

    The batch is 40 articles of 1,024 tokens and summaries of 64, by autocast to bf16.
    """
    return forked.call(_training_step)


def _decoding_step() -> tuple[int, float, Counter[str]]:
    plug_in()
    schedule.recorder_for = lambda *_: None
    with fake(), torch.inference_mode():
        model = for_inference(BartForConditionalGeneration(BartConfig.from_json(CONFIG)), "bf16")
        batch = begun(model, {"num_beams": 6, "max_length": 60}, 128, 1024, 60)
        with Watch() as watch:
            batch.cache.advance()
            batch.take_step()
    return watch.kernels.total(), watch.traffic.total(), watch.kernels


def decoding_step() -> tuple[int, float, Counter[str]]:
    """Kernels, their bytes, and kernels by name, in a step of 128 articles with 6 beams each in bf16."""
    return forked.call(_decoding_step)
