from __future__ import annotations

import re
import warnings
import xml.etree.ElementTree as ET

import pytest

from utils.evaluation.report.charts import COLOURS, Chart, Series, draw, histograms

SVG = "{http://www.w3.org/2000/svg}"
CATCH = warnings.catch_warnings


def lines(*ends: tuple[int, float], name: str = "loss") -> Chart:
    """Lines of 100 points from (end / 100, top) down to (end, top / 2)."""
    series = [
        Series(str(i), [end * n / 100 for n in range(1, 101)], [top * (1 - n / 200) for n in range(1, 101)])
        for i, (end, top) in enumerate(ends)
    ]
    return Chart(name, "Title", "step", "nats", series)


def spans(svg: str, colour: str) -> tuple[float, float]:
    """How much of the picture's width and height a line takes."""
    [path] = [
        element.get("d", "")
        for element in ET.fromstring(svg).iter(f"{SVG}path")
        if "clip-path" in element.attrib and f"stroke: {colour}" in element.get("style", "")
    ]
    points = [tuple(map(float, point)) for point in re.findall(r"[ML] (\S+) (\S+)", path)]
    *_, width, height = map(float, ET.fromstring(svg).get("viewBox", "").split())
    x, y = zip(*points, strict=True)
    return (max(x) - min(x)) / width, (max(y) - min(y)) / height


@pytest.mark.parametrize("several", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("kind", ["lines", "histogram"])
def test_charts_are_drawn_as_svg(kind: str, several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # That of Python 3.10 takes nothing else.
    monkeypatch.setattr(warnings, "catch_warnings", lambda *, record=False, module=None: CATCH(record=record))
    names = ("one", "two") if several else ("one",)
    series = [Series(name, [1, 2, 3][: 3 if kind == "histogram" else 2], [4, 5]) for name in names]
    chart = Chart("name", "Title", "x", "y", series, True)
    svg = draw(chart)
    texts = [element.text for element in ET.fromstring(svg).iter(f"{SVG}text")]
    assert {"Title", "x", "y"} <= set(texts)
    assert [name for name in ("one", "two") if name in texts] == (["one", "two"] if several else [])


def test_pictures_are_the_same_bytes_each_time_and_share_no_ids_with_others() -> None:
    first, again, other = (draw(lines((100, 2.0), (90, 3.0), name=name)) for name in ("loss", "loss", "rouge"))
    assert first == again
    ids, others = (re.findall(r'\bid="(.*?)"', svg) for svg in (first, other))
    assert ids and not {*ids} & {*others} and len({*ids}) == len(ids)
    assert {*re.findall(r"#(\w+)\)|href=\"#(\w+)\"", first)} <= {(name, "") for name in ids} | {
        ("", name) for name in ids
    }
    assert "<style" not in first  # it would hold for the page


def test_lines_of_very_different_height_are_all_readable() -> None:
    svg = draw(lines((100, 3.0), (10_000, 0.03)))
    assert min(spans(svg, colour)[1] for colour in COLOURS[:2]) > 0.05
    assert ">10,000<" in svg  # a number that a reader need not decode
    # Lines of like height keep a linear axis.
    assert 0.15 < spans(draw(lines((100, 3.0), (60, 2.0))), COLOURS[1])[1] < 0.35


def test_names_become_text_whatever_they_hold() -> None:
    names = ["</text><script>", "$x^2$", "_hidden"]
    svg = draw(Chart("x", "T", "x", "y", [Series(name, [1, 2], [1, 2]) for name in names]))
    texts = [element.text for element in ET.fromstring(svg).iter(f"{SVG}text")]
    assert texts[-3:] == names


def test_a_line_at_zero_is_drawn() -> None:
    flat = Chart("x", "T", "x", "y", [Series("a", [1, 2], [0, 0]), Series("b", [1], [5])], from_zero=True)
    ET.fromstring(draw(flat))


def test_histograms_share_edges_and_count_everything() -> None:
    first, second = histograms({"a": [1, 2, 2, 500], "b": [7]})
    assert first.x == second.x and len(first.x) == len(first.y) + 1
    assert sum(first.y) == 4 and sum(second.y) == 1
    [single] = histograms({"a": [3, 3]})
    assert (single.x, single.y) == ([3, 4], [2])
