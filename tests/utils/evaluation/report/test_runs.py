from __future__ import annotations

from pathlib import Path

import pytest

from bart.errors import InputError
from utils.evaluation.report import build_report


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.csv", "epoch,loss\n0,1\n", "metrics.csv: has no column 'step'"),
        ("metrics.csv", "step,lr\n1,fast\n", "metrics.csv, line 2: lr is 'fast'; a number"),
        ("metrics.csv", "step,lr\n1,2\n3\n", "metrics.csv, line 3: 1 cells; the header has 2"),
        ("metrics.csv", "step,lr\n,2\n", "metrics.csv, line 2: step is empty"),
        ("metrics.csv", b"\xff\n", "metrics.csv: damaged"),
        ("arguments.yaml", "a: [", "arguments.yaml: damaged"),
        ("environment.json", "[]", "environment.json: holds a list"),
        ("train_summary.json", '{"steps": "many"}', "train_summary.json: steps is 'many'; a number"),
        ("test_scores.json", "{", "test_scores.json: damaged"),
        ("test_scores.json", '{"rouge1": "high"}', "test_scores.json: rouge1 is 'high'; a number"),
        ("test_scores.json", '{"examples": "all"}', "test_scores.json: examples is 'all'; a number"),
        ("test_speed.json", '{"articles_per_second": "x"}', "test_speed.json: articles_per_second is 'x'; a number"),
        ("test_scores.json", '{"intervals": {"rouge1": [1]}}', r"the interval of rouge1 is \[1\]"),
        ("test_scores.json", '{"examples": 7}', "test_articles.jsonl: has 120 articles; test_scores.json is of 7"),
        ("test_speed.json", '{"latency_histogram": {"edges_ms": [1], "counts": [1]}}', "needs edges_ms, one more"),
        ("test_speed.json", '{"latency_ms": [1]}', r"latency_ms is \[1\]"),
        ("test_articles.jsonl", '{"source": "a"}\n', "test_articles.jsonl, line 1: reference is None"),
        ("test_articles.jsonl", "{\n", "test_articles.jsonl, line 1: damaged"),
        ("test_articles.jsonl", "3\n", "test_articles.jsonl, line 1: a JSON object"),
        (
            *("test_articles.jsonl", '{"source": "", "reference": "", "summary": "", "rouge1": "x"}\n'),
            "line 1: rouge1 is 'x'; a number",
        ),
    ],
)
def test_a_damaged_file_is_named_in_one_line(run: Path, name: str, content: str | bytes, message: str) -> None:
    (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as error:
        build_report([run])
    assert "\n" not in str(error.value)


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no metrics.csv"):
        build_report([tmp_path])
    with pytest.raises(InputError, match="no such directory"):
        build_report([tmp_path / "none"])
