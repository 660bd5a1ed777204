"""The benchmark scripts: which rows they run, what a row's figures are, and what happens when a row fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from scripts.benchmarks import throughput
from scripts.benchmarks.throughput import (
    BenchmarkRow,
    InferenceBenchmark,
    PretrainingBenchmark,
    TrainingBenchmark,
    compare,
    configurations,
    parse,
)
from tests.tiny_run import write_tiny_run
from utils.app.errors import RunError

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG_PATH", "GPU_COUNTS", "PRECISIONS", "STEPS", "BATCHES", "TIME_LIMIT", "RESULTS_DIR"):
        monkeypatch.delenv(name, raising=False)


def names(kind: str) -> list[str]:
    return [row.name for row in configurations(parse([kind])[0])]


# ---- What is measured


def test_values_have_defaults_and_options_go_to_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse(["training"]) == (TrainingBenchmark(), [])
    assert parse(["inference"]) == (InferenceBenchmark(), [])
    expected = PretrainingBenchmark(batch_size=32, length=512, data_dir="more", config_path="c.json")
    assert parse(["pretraining", "32", "512", "more", "c.json", "--seed", "1"]) == (expected, ["--seed", "1"])
    for name, value in {"CONFIG_PATH": "c.json", "STEPS": "7", "BATCHES": "3", "PRECISIONS": "fp16 fp32"}.items():
        monkeypatch.setenv(name, value)
    for name, value in {"GPU_COUNTS": "1 0", "TIME_LIMIT": "2.5", "RESULTS_DIR": "a b"}.items():
        monkeypatch.setenv(name, value)
    training, inference = parse(["training"])[0], parse(["inference"])[0]
    assert (training.config_path, training.steps, inference.batches) == ("c.json", 7, 3)
    assert inference.config_path == "configs/config_xsum.json"  # which has its place
    for args in (training, inference):
        shared = (args.gpu_counts, args.precisions, args.time_limit, args.results_dir)
        assert shared == ((1, 0), ("fp16", "fp32"), 2.5, "a b")


def test_a_kind_comes_first() -> None:
    with pytest.raises(InputError, match="the first value is 'scoring'; allowed: training, pretraining, inference, e"):
        parse(["scoring", "4"])


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine with so many GPUs of a compute capability."""
    machine = SimpleNamespace(count=0, capability=(9, 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: machine.count)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: machine.capability)
    return machine


def test_rows_are_all_that_the_machine_has(gpus: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names("training") == ["cpu_fp32", "cpu_bf16"]
    assert names("inference") == ["cpu_fp32", "cpu_bf16", "cpu_int8"]
    gpus.count = 6
    assert names("training")[2:] == [
        f"{n}gpu_{kind}" for n in (1, 2, 4, 6) for kind in ("fp32", "tf32", "bf16", "fp16")
    ]
    gpus.capability = (7, 0)
    monkeypatch.setenv("GPU_COUNTS", "1 0 1")
    assert names("training") == ["1gpu_fp32", "1gpu_fp16", "cpu_fp32", "cpu_bf16"]
    monkeypatch.setenv("PRECISIONS", "fp16 fp32")
    assert names("training") == ["1gpu_fp32", "1gpu_fp16", "cpu_fp32"]


def test_precisions_that_the_machine_lacks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_COUNTS", "0")
    monkeypatch.setenv("PRECISIONS", "fp16")
    with pytest.raises(InputError, match="PRECISIONS is fp16, none of which the devices of GPU_COUNTS have"):
        names("training")


# ---- Figures


def test_speed_up_is_over_fp32_of_the_same_device_and_scaling_over_the_fewest_gpus() -> None:
    rates = {(0, "fp32"): 1.0, (1, "fp32"): 10.0, (1, "fp16"): 40.0, (2, "fp16"): 72.0, (2, "fp32"): None}
    rows = [BenchmarkRow(*of, {} if rate is None else {"throughput": rate}) for of, rate in rates.items()]
    compare(rows)
    ratios = [(row.metrics.get("speed_up"), row.metrics.get("weak_scaling")) for row in rows]
    assert ratios == [(1.0, None), (1.0, 1.0), (4.0, 1.0), (None, 1.8), (None, None)]


def test_training_throughput_is_that_of_all_measured_steps(tmp_path: Path) -> None:
    # 40 samples an interval: the first one warms up, the others take 1, 2 and 4 seconds, for more tokens the later.
    columns = "step,samples_per_second,tokens_per_second,step_time_p50,peak_memory_gb,val_loss"
    seconds = {4: 40.0, 9: 1.0, 14: 2.0, 19: 4.0}
    lines = [f"{step},{40 / time},{100 * step / time},{time / 5},{step},\n" for step, time in seconds.items()]
    (tmp_path / "metrics.csv").write_text("".join([f"{columns}\n", *lines, "19,,,,,3.0\n"]))
    figures = TrainingBenchmark().metrics(tmp_path)
    assert figures["throughput"] == pytest.approx(120 / 7)
    assert figures["tokens_per_second"] == pytest.approx((900 + 1400 + 1900) / 7)
    assert figures["step_milliseconds"] == pytest.approx(400)
    assert figures["peak_memory_gb"] == 19
    assert "mfu" not in figures


# ---- Rows and their processes


@dataclass(frozen=True)
class Witness:
    """A process that tells whether it was left alone for a minute, and prints its id when it has begun."""

    fifo: Path
    end: int  # for reading

    @property
    def command(self) -> list[str]:
        program = (
            "import os, sys, time; fifo = open(sys.argv[1], 'w'); print('begun', os.getpid(), flush=True); "
            "time.sleep(60); fifo.write('survived')"
        )
        return [sys.executable, "-c", program, str(self.fifo)]

    def starter(self, then: str) -> list[str]:
        """A process that starts the witness in a session of its own and then runs some code."""
        program = (
            f"import signal, subprocess, sys; witness = subprocess.Popen(sys.argv[1:], start_new_session=True); {then}"
        )
        return [sys.executable, "-c", program, *self.command]

    def survived(self) -> bool:
        """Wait for its end."""
        os.set_blocking(self.end, True)
        with os.fdopen(self.end) as file:
            return file.read() == "survived"


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    os.mkfifo(tmp_path / "fifo")
    return Witness(tmp_path / "fifo", os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK))


