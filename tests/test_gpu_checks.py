"""scripts/gpu_checks.py: what is run again, what is left for another call, and what the table says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bart.errors import InputError


@pytest.fixture
def script(load_script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    script = load_script("gpu_checks")
    monkeypatch.setattr(script.torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("MINUTES", "9")
    return script


@pytest.fixture
def use(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts lines of bash, by their names, in the place of all checks; each counts its runs, and has 3 minutes."""

    def figures(folder: Path) -> dict[str, Any]:
        return {"rate": float((folder / "rate").read_text()), "unit": "articles/s", "peer_rate": 2.0, "peer": "theirs"}

    def use(*names: str, **commands: str) -> None:
        lines = {**dict.fromkeys(names, 'echo 5 >"$OUT/rate"'), **commands}
        checks = [
            script.Check(name, f'echo "$OUT" >>"$OUT/../runs"; {line}', figures, 3, needs_gpu=name.startswith("gpu"))
            for name, line in lines.items()
        ]
        monkeypatch.setattr(script, "all_checks", lambda on_gpu: checks)

    return use


def rows(out: Path) -> dict[str, Any]:
    return json.loads((out / "checks.json").read_text())["rows"]


def runs(out: Path) -> list[str]:
    return [Path(line).name for line in (out / "runs").read_text().splitlines()]


def test_a_row_for_each_check(script: ModuleType, use: Callable[..., None], tmp_path: Path) -> None:
    use("fast", "gpu only", bad='echo "x.py: error: no such thing" >&2; exit 2', silent="true")
    assert script.main([str(tmp_path)]) == 1
    found = rows(tmp_path)
    assert {name: row["result"] for name, row in found.items()} == {
        "fast": "passed", "gpu only": "skipped", "bad": "failed", "silent": "failed"
    }  # fmt: skip
    assert (found["fast"]["rate"], found["fast"]["ratio"]) == (5, 2.5)
    assert found["gpu only"]["why"] == "it needs a CUDA device"
    assert found["bad"]["why"] == "x.py: error: no such thing"
    assert "it left no figures (FileNotFoundError" in found["silent"]["why"]
    text = (tmp_path / "checks.md").read_text()
    assert [line.split("|")[1].strip() for line in text.splitlines()[4:]] == [*found]
    # Failed ones only where they are named.
    use("fast", "gpu only", "silent", bad="exit 3")
    assert script.main([str(tmp_path)]) == 1
    assert script.main([str(tmp_path), "silent", "fast"]) == 0
    assert rows(tmp_path)["silent"]["result"] == "passed"
    assert runs(tmp_path) == ["fast", "bad", "silent", "silent"]


def test_what_might_not_end_in_time_is_left_to_another_call(
    script: ModuleType, use: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("one", "two", "three")
    monkeypatch.setenv("MINUTES", "2.9")  # at least one is run
    for done in (1, 2):
        assert script.main([str(tmp_path)]) == script.UNFINISHED
        assert len(rows(tmp_path)) == done
    assert script.main([str(tmp_path)]) == 0
    assert runs(tmp_path) == ["one", "two", "three"]


def test_what_is_there_to_check(script: ModuleType) -> None:
    on_cpu, on_gpu = ({check.name: check for check in script.all_checks(has_gpu)} for has_gpu in (False, True))
    for options in ("bf16", "fp16 O2", "fsdp", "fused_lamb"):
        assert on_gpu[f"fine-tuning {options}"].needs_gpu == ("fp16" in options)
    assert {"tests", "decoding large", "decoding large_batch1 without graphs", "training cnn_dm bf16"} < {*on_gpu}
    assert {"decoding tiny", "training tiny fp32", "pretraining bert 512"} < {*on_cpu}
    assert all(check.minutes < 9 for check in on_gpu.values())


def test_bad_values(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no check begins with 'speed'; there are: tests, fine-tuning fp32, "):
        script.main([str(tmp_path), "speed"])
    monkeypatch.setenv("MINUTES", "many")
    with pytest.raises(InputError, match="MINUTES is 'many'; allowed: a number of minutes"):
        script.main([str(tmp_path)])
