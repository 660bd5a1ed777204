"""One thread that decodes the articles of many requests, in batches that articles join and leave as they run."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from bart.generation import generate_live
from bart.modeling.modeling_bart import BartForConditionalGeneration
from utils.runs.memory import is_out_of_memory

logger = logging.getLogger(__name__)
Options = tuple[tuple[str, Any], ...]  # sorted, so that equal options are equal keys


class Busy(Exception):
    """The queue has no room; the message says how much there is."""


class DecodingFailed(Exception):
    """Decoding ended with an error, or the engine was stopped."""

    def __init__(self) -> None:
        super().__init__("decoding failed; the service's log says why")


@dataclass(eq=False)
class _Article:
    source: Sequence[int]
    turn: int  # articles with equal options are decoded in the order of their turns
    counted: bool  # whether it takes room in the queue
    result: Future[list[int]] = field(default_factory=Future)

    def claim(self) -> bool:
        """Whether its client still waits. From now on the client cannot cancel it."""
        # One that is running was in a batch for which memory ran out.
        return self.result.running() or self.result.set_running_or_notify_cancel()

    def fail(self) -> None:
        if self.claim():
            self.result.set_exception(DecodingFailed())


class Engine:
    """Decodes articles in a thread of its own. Its methods may be called from any thread.

    Articles with equal options share a batch, in which requests take places in turn. Articles with other options need
    a batch of their own. While any of these wait, nothing joins the batch that runs, and the next batch is theirs. So
    articles wait for at most one batch of each other set of options; how many sets may wait is limited.

    When memory runs out, the articles in the batch are decoded again in batches of half their number, and no later
    batch is larger than that.

    Args:
        model: in eval mode; nobody else may use it.
        batch_size: articles decoded at once.
        max_queue: articles that may wait for a place, of those that are counted.
        max_option_sets: different sets of options that may wait, apart from the model's own.
        threads: that torch computes with; None leaves it to torch.
        on_generated: called with the number of ids generated for each article.

    Attributes:
        thread: started by the caller.
        ended: whether nothing is decoded any more; it was stopped, or has failed for good.
    """

    def __init__(
        self,
        model: BartForConditionalGeneration,
        batch_size: int,
        max_queue: int,
        max_option_sets: int,
        threads: int | None = None,
        on_generated: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.model = model
        self.batch_size = batch_size
        self.max_queue = max_queue
        self.max_option_sets = max_option_sets
        self.threads = threads
        self.on_generated = on_generated
        self._changed = threading.Condition()
        # Articles that wait, by options and turn; the first options are the next, or those of the batch that runs.
        self._queues: dict[Options, list[_Article]] = {}
        self._turn = 0  # the greatest of all articles that were in a batch
        self._in_work: dict[int, _Article] = {}  # by number
        self._numbers = itertools.count()
        self.ended = False
        self.thread = threading.Thread(target=self._run, name="decoding", daemon=True)

    @property
    def waiting(self) -> int:
        """Articles that wait for a place in the batch."""
        with self._changed:
            self._forget_cancelled()
            return sum(map(len, self._queues.values()))

    @property
    def in_work(self) -> int:
        """Articles in the batch."""
        return len(self._in_work)

    def submit(
        self, sources: Sequence[Sequence[int]], options: Mapping[str, Any], *, counted: int | None = None
    ) -> list[Future[list[int]]]:
        """Queue the articles of a request.

        Args:
            sources: ids of each article, without padding.
            options: of generation.
            counted: how many of them, the first ones, take room in the queue; by default all. The limits do not hold
                for a request of which none do.

        Returns:
            For each article a future of the ids generated, or of DecodingFailed. An article whose future is cancelled
            leaves the queue; one that is in the batch already is decoded to its end.

        Raises:
            Busy: the queue has no room.
            DecodingFailed: the engine has ended.
        """
        key = tuple(sorted(options.items()))
        counted = len(sources) if counted is None else counted
        with self._changed:
            if self.ended:
                raise DecodingFailed
            self._forget_cancelled()
            waiting = sum(article.counted for queue in self._queues.values() for article in queue)
            if counted and waiting + counted > self.max_queue:
                raise Busy(
                    f"{waiting} articles wait and this request has {counted}; allowed: {self.max_queue}; try again"
                )
            others = self._queues.keys() - {(), key}
            if counted and key and len(others) >= self.max_option_sets:
                raise Busy(
                    f"requests with {len(others)} other sets of decoding options wait; allowed: "
                    f"{self.max_option_sets}; try again, or without options"
                )
            # Requests take turns: the first article of this one comes before the second of those that wait already.
            articles = [_Article(ids, self._turn + 1 + place, place < counted) for place, ids in enumerate(sources)]
            self._queues[key] = sorted([*self._queues.get(key, ()), *articles], key=lambda article: article.turn)
            self._changed.notify()
        return [article.result for article in articles]

    def stop(self) -> None:
        """End the thread after the present step; articles that are not done get DecodingFailed."""
        with self._changed:
            self.ended = True
            self._changed.notify()

    def _forget_cancelled(self) -> None:
        """Remove the articles whose clients have left from the queue. The lock is held."""
        left = {options: [a for a in queue if not a.result.cancelled()] for options, queue in self._queues.items()}
        self._queues = {options: queue for options, queue in left.items() if queue}

    def _run(self) -> None:
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._queues or self.ended)
                    if self.ended:
                        return
                    options = next(iter(self._queues))
                self._decode(options)
        finally:
            with self._changed:
                self.ended = True
                for article in itertools.chain(*self._queues.values(), self._in_work.values()):
                    article.fail()
                self._queues.clear()
                self._in_work.clear()

    def _decode(self, options: Options) -> None:
        """Decode until no articles with these options wait, or others do."""
        running = failed = out_of_memory = False

        def arrivals(room: int) -> list[tuple[int, Sequence[int]]]:
            nonlocal running
            with self._changed:
                if self.ended:
                    raise DecodingFailed
                others_wait = len(self._queues) > (options in self._queues)
                new = [] if running and others_wait else self._take(options, room)
                running = True
                return new

        try:
            decoding = {**dict(options), "num_return_sequences": 1}
            for done in generate_live(self.model, arrivals, self.batch_size, **decoding):
                [ids] = done.sequences.tolist()
                self.on_generated(len(ids) - 1)
                with self._changed:
                    article = self._in_work.pop(done.index)
                article.result.set_result(ids)
        except DecodingFailed:
            return
        except Exception as error:
            out_of_memory = is_out_of_memory(error) and self.in_work > 1
            failed = not out_of_memory
            if failed:
                logger.exception("decoding failed for %d articles with options %s", self.in_work, dict(options))
        # Only here are the error, its traceback and the tensors that they hold gone.
        with self._changed:
            left = list(self._in_work.values())
            self._in_work.clear()
            if out_of_memory:
                self.batch_size = len(left) // 2
                logger.warning(
                    "out of memory with %d articles at once; from now on at most %d: lower --batch_size to that",
                    len(left),
                    self.batch_size,
                )
                self._queues = {options: [*left, *self._queues.pop(options, ())], **self._queues}
            else:
                if failed and not left:  # not even the first could begin, so the others would fail as well
                    left = self._queues.pop(options, [])
                for article in left:
                    article.fail()
                if options in self._queues:  # others are next
                    self._queues[options] = self._queues.pop(options)
        if out_of_memory:
            torch.cuda.empty_cache()

    def _take(self, options: Options, room: int) -> list[tuple[int, Sequence[int]]]:
        """Move at most `room` articles from the queue to the batch. The lock is held."""
        taken = []
        queue = self._queues.get(options, [])
        while queue and len(taken) < room:
            article = queue.pop(0)
            if article.claim():
                self._turn = max(self._turn, article.turn)
                number = next(self._numbers)
                self._in_work[number] = article
                taken.append((number, article.source))
        if not queue:
            self._queues.pop(options, None)
        return taken
