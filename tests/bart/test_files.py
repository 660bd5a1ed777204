from __future__ import annotations

from pathlib import Path

import pytest

from bart.errors import InputError
from bart.files import read_json, replacing


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as temporary:
        temporary.write_text("first")
        assert not path.exists()
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text("second")
        raise ZeroDivisionError
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]


def test_a_device_without_an_end_is_no_json() -> None:
    with pytest.raises(InputError, match="^/dev/zero: a device; allowed: a file$"):
        read_json(Path("/dev/zero"))
