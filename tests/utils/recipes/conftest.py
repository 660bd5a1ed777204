"""A trained model that several files of tests score."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import finetune
from tests.tiny_run import write_tiny_run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    argv = write_tiny_run(folder, n_test=9)
    # Large random weights and hardly any training: the summaries then differ from article to article.
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "init_std": 0.6, "min_length": 4}))
    argv += ["--max_source_length", "64"]  # all positions
    finetune.main([*argv, "--do_train", "--output_dir", str(folder / "run"), "--max_steps", "3"])
    return folder
