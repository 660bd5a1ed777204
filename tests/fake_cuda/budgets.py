"""The kernels and the bytes of bart-large's steps, counted on a CUDA device that is not there."""

from __future__ import annotations

from collections import Counter

import torch

from bart.backend import TORCH
from bart.configuration.configuration_bart import BartConfig
from bart.generation import schedule
from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests import forked
from tests.fake_cuda.decoding import begun, for_inference
from tests.fake_cuda.device import DEVICE, ROOT, Watch, efficient_attention, fake, on_device, plug_in

CONFIG = ROOT / "configs" / "config_xsum.json"


def _training_step() -> tuple[int, float, Counter[str]]:
    plug_in()
    with fake(), efficient_attention():
        model = on_device(BartForConditionalGeneration(BartConfig.from_json(CONFIG))).train()
        model.compute_with(TORCH)
        network = model.model
        for part in (network.shared, network.encoder.embed_positions, network.decoder.embed_positions):
            part.requires_grad_(False)  # --freeze_embeds, as in the recipe
        ids = torch.ones(40, 1024, dtype=torch.long, device=DEVICE)
        labels = torch.ones(40, 64, dtype=torch.long, device=DEVICE)
        with Watch() as watch:
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):  # as Lightning has it
                loss = model(ids, ids, labels=labels, summed_loss=True, label_smoothing=0.1).loss
            loss.backward()
    return watch.kernels.total(), watch.elementwise, watch.kernels


def training_step() -> tuple[int, float, Counter[str]]:
    """Kernels, bytes of all but products and attention, and kernels by name, in a forward and a backward pass.

    The batch is 40 articles of 1,024 tokens and summaries of 64, by autocast to bf16.
    """
    return forked.call(_training_step)


def _decoding_step() -> tuple[int, float, Counter[str]]:
    plug_in()
    schedule.recorder_for = lambda *_: None
    with fake(), efficient_attention(), torch.inference_mode():
        model = for_inference(BartForConditionalGeneration(BartConfig.from_json(CONFIG)), "bf16")
        batch = begun(model, {"num_beams": 6, "max_length": 60}, 128, 1024, 60)
        with Watch() as watch:
            batch.cache.advance()
            batch.take_step()
    return watch.kernels.total(), watch.traffic.total(), watch.kernels


def decoding_step() -> tuple[int, float, Counter[str]]:
    """Kernels, their bytes, and kernels by name, in a step of 128 articles with 6 beams each in bf16."""
    return forked.call(_decoding_step)
