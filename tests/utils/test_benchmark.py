"""The benchmark scripts: which rows they run, what a row's figures are, and what becomes of a row that fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import write_tiny_run
from utils import benchmark
from utils.benchmark import BenchmarkArguments, Row, cells, compare, configurations, markdown_table, plain_table
from utils.cli import RunError

ROOT = Path(__file__).parents[2]


def arguments(kind: str = "training", **others: Any) -> BenchmarkArguments:
    return BenchmarkArguments(kind, 4, 40, 12, "data", "config.json", **others)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine with so many GPUs of a compute capability."""
    machine = SimpleNamespace(count=0, capability=(9, 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: machine.count)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: machine.capability)
    return machine


def test_rows_are_all_that_the_machine_has(gpus: SimpleNamespace) -> None:
    assert [row.name for row in configurations(arguments())] == ["cpu_fp32", "cpu_bf16"]
    assert [row.name for row in configurations(arguments("inference"))] == ["cpu_fp32", "cpu_bf16", "cpu_int8"]
    gpus.count = 6
    names = [row.name for row in configurations(arguments())]
    assert names[2:] == [f"{n}gpu_{kind}" for n in (1, 2, 4, 6) for kind in ("fp32", "tf32", "bf16", "fp16")]
    gpus.count, gpus.capability = 1, (7, 0)
    assert [row.name for row in configurations(arguments())][2:] == ["1gpu_fp32", "1gpu_fp16"]
    chosen = arguments(gpu_counts="1 0", precisions="fp16,fp32")
    assert [row.name for row in configurations(chosen)] == ["1gpu_fp32", "1gpu_fp16", "cpu_fp32"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu_counts": "3"}, "--gpu_counts is '3'; allowed: numbers from 0, the CPU, to 2, the GPUs of this machine"),
        ({"gpu_counts": "one"}, "--gpu_counts is 'one'"),
        ({"precisions": "fp64"}, "--precisions is 'fp64'; allowed: fp32, tf32, bf16, fp16, int8"),
        ({"precisions": "fp16", "gpu_counts": "0"}, "--precisions is 'fp16', none of which --gpu_counts 0 has here"),
    ],
)
def test_rows_that_the_machine_lacks_are_refused(gpus: SimpleNamespace, options: dict[str, str], message: str) -> None:
    gpus.count = 2
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        configurations(arguments(**options))


def row(gpus: int, precision: str, throughput: float | None) -> Row:
    names = set(benchmark.COLUMNS["training"].values()) - {"speed_up", "weak_scaling"}
    figures = {} if throughput is None else {**dict.fromkeys(names, 2.0), "throughput": throughput}
    return Row(gpus, precision, 8, figures, "no | room" if throughput is None else None)


def test_speed_up_is_over_fp32_of_the_same_device_and_scaling_over_the_fewest_gpus() -> None:
    rows = [row(0, "fp32", 1.0), row(1, "fp32", 10.0), row(1, "fp16", 40.0), row(2, "fp16", 72.0), row(2, "fp32", None)]
    compare(rows)
    found = [(one.figures.get("speed_up"), one.figures.get("weak_scaling")) for one in rows]
    assert found == [(1.0, None), (1.0, 1.0), (4.0, 1.0), (None, 1.8), (None, None)]


def test_tables_show_a_failed_row_with_its_reason() -> None:
    rows = [row(0, "fp32", 1234.5), row(1, "bf16", None)]
    compare(rows)
    lines = cells("training", rows)
    plain = plain_table(lines).splitlines()
    assert plain[0].split() == "NUM_GPU precision batch throughput tokens/s speed-up scaling step ms peak GB".split()
    assert plain[1].split() == "CPU fp32 8 1,234 2.00 1.00 - 2.00 2.00".split()
    assert plain[2].split(maxsplit=3) == ["1", "bf16", "8", "failed: no | room"]
    head, rule, *rest = markdown_table(lines).splitlines()
    assert {len(line.replace(r"\|", "").split("|")) for line in (head, rule, *rest)} == {len(lines[0]) + 2}
    assert r"failed: no \| room" in rest[1]


