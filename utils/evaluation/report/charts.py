"""Charts of a run's training, as SVG."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping
from itertools import cycle

from utils.evaluation.report.runs import ReportedRun
from utils.metrics.files import label_of

# Colours of curves, in order, and those on dark paper: each has a contrast of 3 to 1. Dashes tell curves apart as well.
COLOURS = {"#0b6699": "#6fb8e8", "#b34a00": "#f0945a", "#00735a": "#4fc7a4", "#9a3f7d": "#dd93c4"}
COLOURS |= {"#5a55b0": "#a9a5f0", "#7a6200": "#d6bd55"}
DASHES = ("solid", "dashed", "dashdot", "dotted")
INK, GRID = "#5d5a54", "#ebe8e2"  # colours of text and axes, and of the lines behind the curves
# What the page has in place of these colours; its style has the variables.
ON_PAGE = {light: f"light-dark({light}, {dark})" for light, dark in COLOURS.items()}
ON_PAGE |= {INK: "var(--soft)", GRID: "var(--hair)"}
_LOOK = {
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "legend.frameon": False,
} | dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)


def draw(name: str, title: str, unit: str, curves: Mapping[str, Mapping[int, float]], from_zero: bool = False) -> str:
    """Draw curves, values by step, as an SVG element; its ids are salted with the name, so that charts share none."""
    # Imported here, since loading matplotlib takes a second and most commands draw nothing.
    import matplotlib
    from matplotlib.figure import Figure

    # Browsers find glyphs that the font lacks.
    with matplotlib.rc_context(_LOOK | {"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure = Figure(figsize=(5.4, 3.2), layout="constrained")
        axes = figure.subplots()
        axes.set(title=title, xlabel="step", ylabel=unit)
        for curve, colour, line in zip(curves.values(), cycle(COLOURS), cycle(DASHES), strict=False):
            marker = "." if len(curve) <= 12 else None
            axes.plot([*curve], [*curve.values()], color=colour, linestyle=line, marker=marker)
        if from_zero:
            axes.set_ylim(bottom=0)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,g}")
        if len(curves) > 1:
            figure.legend(axes.lines, [*curves], loc="outside lower left", ncols=3)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    # The declaration, the style and the names of groups would be those of the whole page.
    svg = file.getvalue()
    for colour, on_page in ON_PAGE.items():
        svg = svg.replace(colour, on_page)
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'<g id="[\w.]*">', "<g>", svg)


def training_charts(run: ReportedRun) -> dict[str, str]:
    """Drawn curves of training over the optimizer steps, related ones in one chart, by the charts' names."""
    # Without search, validation scores the arg-max under teacher forcing, far above what the model generates.
    is_forced = run.arguments.get("eval_beams") == 0
    names = [name for name in run.metrics if name.startswith("val_")]
    scores = [name for name in names if name not in ("val_loss", "val_perplexity")]  # these have charts of their own
    validation = {name: label_of(name.removeprefix("val_").removesuffix("_forced")) for name in scores}
    charts = {}
    for name, title, unit, from_zero, columns in (
        ("loss", "Loss", run.loss_unit, False, {"train_loss": "training", "val_loss": "validation"}),
        ("learning_rate", "Learning rate", "learning rate", True, {"lr": ""}),
        ("validation", "Validation, teacher-forced" if is_forced else "Validation", "score", False, validation),
        ("perplexity", "Validation perplexity", "perplexity", False, {"val_perplexity": ""}),
        ("gradient", "Gradient norm", "before clipping", True, {"grad_norm": ""}),
        ("mfu", "Model FLOP utilisation", "share of the GPUs' peak", True, {"mfu": ""}),
        ("throughput", "Training throughput", "tokens per second", True, {"tokens_per_second": ""}),
    ):
        curves = {label: run.metrics[column] for column, label in columns.items() if run.metrics.get(column)}
        if curves:
            charts[name] = draw(name, title, unit, curves, from_zero)
    return charts
