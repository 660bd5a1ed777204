from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace

import pytest

from tests.utils.serving.conftest import Decoder, until
from utils.serving.engine import DecodingFailed, Engine
from utils.serving.summaries import generate

pytestmark = pytest.mark.usefixtures("one_thread")
EIGHT = {"max_length": 8}
NINE = {"max_length": 9}


@pytest.fixture
def engine(decoder: Decoder) -> Iterator[Engine]:
    engine = Engine(partial(generate, SimpleNamespace()), batch_size=4)
    engine.thread.start()
    yield engine
    engine.stop()
    decoder.run()
    engine.thread.join(60)
    assert not engine.thread.is_alive()


def begun(engine: Engine, decoder: Decoder, sources: Sequence[Sequence[int]]) -> list[Future[list[int]]]:
    """Submit articles and wait until they are in work."""
    futures = engine.submit(sources, {})
    until(lambda: decoder.seen)
    return futures


def results(futures: list[Future[list[int]]]) -> list[list[int]]:
    return [future.result(60) for future in futures]


def test_articles_join_the_batch_that_runs(engine: Engine, decoder: Decoder) -> None:
    first = begun(engine, decoder, [[3, 1]])
    second = engine.submit([[1, 2], [2, 3]], {})
    decoder.step()
    assert decoder.seen[-1] == ({}, [[3, 1], [1, 2], [2, 3]])
    assert (len(engine.waiting), len(engine.in_work)) == (0, 3)
    decoder.run()
    assert results(first + second) == [[7, 3, 1], [7, 1, 2], [7, 2, 3]]


def test_articles_with_other_options_have_the_next_batch(engine: Engine, decoder: Decoder) -> None:
    begun(engine, decoder, [[1], [2]])
    engine.submit([[3]], {})
    decoder.step()
    assert decoder.seen[-1] == ({}, [[2], [3]])
    engine.submit([[4]], {})
    eight = engine.submit([[1, 8]], EIGHT)
    nine = engine.submit([[1, 9]], NINE)
    decoder.step(3)  # one article is done after the first step, and nothing takes its place
    assert [batch for _, batch in decoder.seen[2:]] == [[[3]], [[3]], [[1, 8]]]
    engine.submit([[5]], {})
    decoder.step(2)
    assert decoder.seen[-2:] == [(NINE, [[1, 9]]), ({}, [[4], [5]])]
    assert results(eight + nine) == [[7, 1, 8], [7, 1, 9]]


def test_clients_that_were_answered_together_share_the_next_batch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """They ask again one by one. A client that is alone waits for others once."""
    sizes = []

    def work(arrivals: Callable[[int], list[tuple[int, int]]], batch_size: int) -> Iterator[tuple[int, int]]:
        batch = arrivals(batch_size)
        sizes.append(len(batch))
        yield from batch

    def ask(pauses: Sequence[float]) -> None:
        futures = [engine.submit([number], {}) for number, pause in enumerate(pauses) if not time.sleep(pause)]
        assert [future.result(60) for [future] in futures] == [*range(len(pauses))]

    engine = Engine(work, batch_size=4)
    monkeypatch.setattr("utils.serving.engine.PAUSE", 100)
    first = engine.submit([0, 1, 2], {})
    engine.thread.start()
    assert results(first) == [0, 1, 2]
    ask([0, 0.05, 0.05])
    ask([0, 0.05, 0.05])
    monkeypatch.setattr("utils.serving.engine.PAUSE", 0.001)
    ask([0])
    monkeypatch.setattr("utils.serving.engine.PAUSE", 100)
    ask([0])
    assert sizes == [3, 3, 3, 1, 1]
    engine._most = 2
    [left] = engine.submit([0], {})
    time.sleep(0.05)
    left.cancel()
    assert not engine.waiting  # as /metrics asks
    ask([0, 0])
    engine.stop()
    engine.thread.join(60)
    assert not engine.thread.is_alive()


def test_cancelled_articles_leave_the_queue(engine: Engine, decoder: Decoder) -> None:
    begun(engine, decoder, [[4, 0], [1], [1]])
    futures = engine.submit([[1, 1], [1, 2], [1, 3], [1, 4]], {})
    futures[1].cancel()
    [eight] = engine.submit([[1, 8]], EIGHT)
    eight.cancel()
    assert len(engine.waiting) == 3
    decoder.step()
    assert decoder.seen[-1][1] == [[4, 0], [1, 1], [1, 3], [1, 4]]
    decoder.run()
    until(lambda: not engine.in_work)
    assert EIGHT not in [options for options, _ in decoder.seen]


def test_when_memory_runs_out_the_batch_shrinks_for_good(
    engine: Engine, decoder: Decoder, caplog: pytest.LogCaptureFixture
) -> None:
    """Articles that were in the batch get their results, and those before and after them as well."""
    decoder.memory = 2
    futures = begun(engine, decoder, [[2, 1], [1, 2]])
    futures += engine.submit([[1, 3], [1, 4], [1, 5]], {})
    decoder.run()
    assert results(futures) == [[7, 2, 1], [7, 1, 2], [7, 1, 3], [7, 1, 4], [7, 1, 5]]
    [record] = caplog.records
    assert record.getMessage().startswith("out of memory with 4 examples at once; going on with 2: lower --batch_size ")
    shrunk = len(decoder.seen)
    futures = engine.submit([[1, 6], [1, 7], [1, 8], [1, 9]], EIGHT)
    assert results(futures) == [[7, 1, 6], [7, 1, 7], [7, 1, 8], [7, 1, 9]]
    assert [len(sources) for _, sources in decoder.seen[shrunk:]] == [2, 2]


def test_a_fault_ends_what_is_in_work_and_nothing_else(
    engine: Engine, decoder: Decoder, caplog: pytest.LogCaptureFixture
) -> None:
    victims = begun(engine, decoder, [[9]])
    decoder.fault = ValueError("a fault")
    eight = engine.submit([[1, 8]], EIGHT)
    decoder.steps.release()
    with pytest.raises(DecodingFailed):
        results(victims)
    assert "ValueError: a fault" in caplog.text
    until(lambda: len(decoder.seen) == 2)
    decoder.fault = None
    decoder.run()
    assert results(eight) == [[7, 1, 8]]
    assert results(engine.submit([[1, 1]], {})) == [[7, 1, 1]]
    assert engine.thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_engine_ends_after_an_error_that_stays_on_the_gpu(
    engine: Engine, decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def synchronize() -> None:
        raise RuntimeError("device-side assert triggered")

    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.synchronize", synchronize)
    futures = begun(engine, decoder, [[9]]) + engine.submit([[1]], EIGHT)
    decoder.fault = RuntimeError("device-side assert triggered")
    decoder.run()
    for future in futures:
        with pytest.raises(DecodingFailed):
            future.result(60)
    until(lambda: engine.has_ended)


def test_articles_fail_when_the_engine_is_stopped(engine: Engine, decoder: Decoder) -> None:
    futures = begun(engine, decoder, [[9]]) + engine.submit([[1]] * 5, {}) + engine.submit([[1]], EIGHT)
    engine.stop()
    decoder.steps.release()
    for future in futures:
        with pytest.raises(DecodingFailed):
            future.result(60)
    with pytest.raises(DecodingFailed):
        engine.submit([[1]], {})
    engine.thread.join(60)
    assert not engine.thread.is_alive()
    assert (len(engine.waiting), len(engine.in_work)) == (0, 0)