def test_training_throughput_is_that_of_all_measured_steps(tmp_path: Path) -> None:
    # 40 samples an interval: the first one warms up, the others take 1, 2 and 4 seconds, for more tokens the later.
    columns = "step,samples_per_second,tokens_per_second,step_time_p50,peak_memory_gb,val_loss"
    seconds = {4: 40.0, 9: 1.0, 14: 2.0, 19: 4.0}
    lines = [f"{step},{40 / time},{100 * step / time},{time / 5},{step},\n" for step, time in seconds.items()]
    (tmp_path / "metrics.csv").write_text("".join([f"{columns}\n", *lines, "19,,,,,3.0\n"]))
    figures = benchmark.training_figures(tmp_path)
    assert figures["throughput"] == pytest.approx(120 / 7)
    assert figures["tokens_per_second"] == pytest.approx((900 + 1400 + 1900) / 7)
    assert figures["step_milliseconds"] == pytest.approx(400)
    assert figures["peak_memory_gb"] == 19


def canned(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A shell script in the place of a row's run."""
    monkeypatch.setitem(benchmark.COMMANDS, "training", lambda args, row: ["bash", "-c", script])


def launcher_of_a_worker() -> str:
    """A shell script that does as torchrun: its process is in a session of its own, and SIGTERM ends that."""
    program = """
import signal, subprocess, sys
def end(*_):
    worker.kill()
    sys.exit(1)
worker = subprocess.Popen(["sleep", "40"], start_new_session=True)
signal.signal(signal.SIGTERM, end)
print("begun", worker.pid, flush=True)
worker.wait()
"""
    return f"{sys.executable} -c '{program}'; true"


def test_a_row_over_the_time_limit_is_killed_with_its_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    canned(monkeypatch, f"(sleep 20; touch {tmp_path}/survived) & echo begun; sleep 20")
    failed = row(0, "fp32", None)
    start = time.perf_counter()
    assert not benchmark.run_row(arguments(time_limit=0.5), failed, [], tmp_path / "row")
    assert time.perf_counter() - start < 10
    assert failed.failure == "it took longer than the time limit of 0.5 s"
    assert (tmp_path / "row" / "output.txt").read_text() == "begun\n"


def test_a_row_over_the_time_limit_takes_the_processes_of_its_launcher_along(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    canned(monkeypatch, launcher_of_a_worker())
    failed = row(0, "fp32", None)
    start = time.perf_counter()
    benchmark.run_row(arguments(time_limit=2), failed, [], tmp_path / "row")
    assert time.perf_counter() - start < 15  # the worker, too, has closed its output
    assert failed.failure == "it took longer than the time limit of 2 s"


def test_sigterm_ends_the_row_that_runs(tmp_path: Path) -> None:
    program = f"""
import sys
from utils import benchmark
benchmark.COMMANDS["training"] = lambda args, row: ["bash", "-c", {launcher_of_a_worker()!r}]
benchmark.main(["training", "4", "40", "12", "data", "config.json", "--output_dir", {str(tmp_path / "out")!r}])
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    worker = int(next(line for line in process.stderr if "begun" in line).split()[1])
    process.terminate()
    assert process.wait(15) == 128 + signal.SIGTERM
    process.stderr.close()
    for _ in range(100):  # it is sent SIGKILL, and then somebody has to take note of its end
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("the worker goes on")


def test_the_reason_of_a_failure_is_the_error_not_what_a_launcher_says_after_it() -> None:
    torchrun = [
        "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB",
        "E1121 21:04:12.164000 29981 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "error_file: <N/A>",
        "traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        "============================================================",
    ]
    assert benchmark.reason(torchrun) == torchrun[0]
    gone = "run_eval.py: error: another process of this run is gone, or cannot be reached (gloo)"
    assert benchmark.reason(["[rank1]: ValueError: a", gone, *torchrun[1:]]) == "[rank1]: ValueError: a"
    assert benchmark.reason(["ValueError: caught", "run_eval.py: error: --bs is 0", ""]).startswith("run_eval.py")
    assert benchmark.reason(["begun", "line 12: 4711 Killed"]) == "line 12: 4711 Killed"
    assert benchmark.reason([""]) is None


def test_a_row_without_figures_is_a_failed_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    canned(monkeypatch, "true")
    failed = row(0, "fp32", None)
    benchmark.run_row(arguments(), failed, [], tmp_path / "row")
    assert failed.failure.startswith("it left no figures (FileNotFoundError: ")


@pytest.mark.usefixtures("gpus")
def test_other_rows_follow_a_failed_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    canned(monkeypatch, "echo RuntimeError: out of memory; echo goodbye; exit 1")
    folder = tmp_path / "out"
    values = ["training", "4", "40", "12", "data", "config.json", "--output_dir", str(folder)]
    with pytest.raises(RunError, match=f"no configuration could be measured; {folder} has their output"):
        benchmark.main(values)
    printed = capsys.readouterr().out
    assert printed.count("failed: RuntimeError: out of memory") == 2
    assert (folder / "training_benchmark.log").read_text() in printed
    with pytest.raises(InputError, match="--output_dir is .*out, which is there already"):
        benchmark.main(values)


@pytest.mark.usefixtures("gpus")
def test_input_that_all_rows_would_refuse_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    canned(monkeypatch, "echo finetune.py: error: unknown argument --lr; exit 2")
    values = ["training", "4", "40", "12", "data", "config.json", "--output_dir", str(tmp_path / "out")]
    with pytest.raises(InputError, match="^finetune.py: error: unknown argument --lr$"):
        benchmark.main([*values, "--", "--lr", "1"])


def run_script(name: str, *values: object, **environment: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", f"scripts/{name}", *map(str, values)], cwd=ROOT, capture_output=True, text=True, timeout=300,
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
    )  # fmt: skip


def test_training_benchmark_of_a_tiny_model(tmp_path: Path) -> None:
    write_tiny_run(tmp_path)
    given = {"CONFIG_PATH": tmp_path / "config.json", "RESULTS_DIR": tmp_path / "out"}
    model = ["--model_name_or_path", "scratch", "--tokenizer", tmp_path / "tokenizer", "--num_workers", 0]
    done = run_script(
        "run_training_benchmark.sh", 4, 40, 12, tmp_path / "data", *model, PRECISIONS="fp32", STEPS=6, **given
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out" / "training_benchmark.json").read_text())
    [measured] = report["rows"]
    assert (measured["gpus"], measured["precision"], measured["batch_size"]) == (0, "fp32", 4)
    assert measured["figures"]["throughput"] > 0 and measured["figures"]["tokens_per_second"] > 0
    assert report["machine"]["cores"] and report["options"][0] == "--model_name_or_path"
    assert "step 15/15" in done.stderr  # an interval to warm up, and two that hold 6 steps
    assert not list((tmp_path / "out").rglob("*.ckpt")) and not (tmp_path / "out" / "cpu_fp32" / "export").exists()
    assert (tmp_path / "out" / "training_benchmark.md").read_text().count("| CPU | fp32 | 4 |") == 1


def test_inference_benchmark_of_a_tiny_model(tmp_path: Path) -> None:
    write_tiny_run(tmp_path, n_test=13)
    config = BartConfig.from_json(tmp_path / "config.json")
    tokenizer = BartTokenizer.from_pretrained(tmp_path / "tokenizer")
    BartForConditionalGeneration(config).save_pretrained(tmp_path / "model", tokenizer)
    values = [2, 3, 40, 12, tmp_path / "model", tmp_path / "data", tmp_path / "config.json"]
    chosen = {"PRECISIONS": "fp32 int8", "BATCHES": 3, "RESULTS_DIR": tmp_path / "out"}
    done = run_script("run_inference_benchmark.sh", *values, "--length_penalty", 0.5, **chosen)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out" / "inference_benchmark.json").read_text())
    assert [measured["precision"] for measured in report["rows"]] == ["fp32", "int8"]
    for measured in report["rows"]:
        speed = json.loads((tmp_path / "out" / f"cpu_{measured['precision']}" / "test_speed.json").read_text())
        assert (speed["warmup_articles"], speed["timed_articles"], speed["batch_size"]) == (2, 6, 2)
        figures = measured["figures"]
        assert figures["throughput"] == speed["articles_per_second"]
        assert (
            figures["latency_p50"] <= figures["latency_p99"] <= figures["latency_p100"] == speed["latency_ms"]["p100"]
        )
    scores = json.loads((tmp_path / "out" / "cpu_fp32" / "test_scores.json").read_text())
    assert (scores["generation"]["num_beams"], scores["generation"]["length_penalty"]) == (3, 0.5)
    table = (tmp_path / "out" / "inference_benchmark.log").read_text().splitlines()
    assert any(line.split()[:3] == ["CPU", "int8", "2"] for line in table)
