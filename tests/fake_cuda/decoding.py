"""Decoding on a CUDA device that is not there. Where the host asks for numbers, a script answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from bart.backend import TORCH
from bart.generation import schedule
from bart.generation.hooks import NO_HOOKS
from bart.generation.schedule import DecodingBatch, Sources
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.unpadding import KnownRows, Unpadded
from tests import forked
from tests.fake_cuda.device import DEVICE, Watch, fake, on_device, plug_in

Options = dict[str, Any]
LENGTH = 8  # of all sources
# What the host asks for at joins and leaves, by the function that asks: the length of the sources, the last position
# that one may read, the steps of an article; and whether scores are bad.
ANSWERS = {"of": LENGTH, "_changed": LENGTH - 1, "_articles": 5, "draw": 0}


def for_inference(model: BartForConditionalGeneration, precision: str) -> BartForConditionalGeneration:
    """A copy for inference on the device, in a `fake` mode."""
    copied = on_device(model).eval()
    copied.compute_with(TORCH)
    return copied.for_inference(precision)


def begun(model: BartForConditionalGeneration, options: Options, articles: int, length: int, most: int) -> Any:
    """A batch of so many articles of one length before its second step."""
    mask = torch.ones(articles, length, dtype=torch.bool, device=DEVICE)
    states = torch.empty(articles, length, model.config.d_model, dtype=model.dtype, device=DEVICE)
    config = model.generation_config.merged(**options)
    batch = DecodingBatch(model, config, most, NO_HOOKS, Sources([*range(articles)], mask, states, mask.long()))
    batch.step()
    return batch


def _steps(model: BartForConditionalGeneration, methods: Sequence[Options], planted: bool) -> list[Counter[str]]:
    plug_in()
    schedule.recorder_for = lambda *_: None
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


def _runs(model: BartForConditionalGeneration, methods: Sequence[Options]) -> list[tuple[list[int], Counter[str]]]:
    plug_in()
    schedule.recorder_for = lambda *_: None
    FakeTensor.tolist = _numbers(FakeTensor.tolist)
    runs = []
    for options in methods:
        checks = 0

        def active(batch: DecodingBatch) -> list[bool]:
            """At first all articles go on; later the first one of the batch leaves at each check; at last all do."""
            nonlocal checks
            checks += 1
            at_the_end = max(batch.lengths) == batch.max_length
            return [not at_the_end and (checks == 1 or place > 0) for place in range(len(batch.numbers))]

        with fake(), patch.object(DecodingBatch, "active", active), patch.object(KnownRows, "of", all_rows):
            packed = for_inference(model, "bf16")
            with Watch(ANSWERS) as watch:
                made = packed.generate_many([[5] * LENGTH] * 5, 2, max_length=40, **options)
                numbers = sorted(article.index for article in made)
        runs.append((numbers, watch.waits))
    return runs


def all_rows(is_token: Tensor, kind: Callable[[Tensor], Unpadded]) -> KnownRows:
    """The rows of sources without padding."""
    with unset_fake_temporarily():
        tokens = kind(torch.ones(is_token.shape, dtype=torch.bool))
    return KnownRows(tokens, tokens)


def _numbers(tolist: Any) -> Any:
    """`Tensor.tolist` of indices that came from the host, which knows them."""
    return lambda tensor: list(tensor.numbers) if hasattr(tensor, "numbers") else tolist(tensor)


def waits_in_runs(
    model: BartForConditionalGeneration, methods: Iterable[Options]
) -> list[tuple[list[int], Counter[str]]]:
    """The articles that `generate_many` gives, of five, two of them at once, and where the host would wait."""
    return forked.call(_runs, model, list(methods))
