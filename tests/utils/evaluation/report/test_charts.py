from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scored_run import write_run
from utils.app.charts import Series
from utils.evaluation.report.charts import curve, latency_charts, training_charts
from utils.evaluation.report.runs import read_run


def test_curves_of_a_run(run: Path) -> None:
    loss, rate, validation, throughput = training_charts([read_run(run)])
    # Steps done, not Lightning's count from 0; a loss that is not a number leaves a gap.
    assert loss.series == [
        Series("training", [10, 20, 40], [3.5, 2.25, 1.125]),
        Series("validation", [20, 40], [2.5, 2.125]),
    ]
    assert [series.name for series in validation.series] == ["ROUGE-1", "ROUGE-2", "ROUGE-Lsum"]
    assert (rate.from_zero, throughput.series[0].y) == (True, [30000, 31000, 32000, 29000])
    assert curve(read_run(run), "val_bleu", "BLEU") == []


def test_curves_of_several_runs_stand_in_one_chart_for_each_quantity(run: Path) -> None:
    other = run.with_name("other")
    other.mkdir()
    (other / "metrics.csv").write_text("step,train_loss,val_accuracy\n9,1.5,\n19,,0.75\n")
    charts = {chart.name: chart for chart in training_charts([read_run(run), read_run(other)])}
    assert [series.name for series in charts["loss_train_loss"].series] == ["run", "other"]
    assert charts["loss_train_loss"].title == "Loss: training"
    assert charts["validation_val_accuracy"].title == "Validation: accuracy, other"
    assert charts["validation_val_accuracy"].series == [Series("other", [20], [0.75])]
    assert [series.name for series in charts["throughput"].series] == ["run"]


@pytest.mark.parametrize(("beams", "title"), [(0, "Validation, teacher-forced"), (4, "Validation")])
def test_scores_under_teacher_forcing_are_called_so(run: Path, beams: int, title: str) -> None:
    (run / "arguments.yaml").write_text(f"eval_beams: {beams}\n")
    assert title in [chart.title for chart in training_charts([read_run(run)])]


def test_a_score_that_says_itself_that_it_is_forced(run: Path) -> None:
    (run / "metrics.csv").write_text("step,val_rouge1_forced,val_new_figure\n9,30.5,2\n")
    [chart] = training_charts([read_run(run)])
    assert [series.name for series in chart.series] == ["ROUGE-1", "new figure"]


def test_latencies(run: Path) -> None:
    [chart] = latency_charts([read_run(run)], "test", "article")
    assert (len(chart.series[0].x), chart.series[0].y) == (5, [10, 70, 30, 10])
    assert chart.marks == [("p50", 75.0), ("p90", 120.0), ("p99", 170.0)]
    write_run(run.with_name("other"), articles=3)
    [chart] = latency_charts([read_run(run), read_run(run.with_name("other"))], "test", "article")
    assert chart.series[1].y == pytest.approx([0, 100 / 12, 800 / 12, 1100 / 12, 100])
    # All articles may have been decoded to warm up.
    nothing = {"latency_ms": {"mean": None, "p50": None}, "latency_histogram": {"edges_ms": [], "counts": []}}
    (run / "test_speed.json").write_text(json.dumps(nothing))
    assert latency_charts([read_run(run)], "test", "article") == []
