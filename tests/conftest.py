"""Options of the suite, what is left out by default and why, and where the shared files lie."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

# Read when torch is loaded, here and in the processes that tests start. Tiny models gain nothing from threads, and on
# cores that others use too the threads' waiting for each other makes a second's test take a minute.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# torchrun's folder of logs, which tests do not read and nobody would remove.
os.environ.setdefault("PET_LOG_DIR", os.devnull)

# A shell lets what it starts in the background ignore Ctrl-C, and all that those start.
signal.signal(signal.SIGINT, signal.default_int_handler)

OPTIONAL = {"slow": "long or many gigabytes", "network": "needs the Hub or package registries"}


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, why in OPTIONAL.items():
        parser.addoption(f"--{name}", action="store_true", help=f"run tests marked {name} too: {why}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores, since tests wait a fifth of their time, for clocks and other processes."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """While thousands of tests are collected little becomes garbage, and looking for it takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for name, why in OPTIONAL.items():
        if not config.getoption(f"--{name}"):
            for item in items:
                if item.get_closest_marker(name):
                    item.add_marker(pytest.mark.skip(reason=f"{why}: run with --{name}"))
    # The longest one first, so that no process waits for it at the end.
    items.sort(key=lambda item: item.name != "test_pages_can_be_followed_line_by_line")
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu:
        import torch  # seconds to load, which a run of other tests need not wait for

        if not torch.cuda.is_available():
            for item in on_gpu:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Threads only get in each other's way with tiny models."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What torch would compute in fp32 is fp64; see `tests.tiny_run.ALIKE`."""
    import torch

    from tests.tiny_run import compute_in_double

    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.float)  # so that it is restored
    compute_in_double()
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """What a run does with SIGINT, SIGTERM and destructors' errors ends with the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    hook = sys.unraisablehook
    yield
    signal.set_wakeup_fd(-1)
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without their PNGs, which would take longer than a tiny run."""
    monkeypatch.setattr("utils.evaluation.report.charts.draw", lambda *_: "")


@pytest.fixture
def tiny(tmp_path: Path) -> list[str]:
    """Options of a run of 6 steps an epoch, over 22 examples in batches of 4."""
    from tests.tiny_run import write_tiny_run

    return [*write_tiny_run(tmp_path), "--do_train", "--train_batch_size", "4", "--sortish_sampler"]


@pytest.fixture
def train(tiny: list[str], tmp_path: Path, no_pictures: None) -> Callable[..., Path]:
    """Trains in this process, with the options of `tiny` and others, and gives the run's directory."""
    import finetune

    def run(name: str, *options: object) -> Path:
        finetune.main([*tiny, "--output_dir", str(tmp_path / name), *map(str, options)])
        return tmp_path / name

    return run


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket s3://NAME of a server of moto's on this machine; copies of what lies there are in tmp_path."""
    import s3fs
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # which would print each request
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    place, keys = "http://{}:{}".format(*server.get_host_and_port()), ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    for name, value in {"AWS_ENDPOINT_URL": place, **dict.fromkeys(keys, "key"), "XDG_CACHE_HOME": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    s3fs.S3FileSystem.clear_instance_cache()  # which know the server of an earlier test
    s3fs.S3FileSystem().mkdir("bucket")
    yield "s3://bucket"
    s3fs.S3FileSystem().rm("bucket", recursive=True)
    server.stop()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of published files that lies beside some checkouts."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return folder