# torchrun's processes are in sessions of their own, and it ends them when it gets SIGTERM.
LIKE_TORCHRUN = "signal.signal(signal.SIGTERM, lambda *_: (witness.kill(), sys.exit(1))); witness.wait()"


def test_a_row_over_the_time_limit_ends_with_all_its_processes(
    witness: Witness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_wait = subprocess.Popen.wait

    def wait(process: subprocess.Popen[bytes], time_limit: float) -> int:
        """Time is up as soon as the row has begun, however fast this machine is."""
        if time_limit != 1000:
            return really_wait(process, time_limit)
        while "begun" not in (tmp_path / "row/output.txt").read_text():
            time.sleep(0.05)
        raise subprocess.TimeoutExpired(process.args, time_limit)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    folder = tmp_path / "row"
    _, failure = throughput.measure(witness.starter(LIKE_TORCHRUN), lambda _: {}, folder, 1000)
    assert failure == "it took longer than the time limit of 1000 s"
    assert not witness.survived()


@pytest.fixture
def rows_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Runs the benchmark of training on the CPU, with a shell script in the place of each row."""
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path / "out"))
    monkeypatch.setenv("GPU_COUNTS", "0")

    def run(script: str) -> None:
        monkeypatch.setattr(TrainingBenchmark, "command", lambda *_: ["bash", "-c", script])
        throughput.main(["training", "4", "--lr", "1"])

    return run


def test_other_rows_follow_a_failed_one(
    rows_run: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "out"
    with pytest.raises(RunError, match=f"no configuration could be measured; {folder} has their output"):
        rows_run(
            "mkdir $RESULTS_DIR/export; "
            "[[ $RESULTS_DIR == *fp32 ]] || { echo 'RuntimeError: out of memory'; echo goodbye; exit 1; }"
        )
    assert not list(folder.rglob("export"))
    printed = capsys.readouterr().out
    assert (folder / "training_benchmark.log").read_text() in printed
    rows = [line.replace("|", "").split() for line in printed.splitlines()]
    assert ["NUM_GPU", "precision", "batch"] in rows
    assert [row[1] for row in rows if row[:1] == ["CPU"]] == ["fp32", "bf16"]
    assert "cpu_fp32 failed: it left no figures (InputError:" in printed
    assert "cpu_bf16 failed: RuntimeError: out of memory\n" in printed
    with pytest.raises(InputError, match="RESULTS_DIR is .*out, which is there already"):
        rows_run("true")
    monkeypatch.setenv("RESULTS_DIR", "/proc/nope/x")
    with pytest.raises(InputError, match="^RESULTS_DIR /proc/nope/x: cannot be written"):
        rows_run("true")


@pytest.mark.slow
def test_inference_benchmark_of_a_tiny_model(tmp_path: Path) -> None:
    write_tiny_run(tmp_path, n_test=13)
    config = BartConfig.from_pretrained(tmp_path / "config.json")
    tokenizer = BartTokenizer.from_pretrained(tmp_path / "tokenizer")
    BartForConditionalGeneration(config).save_pretrained(tmp_path / "model", tokenizer)
    values = [2, 3, 40, 12, tmp_path / "model", tmp_path / "data", tmp_path / "config.json"]
    chosen = {"PRECISIONS": "int8", "GPU_COUNTS": 0, "BATCHES": 3, "RESULTS_DIR": tmp_path / "out"}
    words = map(str, [*values, "--length_penalty", 0.5])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **{name: str(value) for name, value in chosen.items()}}
    subprocess.run(["bash", "scripts/run_inference_benchmark.sh", *words], cwd=ROOT, env=environment, check=True)
    report = json.loads((tmp_path / "out/inference_benchmark.json").read_text())
    [measured] = report["rows"]
    assert (measured["gpus"], measured["precision"], report["arguments"]["batch_size"]) == (0, "int8", 2)
    speed, scores = (
        json.loads((tmp_path / "out" / "cpu_int8" / f"test_{name}.json").read_text()) for name in ("speed", "scores")
    )
    assert (speed["warmup_articles"], speed["timed_articles"], speed["batch_size"]) == (2, 6, 2)
    figures = measured["metrics"]
    assert figures["throughput"] == speed["articles_per_second"]
    assert figures["latency_p50"] <= figures["latency_p99"] <= figures["latency_p100"] == speed["latency_ms"]["p100"]
    assert (scores["generation"]["num_beams"], scores["generation"]["length_penalty"]) == (3, 0.5)
