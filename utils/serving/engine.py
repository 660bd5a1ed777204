"""One thread that decodes the articles of many requests, in batches that articles join and leave as they run."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from bart.generation import generate_live
from bart.modeling.modeling_bart import BartForConditionalGeneration

logger = logging.getLogger(__name__)


class QueueFull(Exception):
    """More articles than the queue has room for."""


class Stopped(Exception):
    """The engine takes no more articles, and gives no more results."""


class DecodingFailed(Exception):
    """Decoding ended with an error, which stands in the log."""


class Job:
    """Articles that belong together.

    Attributes:
        sources: ids of each article, without padding.
        options: of generation.
        future: of the ids generated for each article; or QueueFull, Stopped or DecodingFailed.
    """

    def __init__(self, sources: Sequence[Sequence[int]], options: Mapping[str, Any]) -> None:
        self.sources = sources
        self.options = dict(options)
        self.future: Future[list[list[int]]] = Future()
        self.future.set_running_or_notify_cancel()  # nobody but the engine ends it
        self.begun = 0  # articles that have joined a batch
        self.results: dict[int, list[int]] = {}

    @property
    def batch(self) -> Hashable:
        """Equal for those that may be decoded together."""
        return tuple(sorted(self.options.items()))


class Engine:
    """Decodes jobs. Its methods may be called from any thread.

    Jobs with the same options share a batch, of which each takes a place in turn. Where jobs with other options wait,
    no article joins a batch that runs, and theirs is the next; so each set of options waits for at most one batch of
    each other.

    Args:
        model: in eval mode; nobody else may use it.
        batch_size: articles decoded at once.
        max_queue: articles that may wait for a place.
        threads: that torch computes with; None leaves it to torch.
        on_generated: called in the engine's thread with the number of ids generated for each article.
    """

    def __init__(
        self,
        model: BartForConditionalGeneration,
        batch_size: int,
        max_queue: int,
        threads: int | None = None,
        on_generated: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.model = model
        self.batch_size = batch_size
        self.max_queue = max_queue
        self.threads = threads
        self.on_generated = on_generated
        self.waiting = 0  # articles
        self._changed = threading.Condition()
        # Jobs with articles that wait, by what may share a batch; the first is the next, or the one that runs.
        self._queues: OrderedDict[Hashable, deque[Job]] = OrderedDict()
        self._in_work: dict[int, tuple[Job, int]] = {}  # by number: an article in the batch
        self._numbers = itertools.count()
        self._ended: type[Exception] | None = None  # once it takes no more: the reason
        self._thread = threading.Thread(target=self._run, name="decoding", daemon=True)

    @property
    def in_work(self) -> int:
        """Articles in the batch."""
        return len(self._in_work)

    @property
    def failed(self) -> bool:
        """Whether the thread has ended though nobody asked it to."""
        return self._ended is DecodingFailed

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job, *, limited: bool = True) -> None:
        """Queue a job's articles.

        Args:
            limited: whether the queue's limit holds for them.

        Raises:
            QueueFull, Stopped, DecodingFailed: they are not queued.
        """
        with self._changed:
            if self._ended is not None:
                raise self._ended
            if limited and self.waiting + len(job.sources) > self.max_queue:
                raise QueueFull
            self._queues.setdefault(job.batch, deque()).append(job)
            self.waiting += len(job.sources)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Drop a job's articles from the queue, and the results of those in work; nothing of a job that is done."""
        with self._changed:
            self._drop(job)

    def stop(self) -> None:
        """End all jobs with Stopped, and the thread as soon as the batch allows."""
        with self._changed:
            self._end(Stopped)
            self._changed.notify()

    def join(self, timeout: float) -> bool:
        """Wait for so many seconds for the thread's end; whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._queues or self._ended)
                    if self._ended is not None:
                        return
                    batch, [job, *_] = next(iter(self._queues.items()))
                self._decode(batch, job.options)
        finally:
            with self._changed:
                if self._ended is None:
                    logger.critical("the decoding thread has ended")
                    self._end(DecodingFailed)

    def _decode(self, batch: Hashable, options: dict[str, Any]) -> None:
        """Decode until no articles of this batch wait, or others do."""
        running = False

        def arrivals(room: int) -> list[tuple[int, Sequence[int]]]:
            nonlocal running
            with self._changed:
                if self._ended is not None:
                    raise self._ended
                others_wait = len(self._queues) > (batch in self._queues)
                new = [] if running and others_wait else self._take(batch, room)
                running = True
                return new

        try:
            for article in generate_live(
                self.model, arrivals, self.batch_size, **{**options, "num_return_sequences": 1}
            ):
                [ids] = article.sequences.tolist()
                self.on_generated(len(ids) - 1)
                with self._changed:
                    job, index = self._in_work.pop(article.index)
                    job.results[index] = ids
                    if len(job.results) == len(job.sources) and not job.future.done():
                        job.future.set_result([job.results[place] for place in range(len(job.sources))])
        except Stopped:
            pass
        except Exception:
            logger.exception("decoding failed for %d articles with %s", self.in_work, options or "the default options")
            with self._changed:
                # Where not even the first could join, the others would fare no better.
                self._fail({job for job, _ in self._in_work.values()} or {*self._queues.get(batch, ())}, DecodingFailed)
        with self._changed:
            self._in_work.clear()
            if batch in self._queues:
                self._queues.move_to_end(batch)

    def _take(self, batch: Hashable, room: int) -> list[tuple[int, Sequence[int]]]:
        """Move articles from the queue to work. The lock is held."""
        taken = []
        queue = self._queues.get(batch, deque())
        while queue and len(taken) < room:
            job = queue.popleft()
            number = next(self._numbers)
            self._in_work[number] = (job, job.begun)
            taken.append((number, job.sources[job.begun]))
            job.begun += 1
            self.waiting -= 1
            if job.begun < len(job.sources):
                queue.append(job)
        if not queue:
            self._queues.pop(batch, None)
        return taken

    def _drop(self, job: Job) -> None:
        """Take a job from the queue, if it is there. The lock is held."""
        queue = self._queues.get(job.batch, deque())
        if job in queue:
            queue.remove(job)
            self.waiting -= len(job.sources) - job.begun
            if not queue:
                del self._queues[job.batch]

    def _end(self, reason: type[Exception]) -> None:
        """Take no more jobs and fail those there are. The lock is held."""
        self._ended = reason
        self._fail({job for queue in self._queues.values() for job in queue}, reason)
        self._fail({job for job, _ in self._in_work.values()}, reason)

    def _fail(self, jobs: set[Job], error: type[Exception]) -> None:
        """End jobs with an error. The lock is held."""
        for job in jobs:
            self._drop(job)
            if not job.future.done():
                job.future.set_exception(error())
