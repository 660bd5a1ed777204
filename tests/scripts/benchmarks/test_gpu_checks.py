"""scripts/benchmarks/gpu_checks.py: which checks are run, and the table."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from bart.errors import InputError
from scripts.benchmarks import gpu_checks
from scripts.benchmarks.decoding import DecodingArguments
from scripts.benchmarks.training import TrainerArguments
from utils.app.cli import parse_dataclass
from utils.recipes.finetuning_arguments import parse_finetune_arguments
from utils.recipes.pretraining_arguments import parse_pretraining_arguments


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts lines of bash, by their names, in the place of all checks; each notes that it runs."""

    def metrics(folder: Path) -> dict[str, Any]:
        return {"rate": float((folder / "rate").read_text()), "unit": "articles/s", "peer_rate": 2.0, "peer": "theirs"}

    def use(*names: str, **commands: str) -> None:
        lines = {**dict.fromkeys(names, 'echo 5 >"$OUT/rate"'), **commands}
        checks = [
            gpu_checks.Check(name, f'echo "$OUT" >>"$OUT/../runs"; {line}', metrics, gpus=int(name.startswith("gpu")))
            for name, line in lines.items()
        ]
        monkeypatch.setattr(gpu_checks, "all_checks", lambda on_gpu: checks)

    return use


def rows(out: Path) -> dict[str, Any]:
    return {row["name"]: row for row in json.loads((out / "checks.json").read_text())["rows"]}


def runs(out: Path) -> list[str]:
    return [Path(line).name for line in (out / "runs").read_text().splitlines()]


def test_a_row_for_each_check(use: Callable[..., None], tmp_path: Path) -> None:
    use("fast", "gpu only", bad='echo "x.py: error: no such thing" >&2; exit 2', silent="true")
    tmp_path /= "out"
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
    assert runs(tmp_path) == ["fast", "bad", "silent"]


def test_first_words_choose_the_checks(use: Callable[..., None], tmp_path: Path) -> None:
    use("fine-tuning fp32", "fine-tuning bf16", "decoding")
    assert gpu_checks.main([str(tmp_path / "out"), "fine-tuning"]) == 0
    assert runs(tmp_path / "out") == ["fine-tuning_fp32", "fine-tuning_bf16"]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_programs_take_the_options(on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = gpu_checks.all_checks(on_gpu)
    assert len({check.name for check in checks}) == len(checks)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    parsers: dict[str, Callable[[list[str]], object]] = {
        "finetune.py": parse_finetune_arguments, "run_pretraining.py": parse_pretraining_arguments
    }  # fmt: skip
    for cls in (DecodingArguments, TrainerArguments):
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


def test_bad_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no check begins with 'speed'; there are: tests, learning fp32, "):
        gpu_checks.main([str(tmp_path), "speed"])
    with pytest.raises(InputError, match="OUT is .*, which is there already; allowed: a directory that is not"):
        gpu_checks.main([str(tmp_path)])
    monkeypatch.setenv("TOKENIZER", str(tmp_path / "none"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="TOKENIZER is '.*none': "):
        gpu_checks.main([str(tmp_path)])


def test_memory_must_not_grow(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for last, grows in ((1.0, False), (1.1, True)):
        lines = ["step,peak_memory_gb,val_loss", "49,0.5,", "99,1.0,", "100,,2.5", "149,1.0,", f"199,{last},", ""]
        (tmp_path / "run/metrics.csv").write_text("\n".join(lines))
        with pytest.raises(ValueError, match="1.000 GB at step 100 and 1.100 GB") if grows else nullcontext():
            assert gpu_checks.constant(tmp_path)["rate"] == last


def test_losses_must_not_depend_on_recordings(tmp_path: Path) -> None:
    said = tmp_path / "output.txt"
    said.write_text("steps are recorded\n")
    for run, losses in {"recorded": (2.0, 1.0), "run": (2.01, 1.01), "other": (2.0, 1.1)}.items():
        (tmp_path / run).mkdir()
        lines = ["step,train_loss", *(f"{step},{loss}" for step, loss in enumerate(losses))]
        (tmp_path / run / "metrics.csv").write_text("\n".join([*lines, ""]))
    assert gpu_checks.alike(tmp_path)["rate"] == 1.0
    said.write_text("steps are eager from now on: no memory\n")
    with pytest.raises(ValueError, match="no memory"):
        gpu_checks.alike(tmp_path)
    said.write_text("")
    (tmp_path / "run").rename(tmp_path / "former")
    (tmp_path / "other").rename(tmp_path / "run")
    with pytest.raises(ValueError, match=re.escape("[2.0, 1.0], and [2.0, 1.1] without")):
        gpu_checks.alike(tmp_path)


def test_no_check_begins_when_the_time_is_over(
    use: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("first", "second")
    monkeypatch.setattr(gpu_checks, "ALL_MINUTES", -1)
    assert gpu_checks.main([str(tmp_path / "out")]) == 0
    results = [(row["result"], row["why"]) for row in rows(tmp_path / "out").values()]
    assert results == [("skipped", "-1 minutes were over; name it")] * 2
