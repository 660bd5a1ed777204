"""The quickstart does only what is not done, and names an interpreter that will not do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.scripts.recording import ROOT, shell


def test_an_interpreter_that_will_not_do_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    done = shell("bash scripts/quickstart.sh", PYTHON=broken, VENV=tmp_path / "venv")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: no Python 3.10 to 3.13 with the venv module: tried {broken};")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "venv").exists()


def test_the_quickstart_does_what_is_not_done(tmp_path: Path) -> None:
    contents = {
        "requirements.txt": "",
        "scripts/run_summarization.sh": "echo training",
        "scripts/run_eval_summarization.sh": "echo scoring again",
        ".venv/bin/python": "#!/bin/sh\nexit 0\n",
        **dict.fromkeys(("data/sample/questions/test.jsonl", "data/sample/tokenizer/tokenizer_config.json"), "there"),
    }
    for name in ("quickstart.sh", "setup_env.sh", "arguments.sh", "params/cnn_dm_params.sh"):
        contents[f"scripts/{name}"] = (ROOT / "scripts" / name).read_text()
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / ".venv/bin/python").chmod(0o755)

    def done() -> tuple[bool, bool]:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "VENV")}
        command = ["bash", str(tmp_path / "scripts/quickstart.sh")]
        printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        return "\ntraining\n" in printed, "scoring again" in printed

    results = tmp_path / "results/quickstart"
    results.mkdir(parents=True)
    (results / "step10.ckpt").write_text("of an interrupted run")
    assert done() == (True, False)
    assert not results.exists()
    results.mkdir()
    (results / "train_summary.json").write_text("{}")
    assert done() == (False, True)
    (results / "report.html").write_text("of the training")
    (results / "test_scores.json").write_text("{}")
    os.utime(results / "report.html", (1, 1))
    assert done() == (False, True)
    os.utime(results / "test_scores.json", (0, 0))
    assert done() == (False, False)
