"""The files that runs leave in their directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from bart.errors import InputError
from utils.app.run_directory import check_free, remove_run
from utils.tasks.glue import GLUE, submission
from utils.tasks.question_answering import QuestionAnswering


def test_what_tasks_write_is_a_run_and_goes_with_it(tmp_path: Path) -> None:
    submissions = [submission(name, mismatched, [])[0] for name in GLUE for mismatched in (False, name == "mnli")]
    answers = [name for split in ("val", "test") for name in QuestionAnswering.files(None, [], [], split)]
    for name in {*submissions, *answers}:
        (tmp_path / name).write_text("")
        with pytest.raises(InputError, match=f"holds a run .{name}"):
            check_free(str(tmp_path), tmp_path, None, None, overwrite=False)
        (tmp_path / "train.tsv").write_text("a user's")
        remove_run(tmp_path, 0)
        assert [path.name for path in tmp_path.iterdir()] == ["train.tsv"]
