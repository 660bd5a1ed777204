"""Numbers and texts as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, such as 1:23 or 12:01:23."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rate(value: float, unit: str) -> str:
    """A number of units a second, such as `27,570 tokens/s`."""
    return f"{value:,.0f} {unit}/s" if value >= 100 else f"{value:.3g} {unit}/s"


def format_metric(name: str, value: float | str) -> str:
    """A metric with its unit, which follows from the name that the metric has in the run's files."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    if name.endswith("_per_second"):
        return rate(value, name.removesuffix("_per_second").replace("_", " "))
    if name.endswith("_seconds"):
        return duration(value)
    if name.startswith("step_time"):
        return f"{1000 * value:,.0f} ms"
    if name.endswith("_gb"):
        return f"{value:.2f} GB"
    if name == "lr":
        return f"{value:.2e}"
    return f"{value:,.4f}" if "loss" in name or 0 < abs(value) < 1 else f"{value:,.2f}"


def metric_label(name: str) -> str:
    """The name of a metric in a table that shows its unit too: `token rate` for tokens_per_second."""
    name = name.removesuffix("_gb").replace("s_per_second", "_rate").replace("_seconds", "_time")
    return name.replace("_", " ")
