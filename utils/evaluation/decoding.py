"""A process's share of the articles, decoded under a clock and noted in the journal."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from bart.generation import GeneratedArticle
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.data.tokenized import TokenizedTexts
from utils.distributed import rank_and_world
from utils.evaluation.journal import Decoded, Journal
from utils.evaluation.speed import ProcessSpeed, Timings
from utils.memory import FittingSize, peak_memory_gb
from utils.progress import Progress

logger = logging.getLogger(__name__)
BATCH_SIZE_OPTION = "--eval_batch_size (run_eval.py: --bs)"
Item = TypeVar("Item")


def decode_share(
    model: BartForConditionalGeneration,
    tokenizer: BartTokenizer,
    sources: TokenizedTexts,
    todo: Sequence[int],
    options: Mapping[str, Any],
    *,
    batch_size: int,
    batching: str,
    warmup_batches: int,
    journal: Journal,
) -> tuple[dict[int, Decoded], ProcessSpeed]:
    """Decode this process's share of some articles, each of which one process gets.

    With "static" batching the batches are those of all articles by length, whatever the processes, and a process takes
    every so-manieth of them. With "continuous" batching it takes every so-manieth article by length.

    Args:
        todo: the articles left, in any order.
        options: of `model.generate_many`.
        batch_size: articles at once; fewer where memory does not suffice.
        warmup_batches: batches of all lengths that are decoded before the clock runs, at most half of the share.

    Returns:
        The share's articles by index, and the process's speed.
    """
    rank, world = rank_and_world()
    longest_first = sorted(todo, key=lambda index: -sources.lengths[index])
    fitting = FittingSize(batch_size, BATCH_SIZE_OPTION)
    pad = tokenizer.pad_token_id
    decoded: dict[int, Decoded] = {}

    def generate(indices: list[int], size: int) -> Iterator[GeneratedArticle]:
        return model.generate_many([sources[index].tolist() for index in indices], size, **options)

    def finish(index: int, article: GeneratedArticle, timings: Timings) -> None:
        start = time.perf_counter()
        texts = tokenizer.batch_decode(list(article.sequences), skip_special_tokens=True)
        timings.detokenise += time.perf_counter() - start
        tokens = int((article.sequences[0, 1:] != pad).sum())
        decoded[index] = Decoded([" ".join(text.split("\n")).strip() for text in texts], tokens)
        journal.add(index, decoded[index])
        timings.articles += 1
        timings.tokens += tokens
        progress.advance()
        logger.debug("article %d: %d tokens, %.0f ms", index, tokens, 1000 * article.seconds)

    def continuous(timings: Timings) -> Callable[[list[int], int], Iterator[int]]:
        def work(left: list[int], size: int) -> Iterator[int]:
            for article in generate(left, size):
                timings.latencies.append(article.seconds)
                finish(left[article.index], article, timings)
                yield left[article.index]

        return work

    def static(timings: Timings) -> Callable[[list[int], int], Iterator[int]]:
        def work(left: list[int], size: int) -> Iterator[int]:
            for part in _chunks(left, size):
                start = time.perf_counter()
                articles = list(generate(part, size))  # their ids are on the CPU: no GPU is left to wait for
                timings.latencies.append(time.perf_counter() - start)
                for article in articles:
                    finish(part[article.index], article, timings)
                yield from part

        return work

    if batching == "static":
        batches = _chunks(longest_first, batch_size)[rank::world]
        warmup, timed = _spread(batches, warmup_batches)
        steps, mine = static, sum(map(len, batches))
    else:
        share = longest_first[rank::world]
        first, rest = _spread(share, warmup_batches * batch_size)
        # All at once: articles join as others leave.
        warmup, timed = ([part] if part else [] for part in (first, rest))
        steps, mine = continuous, len(share)
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(model.device)  # the loss of the references may have taken more
    processes = f" (process 1 of {world})" if world > 1 else ""
    progress = Progress("decoding" + processes, mine, "articles")
    for batch in warmup:
        fitting.run(batch, steps(Timings()))
    timings = Timings()
    with timings.running(model):
        for batch in timed:
            fitting.run(batch, steps(timings))
    speed = ProcessSpeed(timings, sources.seconds, sum(map(len, warmup)), fitting.size, peak_memory_gb(model.device))
    return decoded, speed


def _chunks(items: Sequence[Item], size: int) -> list[list[Item]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


def _spread(items: Sequence[Item], count: int) -> tuple[list[Item], list[Item]]:
    """So many items, at most half, evenly from all of them; and the rest, in order."""
    count = min(count, len(items) // 2)
    chosen = {place * len(items) // count for place in range(count)}
    return [items[place] for place in sorted(chosen)], [item for place, item in enumerate(items) if place not in chosen]
