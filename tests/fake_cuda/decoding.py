"""Decoding steps on a CUDA device that is not there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from bart.backend import TORCH
from bart.generation.graphs import RecordedSteps, Step
from bart.generation.hooks import NO_HOOKS
from bart.generation.schedule import DecodingBatch, Sources
from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests import forked
from tests.fake_cuda.device import DEVICE, Launches, Watch, fake, on_device, plug_in

Options = dict[str, Any]
LENGTH = 8  # of all sources


def for_inference(model: BartForConditionalGeneration, precision: str) -> BartForConditionalGeneration:
    """A copy for inference on the device, in a `fake` mode."""
    copied = on_device(model).eval()
    copied.compute_with(TORCH)
    return copied.for_inference(precision)


def begun(
    model: BartForConditionalGeneration,
    options: Options,
    articles: int,
    length: int,
    most: int,
    recorded: RecordedSteps | None = None,
) -> Any:
    """A batch of so many articles of one length before its second step."""
    mask = torch.ones(articles, length, dtype=torch.bool, device=DEVICE)
    states = torch.empty(articles, length, model.config.d_model, dtype=model.dtype, device=DEVICE)
    config = model.generation_config.merged(**options)
    first = Sources([*range(articles)], mask, states, mask.long())
    batch = DecodingBatch(model, config, most, NO_HOOKS, first, recorded, articles)
    batch.step()
    return batch


def _steps(model: BartForConditionalGeneration, methods: Sequence[Options], planted: bool) -> list[Counter[str]]:
    plug_in()
    waits = []
    for options in methods:
        for precision in ("fp32", "bf16", "fp16"):
            with fake(), torch.inference_mode():
                packed = for_inference(model, precision)
                if planted:
                    decode = packed.decode
                    packed.decode = lambda *arguments, decode=decode: decode(*arguments)[torch.arange(3)]
                batch = begun(packed, options, 3, LENGTH, 30)
                with Watch() as watch:
                    for _ in range(2):
                        batch.step()
                        batch.cache.advance()
                        batch.take_step()  # as it is recorded
            waits.append(watch.waits)
    return waits


def waits_in_steps(
    model: BartForConditionalGeneration, methods: Iterable[Options], planted: bool = False
) -> list[Counter[str]]:
    """Where the host would wait for a GPU in decoding steps, by each method in fp32, bf16 and fp16.

    Args:
        planted: let an index on the CPU choose among the logits.
    """
    return forked.call(_steps, model, list(methods), planted)


def _launches(model: BartForConditionalGeneration, options: Options) -> dict[str, int]:
    plug_in()
    FakeTensor.data_ptr = lambda tensor: tensor.untyped_storage()._cdata + tensor.storage_offset()
    counts = {}

    def recorder(step: Step, state: Sequence[Tensor]) -> Callable[[], None]:
        with Launches() as launches:
            step(state)
        counts["recorded"] = launches.counts.total()
        return lambda: None

    with fake(), torch.inference_mode():
        batch = begun(for_inference(model, "bf16"), options, 1, LENGTH, 30, RecordedSteps(recorder, []))
        with Launches() as launches:
            batch.step()
        counts["around a replay"] = launches.counts.total()
        with Launches() as launches:
            batch.take_step()
        counts["eager"] = launches.counts.total()
    return counts


def launches_of_steps(model: BartForConditionalGeneration, options: Options) -> dict[str, int]:
    """Operations of a step for one article, eager, recorded, and beside the replay of a recording."""
    return forked.call(_launches, model, options)
