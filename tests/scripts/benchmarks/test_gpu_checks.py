"""scripts/benchmarks/gpu_checks.py: which checks are run again or left to another call, and the table."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from bart.errors import InputError
from scripts.benchmarks import gpu_checks
from scripts.benchmarks.bert_inference import BertArguments
from scripts.benchmarks.decoding import DecodingArguments
from scripts.benchmarks.training import TrainerArguments
from utils.app.cli import parse_dataclass
from utils.recipes.finetuning_arguments import parse_finetune_arguments
from utils.recipes.pretraining_arguments import parse_pretraining_arguments


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("MINUTES", "9")


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts lines of bash, by their names, in the place of all checks; each counts its runs, and has 3 minutes."""

    def metrics(folder: Path) -> dict[str, Any]:
        return {"rate": float((folder / "rate").read_text()), "unit": "articles/s", "peer_rate": 2.0, "peer": "theirs"}

    def use(*names: str, **commands: str) -> None:
        lines = {**dict.fromkeys(names, 'echo 5 >"$OUT/rate"'), **commands}
        checks = [
            gpu_checks.Check(
                name, f'echo "$OUT" >>"$OUT/../runs"; {line}', metrics, 3, gpus=int(name.startswith("gpu"))
            )
            for name, line in lines.items()
        ]
        monkeypatch.setattr(gpu_checks, "all_checks", lambda on_gpu: checks)

    return use


def rows(out: Path) -> dict[str, Any]:
    return json.loads((out / "checks.json").read_text())["rows"]


def runs(out: Path) -> list[str]:
    return [Path(line).name for line in (out / "runs").read_text().splitlines()]


def test_a_row_for_each_check(use: Callable[..., None], tmp_path: Path) -> None:
    use("fast", "gpu only", bad='echo "x.py: error: no such thing" >&2; exit 2', silent="true")
    assert gpu_checks.main([str(tmp_path)]) == 1
    results = rows(tmp_path)
    assert {name: row["result"] for name, row in results.items()} == {
        "fast": "passed", "gpu only": "skipped", "bad": "failed", "silent": "failed"
    }  # fmt: skip
    assert (results["fast"]["rate"], results["fast"]["ratio"]) == (5, 2.5)
    assert results["gpu only"]["why"] == "it needs 1 CUDA devices, and has 0"
    assert results["bad"]["why"] == "x.py: error: no such thing"
    assert "it left no figures (FileNotFoundError" in results["silent"]["why"]
    text = (tmp_path / "checks.md").read_text()
    assert [line.split("|")[1].strip() for line in text.splitlines()[4:]] == [*results]
    # Failed ones only where they are named.
    use("fast", "gpu only", "silent", bad="exit 3")
    assert gpu_checks.main([str(tmp_path)]) == 1
    assert gpu_checks.main([str(tmp_path), "silent", "fast"]) == 0
    assert rows(tmp_path)["silent"]["result"] == "passed"
    assert runs(tmp_path) == ["fast", "bad", "silent", "silent"]


def test_what_might_not_end_in_time_is_left_to_another_call(
    use: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("first", "second", "third")
    monkeypatch.setenv("MINUTES", "2.9")  # at least one is run
    for done in (1, 2):
        assert gpu_checks.main([str(tmp_path)]) == gpu_checks.UNFINISHED
        assert len(rows(tmp_path)) == done
    assert gpu_checks.main([str(tmp_path)]) == 0
    assert runs(tmp_path) == ["first", "second", "third"]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_programs_take_the_options(on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = gpu_checks.all_checks(on_gpu)
    assert len({check.name for check in checks}) == len(checks) and all(check.minutes < 9 for check in checks)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    parsers: dict[str, Callable[[list[str]], object]] = {
        "finetune.py": parse_finetune_arguments, "run_pretraining.py": parse_pretraining_arguments
    }  # fmt: skip
    for cls in (DecodingArguments, TrainerArguments, BertArguments):
        parsers[Path(inspect.getfile(cls)).name] = partial(parse_dataclass, cls, description="")
    seen = set()
    for check in checks:
        for line in check.command.replace("\\\n", "").split("&&"):
            # The folder of the benchmarks' file of figures must be there.
            words = shlex.split(line.replace("$ROOT", str(gpu_checks.ROOT)).replace("$OUT/figures", "figures"))
            for place, word in enumerate(words):
                if parse := parsers.get(Path(word).name):
                    parse(words[place + 1 :])
                    seen.add(Path(word).name)
    assert seen == {*parsers}


def test_those_that_failed_do_not_keep_off_others(
    use: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(bad="exit 1", good="sleep 0; echo 5 >$OUT/rate")
    monkeypatch.setenv("MINUTES", "2.9")
    assert gpu_checks.main([str(tmp_path), "bad", "good"]) == gpu_checks.UNFINISHED
    assert gpu_checks.main([str(tmp_path), "bad", "good"]) == gpu_checks.UNFINISHED  # bad is left
    assert runs(tmp_path) == ["bad", "good"]


def test_results_of_another_machine_are_left_alone(
    use: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("fast")
    assert gpu_checks.main([str(tmp_path)]) == 0
    there = gpu_checks.environment(0)
    monkeypatch.setattr(gpu_checks, "environment", lambda gpus: there | {"devices": ["NVIDIA H200"]})
    with pytest.raises(InputError, match="has results of .*, and this machine has NVIDIA H200; name another folder"):
        gpu_checks.main([str(tmp_path)])


def test_bad_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no check begins with 'speed'; there are: tests, fine-tuning fp32, "):
        gpu_checks.main([str(tmp_path), "speed"])
    monkeypatch.setenv("MINUTES", "many")
    with pytest.raises(InputError, match="MINUTES is 'many'; allowed: a number of minutes"):
        gpu_checks.main([str(tmp_path)])
    monkeypatch.setenv("MINUTES", "9")
    monkeypatch.setenv("TOKENIZER", str(tmp_path / "none"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="TOKENIZER is '.*none': "):
        gpu_checks.main([str(tmp_path)])
