from __future__ import annotations

import pytest

from utils.app.formatting import duration, format_metric, metric_label, rate


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (83, "1:23"), (43283.4, "12:01:23")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("steps", 20000, "20,000"),
        ("best_checkpoint", "_epoch2_step18.ckpt", "_epoch2_step18.ckpt"),
        ("tokens_per_second", 27570.4, "27,570 tokens/s"),
        ("articles_per_second", 5.268, "5.27 articles/s"),
        ("wall_seconds", 83.2, "1:23"),
        ("step_time_p50", 0.1284, "128 ms"),
        ("peak_memory_gb", 1.4249, "1.42 GB"),
        ("lr", 0.000125, "1.25e-04"),
        ("train_loss", 12.34567, "12.3457"),
        ("val_rouge2_forced", 16.667, "16.67"),
        ("accuracy", 0.25, "0.2500"),
        ("rouge1", 0.0, "0.00"),
        ("grad_norm", 12345.678, "12,345.68"),
        ("train_loss", float("nan"), "nan"),
    ],
)
def test_metrics(name: str, value: float | str, text: str) -> None:
    assert format_metric(name, value) == text


def test_rates_and_labels() -> None:
    assert rate(0.0123, "articles") == "0.0123 articles/s"
    names = ("tokens_per_second", "wall_seconds", "peak_memory_gb", "val_rouge2_forced")
    assert [metric_label(name) for name in names] == ["token rate", "wall time", "peak memory", "val rouge2 forced"]
