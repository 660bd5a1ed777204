from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from utils.evaluation.report.charts import draw

SVG = "{http://www.w3.org/2000/svg}"


def test_charts_are_drawn_as_svg() -> None:
    svg = draw("name", "Title", "unit", {name: {1: 4, 2: 5} for name in ("one", "two")}, True)
    assert {"Title", "step", "unit", "one", "two"} <= {
        element.text for element in ET.fromstring(svg).iter(f"{SVG}text")
    }


def test_pictures_are_the_same_bytes_each_time_and_share_no_ids_with_others() -> None:
    curves = {"train": {step: float(step) for step in range(1, 101)}}
    first, again, other = (draw(name, "T", "unit", curves) for name in ("loss", "loss", "rouge"))
    assert first == again
    ids, others = (re.findall(r'\bid="(.*?)"', svg) for svg in (first, other))
    assert ids and not {*ids} & {*others} and len({*ids}) == len(ids)
    assert {*re.findall(r"url\(#(\w+)\)|href=\"#(\w+)\"", first)} <= {(name, "") for name in ids} | {
        ("", name) for name in ids
    }
    assert "<style" not in first  # it would hold for the page


def test_names_become_text_whatever_they_hold() -> None:
    names = ["</text><script>", "$x^2$", "_hidden"]
    svg = draw("x", "T", "unit", {name: {1: 1, 2: 2} for name in names})
    texts = [element.text for element in ET.fromstring(svg).iter(f"{SVG}text")]
    assert texts[-3:] == names
