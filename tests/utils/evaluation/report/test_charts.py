from __future__ import annotations

from pathlib import Path

import pytest

from utils.evaluation.report.charts import MOST_POINTS, Chart, Series, curve, draw, histograms, thinned, training_charts
from utils.evaluation.report.runs import read_run

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", ["lines", "histogram"])
def test_charts_are_drawn_as_png(tmp_path: Path, kind: str, several: bool) -> None:
    names = ("one", "two") if several else ("one",)
    series = [Series(name, [1, 2, 3][: 3 if kind == "histogram" else 2], [4, 5]) for name in names]
    draw(tmp_path / "name.png", Chart("name", "Title", "x", "y", series, kind, True, [("p50", 1.5)]))
    [picture] = tmp_path.iterdir()
    assert picture.read_bytes().startswith(PNG)


def test_thinning_keeps_ends_and_extremes() -> None:
    x, y = list(range(50_000)), [0.0] * 50_000
    y[12_345], y[40_001] = 9.0, -9.0
    thin_x, thin_y = thinned(x, y)
    assert len(thin_x) <= MOST_POINTS
    assert thin_x == sorted(thin_x) and (thin_x[0], thin_x[-1]) == (0, 49_999)
    assert {(12_345, 9.0), (40_001, -9.0)} <= set(zip(thin_x, thin_y, strict=True))


def test_histograms_share_edges_and_count_everything() -> None:
    first, second = histograms({"a": [1, 2, 2, 500], "b": [7]})
    assert first.x == second.x and len(first.x) == len(first.y) + 1
    assert sum(first.y) == 4 and sum(second.y) == 1
    [single] = histograms({"a": [3, 3]})
    assert (single.x, single.y) == ([3, 4], [2])


def test_a_column_without_values_is_no_curve(run: Path) -> None:
    assert curve(read_run(run), "val_bleu", "BLEU") == []


@pytest.mark.parametrize(("beams", "title"), [(0, "Validation ROUGE, teacher-forced"), (4, "Validation ROUGE")])
def test_rouge_under_teacher_forcing_is_called_so(run: Path, beams: int, title: str) -> None:
    (run / "arguments.yaml").write_text(f"eval_beams: {beams}\n")
    assert title in [chart.title for chart in training_charts([read_run(run)])]
