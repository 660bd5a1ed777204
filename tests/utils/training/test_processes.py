"""Several processes that train one model, over gloo on the CPU: as one process would, and when one of them is lost."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import finetune
from tests.tiny_run import write_tiny_run

ROOT = Path(__file__).parents[3]
STEPS = 9
SECONDS = 120  # more than any of these takes


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def torchrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options, str(ROOT / "finetune.py")]


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    return [
        *write_tiny_run(tmp_path / "tiny"),
        *("--do_train", "--sortish_sampler", "--max_steps", str(STEPS), "--learning_rate", "1e-3"),
        *("--val_check_interval", "0.5", "--accelerator", "cpu", "--resume_from_checkpoint", "last"),
    ]


def losses(output: Path) -> dict[int, float]:
    found = {}
    for path in output.glob("metrics*.csv"):
        with path.open() as file:
            found |= {int(row["step"]): float(row["train_loss"]) for row in csv.DictReader(file) if row["train_loss"]}
    return found


def summary(output: Path) -> dict[str, float]:
    content = json.loads((output / "train_summary.json").read_text())
    return {name: value for name, value in content.items() if name.startswith("val_")}


def weights(output: Path) -> dict[str, torch.Tensor]:
    return torch.load(output / "last.ckpt", weights_only=True)["state_dict"]


def run(command: list[str], options: list[str], output: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *options, "--output_dir", str(output)], capture_output=True, text=True, timeout=SECONDS, cwd=ROOT
    )


def running(command: list[str], options: list[str], output: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*command, *options, "--output_dir", str(output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )


def wait_for_step(step: int, process: subprocess.Popen[str], output: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while max(losses(output), default=-1) < step:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)


TORCHRUN = torchrun("--standalone", "--nproc_per_node", "2")
ITSELF = [sys.executable, str(ROOT / "finetune.py"), "--devices", "2"]
FSDP = [*ITSELF, "--strategy", "fsdp"]


@pytest.mark.parametrize("command", [TORCHRUN, ITSELF, FSDP], ids=["torchrun", "finetune.py", "fsdp"])
def test_two_processes_give_the_losses_of_one(command: list[str], options: list[str], tmp_path: Path) -> None:
    """22 examples in global batches of 4: the last one of an epoch is smaller."""
    options += ["--dropout", "0", "--attention_dropout", "0", "--freeze_embeds"]
    options += [
        "--eval_beams",
        "2",
        "--eval_max_gen_length",
        "6",
        "--n_val",
        "3",
    ]  # one process has one more to validate
    finetune.main([*options, "--train_batch_size", "4", "--output_dir", str(tmp_path / "one")])
    done = run(command, [*options, "--train_batch_size", "2"], tmp_path / "two")
    assert done.returncode == 0, done.stderr
    expected, found = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert sorted(expected) == sorted(found) == list(range(STEPS))
    assert found == pytest.approx(expected, abs=1e-5, rel=0)
    assert summary(tmp_path / "two") == pytest.approx(summary(tmp_path / "one"), abs=1e-3)
    assert (tmp_path / "two" / "export" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    "command",
    [TORCHRUN, ITSELF, pytest.param(FSDP, marks=pytest.mark.slow)],
    ids=["torchrun", "finetune.py", "fsdp"],
)
def test_sigterm_saves_and_the_resumed_run_ends_as_the_uninterrupted_one(
    command: list[str], options: list[str], tmp_path: Path
) -> None:
    options += ["--train_batch_size", "2", "--dropout", "0.2", "--max_steps", "60", "--val_check_interval", "1.0"]
    done = run(command, options, tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    process = running(command, options, tmp_path / "ended")
    wait_for_step(10, process, tmp_path / "ended")
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == (1 if command is TORCHRUN else 143), output  # torchrun has a status of its own
    assert "ended by SIGTERM after step" in output
    assert "Traceback" not in output or command is TORCHRUN  # torchrun's own
    again = run(command, options, tmp_path / "ended")
    assert again.returncode == 0, again.stderr
    assert losses(tmp_path / "ended") == losses(tmp_path / "whole")
    final = weights(tmp_path / "whole")
    assert all(torch.equal(tensor, final[name]) for name, tensor in weights(tmp_path / "ended").items())


@pytest.fixture
def hosts() -> Iterator[list[list[str]]]:
    """Two network namespaces, joined by a cable, as commands that run another command in them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("making network namespaces takes root and iproute2")
    names = [f"bart-{os.getpid()}-{i}" for i in range(2)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        ip("netns", "add", names[0])
        ip("netns", "add", names[1])
        ip("link", "add", "bart0", "netns", names[0], "type", "veth", "peer", "name", "bart1", "netns", names[1])
        for i, name in enumerate(names):
            ip("-n", name, "address", "add", f"10.77.0.{i + 1}/24", "dev", f"bart{i}")
            ip("-n", name, "link", "set", f"bart{i}", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield [["ip", "netns", "exec", name, "env", f"GLOO_SOCKET_IFNAME=bart{i}"] for i, name in enumerate(names)]
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made: {error.stderr.decode().strip()}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def test_two_hosts_train_together_and_one_that_dies_ends_the_run(
    hosts: list[list[str]], options: list[str], tmp_path: Path
) -> None:
    options += ["--train_batch_size", "2", "--dropout", "0.2", "--max_steps", "60", "--save_every_n_steps", "5"]

    def commands() -> list[list[str]]:
        meeting = ["--nnodes", "2", "--nproc_per_node", "1", "--master_addr", "10.77.0.1", "--master_port", "29571"]
        return [[*host, *torchrun(*meeting, "--node_rank", str(i))] for i, host in enumerate(hosts)]

    def start(output: Path) -> list[subprocess.Popen[str]]:
        return [running(command, options, output) for command in commands()]

    for process in start(tmp_path / "whole"):
        output = process.communicate(timeout=SECONDS)[0]
        assert process.returncode == 0, output
    first, second = start(tmp_path / "killed")
    wait_for_step(12, first, tmp_path / "killed")
    everything = subprocess.run(["ip", "netns", "pids", hosts[1][3]], check=True, capture_output=True, text=True)
    for number in everything.stdout.split():
        os.kill(int(number), signal.SIGKILL)
    output = first.communicate(timeout=SECONDS)[0]
    assert first.returncode != 0
    assert "another process of this run is gone" in output and "--resume_from_checkpoint last" in output, output
    second.communicate()
    for process in start(tmp_path / "killed"):
        output = process.communicate(timeout=SECONDS)[0]
        assert process.returncode == 0, output
        if process.args[3] == hosts[0][3]:
            assert "going on from" in output
    final = weights(tmp_path / "whole")
    assert all(torch.equal(tensor, final[name]) for name, tensor in weights(tmp_path / "killed").items())
