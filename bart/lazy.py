"""Public names of a package, each of which is loaded where it is first used: `import bart` loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def public_names(
    package: str, names: Sequence[str], *modules: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package; its modules are tried for a name in the order given."""

    def load(name: str) -> Any:
        for module in modules if name in names else ():
            if hasattr(loaded := import_module(f"{package}.{module}"), name):
                return getattr(loaded, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load, lambda: sorted(names)
