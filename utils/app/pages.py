"""HTML pages: templates in which whatever is filled in is escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template


@cache
def page_template(path: Path) -> Template:
    """The template of a page; it may include the files beside it."""
    templates = Environment(
        loader=FileSystemLoader(path.parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    templates.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    return templates.get_template(path.name)
