"""One thread that works on the inputs of many requests, called articles here, in batches that these share."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from fastapi import HTTPException

from utils.app.memory import FittingSize, is_out_of_memory

logger = logging.getLogger(__name__)
PAUSE = 0.005  # seconds without a new article, after which a batch begins
Options = tuple[tuple[str, Any], ...]  # sorted, so that equal options are equal keys
Arrivals = Callable[[int], list[tuple[int, Any]]]  # at most so many articles that wait, with their numbers
# It takes arrivals, how many articles may be in work at once, and options; it yields numbers with results or errors.
Work = Callable[..., Iterator[tuple[int, Any]]]


class DecodingFailed(HTTPException):
    """Decoding ended with an error, or the engine was stopped."""

    def __init__(self) -> None:
        super().__init__(500, "decoding failed; the service's log says why")


@dataclass(eq=False)
class _Article:
    content: Any
    options: Options
    turn: int  # articles with equal options are decoded in the order of their turns
    arrived: float  # the same for all articles of a request
    result: Future[Any] = field(default_factory=Future)

    def claim(self) -> bool:
        """Return true if its client still waits. From now on the client cannot cancel it."""
        # One that is running was in a batch for which memory ran out.
        return self.result.running() or self.result.set_running_or_notify_cancel()

    def fail(self) -> None:
        if self.claim():
            self.result.set_exception(DecodingFailed())


@dataclass(eq=False)
class Engine:
    """Decodes articles in a thread of its own. Its methods may be called from any thread.

    Articles with equal options share a batch, in which requests take places in turn. Articles with other options need
    a batch of their own. While any of these wait, nothing joins the batch that runs, and the next batch is theirs.

    When memory runs out, the articles in the batch are decoded again in batches of half their number, and no later
    batch is larger than that.
    """

    work: Work
    batch_size: int  # articles decoded at once, unless memory ran out
    threads: int | None = None  # that torch computes with; None leaves it to torch

    def __post_init__(self) -> None:
        self.fitting = FittingSize(self.batch_size, "--batch_size")
        self._changed = threading.Condition()
        # In the order of their arrival, but articles with the options of the last batch stand behind all others.
        self._waiting: list[_Article] = []
        self.in_work: dict[int, _Article] = {}  # the batch, by number
        self._numbers = itertools.count()
        self._turn = 0  # the greatest of all articles that were in a batch
        self._most = 0  # articles that waited or were in work at once, since some were last taken
        self.has_ended = False  # it was stopped, or has failed for good
        self.thread = threading.Thread(target=self._run, name="decoding", daemon=True)  # the caller starts it

    @property
    def waiting(self) -> list[float]:
        """The times, by time.monotonic(), at which those articles arrived that wait for a place in the batch."""
        with self._changed:
            self._forget_cancelled()
            return [article.arrived for article in self._waiting]

    def submit(self, contents: Sequence[Any], options: Mapping[str, Any]) -> list[Future[Any]]:
        """Queue the articles of a request for their results.

        Cancelling removes an article from the queue; what is in the batch already is decoded to its end.
        """
        key = tuple(sorted(options.items()))
        with self._changed:
            if self.has_ended:
                raise DecodingFailed
            # Requests take turns: the first article of this one comes before the second of those that wait already.
            now = time.monotonic()
            articles = [_Article(content, key, turn, now) for turn, content in enumerate(contents, self._turn + 1)]
            self._waiting += articles
            self._most = max(self._most, len(self._waiting) + len(self.in_work))
            self._changed.notify()
        return [article.result for article in articles]

    def stop(self) -> None:
        """End the thread after the present step; articles that are not done get DecodingFailed."""
        with self._changed:
            self.has_ended = True
            self._changed.notify()

    # The lock is held while one of these two is called.

    def _forget_cancelled(self) -> None:
        """Remove the articles whose clients have left from the queue."""
        self._waiting = [article for article in self._waiting if not article.result.cancelled()]

    def _take(self, options: Options, room: int) -> list[tuple[int, Any]]:
        """Move at most `room` articles with these options from the queue to the batch; return them with numbers."""
        self._forget_cancelled()
        queue = sorted((each for each in self._waiting if each.options == options), key=lambda article: article.turn)
        taken = []
        for article in queue[:room]:
            self._waiting.remove(article)
            if article.claim():
                self._turn = max(self._turn, article.turn)
                number = next(self._numbers)
                self.in_work[number] = article
                taken.append((number, article.content))
        self._most = len(self._waiting) + len(self.in_work)
        return taken

    def _run(self) -> None:
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self.has_ended)
                    # Clients that were answered together ask again one by one: wait for as many as there were before.
                    while not self.has_ended and len(self._waiting) < min(self._most, self.fitting.size):
                        if not self._changed.wait(PAUSE):
                            break
                    if self.has_ended:
                        return
                    if not self._waiting:  # their clients have left meanwhile
                        continue
                    options = self._waiting[0].options
                self._decode(options)
                if torch.cuda.is_initialized():
                    torch.cuda.synchronize()  # raises after an error of the GPU that only a new process gets rid of
        finally:
            with self._changed:
                self.has_ended = True
                for article in [*self._waiting, *self.in_work.values()]:
                    article.fail()
                self._waiting.clear()
                self.in_work.clear()

    def _decode(self, options: Options) -> None:
        """Decode until no articles with these options wait, or some with other options do."""
        has_begun = has_failed = out_of_memory = False

        def arrivals(room: int) -> list[tuple[int, Any]]:
            nonlocal has_begun
            with self._changed:
                if self.has_ended:
                    raise DecodingFailed
                if has_begun and any(article.options != options for article in self._waiting):
                    return []
                has_begun = True
                return self._take(options, room)

        try:
            for number, result in self.work(arrivals, self.fitting.size, **dict(options)):
                with self._changed:
                    article = self.in_work.pop(number)
                if isinstance(result, Exception):
                    article.result.set_exception(result)
                else:
                    article.result.set_result(result)
        except DecodingFailed:
            return
        except Exception as error:
            out_of_memory = is_out_of_memory(error) and len(self.in_work) > 1
            has_failed = not out_of_memory
            if has_failed:
                logger.exception("decoding failed for %d articles with options %s", len(self.in_work), dict(options))
        # Only here are the error, its traceback and the tensors that they hold gone.
        with self._changed:
            left = list(self.in_work.values())
            self.in_work.clear()
            if out_of_memory:
                self.fitting.halve(len(left))
                self._waiting = left + self._waiting
                return
            if has_failed and not left:  # not even the first could begin, so the others would fail as well
                left = [article for article in self._waiting if article.options == options]
                self._waiting = [article for article in self._waiting if article.options != options]
            for article in left:
                article.fail()
            self._waiting.sort(key=lambda article: article.options == options)  # articles with other options are next
