from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bart.generation import GeneratedArticle
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.utils.serving.service_process import until
from utils.serving.engine import DecodingFailed, Engine, Job, QueueFull, Stopped

pytestmark = pytest.mark.usefixtures("one_thread")
EIGHT = {"max_length": 8}
NINE = {"max_length": 9}


class Decoder:
    """In the place of `generate_live`: an article's first id is the number of steps it takes; steps happen when told.

    Attributes:
        seen: per step, the options and the sources of the batch.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, Any], list[list[int]]]] = []
        self.fault: BaseException | None = None
        self.refuses_eight = False
        self.steps = threading.Semaphore(0)

    def __call__(
        self, model: object, arrivals: Callable[[int], Any], batch_size: int, **options: Any
    ) -> Iterator[GeneratedArticle]:
        options.pop("num_return_sequences")
        if options == EIGHT and self.refuses_eight:
            raise ValueError("eight")
        batch = {number: [ids[0], ids] for number, ids in arrivals(batch_size)}
        while batch:
            self.seen.append((options, [ids for _, ids in batch.values()]))
            self.steps.acquire()
            if self.fault is not None:
                raise self.fault
            for number in list(batch):
                batch[number][0] -= 1
                if batch[number][0] == 0:
                    _, ids = batch.pop(number)
                    yield GeneratedArticle(number, torch.tensor([[7, *ids]]), 0.0)
            if room := batch_size - len(batch):
                batch |= {number: [ids[0], ids] for number, ids in arrivals(room)}

    def step(self, steps: int = 1) -> None:
        """Take steps, and wait until the engine asks for the one after, or has nothing to do."""
        for _ in range(steps):
            seen = len(self.seen)
            self.steps.release()
            until(lambda seen=seen: len(self.seen) > seen, 5)


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    decoder = Decoder()
    monkeypatch.setattr("utils.serving.engine.generate_live", decoder)
    return decoder


@pytest.fixture
def engine(decoder: Decoder) -> Iterator[Engine]:
    engine = Engine(SimpleNamespace(), batch_size=3, max_queue=6)
    engine.start()
    yield engine
    engine.stop()
    decoder.steps.release(1000)
    assert engine.join(5)


def submitted(engine: Engine, sources: Sequence[Sequence[int]], options: dict[str, Any] | None = None) -> Job:
    job = Job(sources, options or {})
    engine.submit(job)
    return job


def begun(engine: Engine, decoder: Decoder, sources: Sequence[Sequence[int]]) -> Job:
    """A job that is in work before anything else is submitted."""
    job = submitted(engine, sources)
    until(lambda: decoder.seen)
    return job


def test_articles_join_the_batch_that_runs(engine: Engine, decoder: Decoder) -> None:
    first = begun(engine, decoder, [[3, 1]])
    second = submitted(engine, [[1, 2], [2, 3]])
    decoder.step()
    assert decoder.seen[-1] == ({}, [[3, 1], [1, 2], [2, 3]])
    assert (engine.waiting, engine.in_work) == (0, 3)
    decoder.step()
    decoder.steps.release()
    assert first.future.result(5) == [[7, 3, 1]]
    assert second.future.result(5) == [[7, 1, 2], [7, 2, 3]]
    assert (engine.waiting, engine.in_work) == (0, 0)


def test_jobs_take_places_in_turn(engine: Engine, decoder: Decoder) -> None:
    begun(engine, decoder, [[1], [1], [1]])
    submitted(engine, [[2, 1], [2, 2], [2, 3], [2, 4]])
    submitted(engine, [[2, 9]])
    decoder.step()
    assert decoder.seen[-1][1] == [[2, 1], [2, 9], [2, 2]]


def test_jobs_with_other_options_have_the_next_turn(engine: Engine, decoder: Decoder) -> None:
    begun(engine, decoder, [[1], [2]])
    submitted(engine, [[3]])
    decoder.step()
    assert decoder.seen[-1] == ({}, [[2], [3]])
    submitted(engine, [[4]])
    eight = submitted(engine, [[1, 8]], EIGHT)
    nine = submitted(engine, [[1, 9]], NINE)
    decoder.step(3)  # one of the batch is done after the first step; nobody takes its place
    assert [batch for _, batch in decoder.seen[2:]] == [[[3]], [[3]], [[1, 8]]]
    submitted(engine, [[5]])
    decoder.step(2)
    assert decoder.seen[-2:] == [(NINE, [[1, 9]]), ({}, [[4], [5]])]
    assert eight.future.result(5) == [[7, 1, 8]]
    assert nine.future.result(5) == [[7, 1, 9]]


def test_the_queue_has_a_limit(engine: Engine, decoder: Decoder) -> None:
    begun(engine, decoder, [[1]])
    last = submitted(engine, [[1]] * 6)
    with pytest.raises(QueueFull):
        submitted(engine, [[1]])
    engine.submit(Job([[1]], {}), limited=False)
    assert engine.waiting == 7
    engine.cancel(last)
    assert engine.waiting == 1


def test_a_job_that_is_cancelled_leaves_the_queue_and_its_results_go_nowhere(engine: Engine, decoder: Decoder) -> None:
    begun(engine, decoder, [[4, 0]])
    job = submitted(engine, [[1, 1], [1, 2], [1, 3], [1, 4]])
    other = submitted(engine, [[1, 8]], EIGHT)
    engine.cancel(other)
    decoder.step()
    assert decoder.seen[-1][1] == [[4, 0], [1, 1], [1, 2]]
    engine.cancel(job)
    engine.cancel(job)
    assert engine.waiting == 0
    decoder.step()
    assert decoder.seen[-1] == ({}, [[4, 0]])
    assert not job.future.done()


def test_a_fault_ends_what_is_in_work_and_nothing_else(
    engine: Engine, decoder: Decoder, caplog: pytest.LogCaptureFixture
) -> None:
    victims = [begun(engine, decoder, [[9]])]
    victims.append(submitted(engine, [[9]] * 3))  # of which one waits
    decoder.step()
    other = submitted(engine, [[1, 8]], EIGHT)
    same = submitted(engine, [[1, 1]])
    decoder.fault = ValueError("a fault")
    decoder.steps.release()
    for job in victims:
        with pytest.raises(DecodingFailed):
            job.future.result(5)
    until(lambda: decoder.seen[-1] == (EIGHT, [[1, 8]]))
    decoder.fault = None
    decoder.step()
    decoder.steps.release()
    assert other.future.result(5) == [[7, 1, 8]]
    assert same.future.result(5) == [[7, 1, 1]]
    assert "ValueError: a fault" in caplog.text
    assert not engine.failed


def test_options_with_which_nothing_can_begin_fail_once(engine: Engine, decoder: Decoder) -> None:
    decoder.refuses_eight = True
    begun(engine, decoder, [[1]])
    jobs = [submitted(engine, [[1]] * 4, EIGHT), submitted(engine, [[1]], EIGHT)]
    other = submitted(engine, [[1, 9]], NINE)
    decoder.steps.release(2)
    for job in jobs:
        with pytest.raises(DecodingFailed):
            job.future.result(5)
    assert other.future.result(5) == [[7, 1, 9]]
    assert engine.waiting == 0


def test_a_stopped_engine_ends_all_jobs(engine: Engine, decoder: Decoder) -> None:
    jobs = [begun(engine, decoder, [[9]]), submitted(engine, [[1]] * 3), submitted(engine, [[1]], EIGHT)]
    engine.stop()
    for job in jobs:
        with pytest.raises(Stopped):
            job.future.result(5)
    with pytest.raises(Stopped):
        submitted(engine, [[1]])
    assert engine.waiting == 0
    decoder.steps.release()
    assert engine.join(5)
    assert not engine.failed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_without_its_thread_says_so(engine: Engine, decoder: Decoder) -> None:
    jobs = [begun(engine, decoder, [[9]]), submitted(engine, [[1]], EIGHT)]
    decoder.fault = SystemExit()
    decoder.steps.release()
    for job in jobs:
        with pytest.raises(DecodingFailed):
            job.future.result(5)
    with pytest.raises(DecodingFailed):
        submitted(engine, [[1]])
    assert engine.failed


def test_results_are_those_of_generate(export: Path, texts: list[str]) -> None:
    model = BartForConditionalGeneration.from_pretrained(export).eval()
    sources = BartTokenizer.from_pretrained(export)(texts[:38])["input_ids"]
    counts: list[int] = []
    engine = Engine(model, batch_size=4, max_queue=100, threads=1, on_generated=counts.append)
    different = [{}, {"num_beams": 1}, {"num_beams": 3, "max_length": 9, "length_penalty": 0.5}]
    jobs = [Job([source], different[index % 3]) for index, source in enumerate(sources)]
    for job in jobs[:20]:
        engine.submit(job)
    engine.start()
    for job in jobs[20:]:
        engine.submit(job)
    found = [job.future.result(30)[0] for job in jobs]
    engine.stop()
    assert engine.join(10)
    for index, source in enumerate(sources):
        assert found[index] == model.generate(torch.tensor([source]), **different[index % 3])[0].tolist()
    assert sum(counts) == sum(len(ids) - 1 for ids in found)
    assert len({len(ids) for ids in found}) > 3, "of like length: shows nothing"
