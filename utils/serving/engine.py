"""One thread that decodes the articles of many requests, in batches that articles join and leave as they run."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from bart.generation import generate_live
from bart.modeling.modeling_bart import BartForConditionalGeneration
from utils.memory import is_out_of_memory

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
    result: Future[list[int]] = field(default_factory=Future)

    def fail(self) -> None:
        with suppress(InvalidStateError):  # its client has left in this moment
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
        max_queue: articles that may wait for a place.
        max_option_sets: different sets of options that may wait, apart from the model's own.
        threads: that torch computes with; None leaves it to torch.
        on_generated: called in the engine's thread with the number of ids generated for each article.
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
        # For each set of options the requests that wait; the first set is the next, or the one that runs.
        self._queues: OrderedDict[Options, deque[deque[_Article]]] = OrderedDict()
        self._in_work: dict[int, _Article] = {}  # by number
        self._numbers = itertools.count()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="decoding", daemon=True)

    @property
    def waiting(self) -> int:
        """Articles that wait for a place in the batch."""
        with self._changed:
            self._forget_cancelled()
            return sum(len(request) for requests in self._queues.values() for request in requests)

    @property
    def in_work(self) -> int:
        """Articles in the batch."""
        return len(self._in_work)

    @property
    def alive(self) -> bool:
        """Whether articles are decoded; if not, the engine was stopped or has failed for good."""
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def submit(
        self, sources: Sequence[Sequence[int]], options: Mapping[str, Any], *, limited: bool = True
    ) -> list[Future[list[int]]]:
        """Queue the articles of a request.

        Args:
            sources: ids of each article, without padding.
            options: of generation.
            limited: whether the limits of the queue hold for them.

        Returns:
            For each article a future of the ids generated, or of DecodingFailed. An article whose future is cancelled
            leaves the queue; one that is in the batch already is decoded to its end.

        Raises:
            Busy: the queue has no room.
            DecodingFailed: the engine has ended.
        """
        articles = [_Article(source) for source in sources]
        key = tuple(sorted(options.items()))
        with self._changed:
            if self._ended:
                raise DecodingFailed
            waiting = self.waiting
            if limited and waiting + len(articles) > self.max_queue:
                raise Busy(
                    f"{waiting} articles wait and this request has {len(articles)}; allowed: {self.max_queue}; "
                    "try again"
                )
            others = self._queues.keys() - {(), key}
            if limited and key and len(others) >= self.max_option_sets:
                raise Busy(
                    f"requests with {len(others)} other sets of decoding options wait; allowed: "
                    f"{self.max_option_sets}; try again, or without options"
                )
            self._queues.setdefault(key, deque()).append(deque(articles))
            self._changed.notify()
        return [article.result for article in articles]

    def stop(self) -> None:
        """End the thread after the present step; articles that are not done get DecodingFailed."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def join(self, timeout: float) -> None:
        """Wait at most so many seconds for the end of the thread."""
        self._thread.join(timeout)

    def _run(self) -> None:
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._queues or self._ended)
                    if self._ended:
                        return
                    options = next(iter(self._queues))
                self._decode(options)
        finally:
            with self._changed:
                self._ended = True
                requests = itertools.chain.from_iterable(self._queues.values())
                for article in [*itertools.chain.from_iterable(requests), *self._in_work.values()]:
                    article.fail()
                self._queues.clear()
                self._in_work.clear()

    def _decode(self, options: Options) -> None:
        """Decode until no articles with these options wait, or others do."""
        running = failed = out_of_memory = False

        def arrivals(room: int) -> list[tuple[int, Sequence[int]]]:
            nonlocal running
            with self._changed:
                if self._ended:
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
                self._queues.setdefault(options, deque()).appendleft(deque(left))
                self._queues.move_to_end(options, last=False)
            else:
                if failed and not left:  # not even the first could begin, so the others would fail as well
                    left = list(itertools.chain.from_iterable(self._queues.pop(options, ())))
                for article in left:
                    article.fail()
                if options in self._queues:
                    self._queues.move_to_end(options)
        if out_of_memory:
            torch.cuda.empty_cache()

    def _take(self, options: Options, room: int) -> list[tuple[int, Sequence[int]]]:
        """Move at most `room` articles from the queue to the batch, from each request in turn. The lock is held."""
        taken = []
        requests = self._queues.get(options, deque())
        while requests and len(taken) < room:
            request = requests.popleft()
            article = request.popleft()
            if request:
                requests.append(request)
            # One that is running was in a batch for which memory ran out.
            if article.result.running() or article.result.set_running_or_notify_cancel():
                number = next(self._numbers)
                self._in_work[number] = article
                taken.append((number, article.source))
        if not requests:
            self._queues.pop(options, None)
        return taken

    def _forget_cancelled(self) -> None:
        """Take the articles whose clients have left out of the queue. The lock is held."""
        for options, requests in list(self._queues.items()):
            left = [deque(a for a in request if not a.result.cancelled()) for request in requests]
            self._queues[options] = deque(filter(None, left))
            if not self._queues[options]:
                del self._queues[options]
