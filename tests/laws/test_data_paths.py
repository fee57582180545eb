from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from bas_opd.data.records import confined
from bas_opd.errors import DataError

PARTS = st.sampled_from(
    ["..", ".", "", "inside", "a.png", "secret.png", "up", "~", "etc", "passwd"]
)


@settings(deadline=None)
@given(
    names=st.lists(st.lists(PARTS, max_size=6), min_size=1, max_size=3),
    absolute=st.booleans(),
    admitted=st.booleans(),
)
def test_no_name_reaches_a_file_outside_the_folder(
    names: list[list[str]], absolute: bool, admitted: bool
) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place).resolve() / "root"
        (root / "inside").mkdir(parents=True)
        (root / "inside" / "a.png").touch()
        (root.parent / "secret.png").touch()
        (root / "up").symlink_to(root.parent)
        folders: dict[str, str] = {}
        for parts in names:
            name = ("/" if absolute else "") + "/".join(parts)
            try:
                found = confined(root, name, absolute_inside=admitted, folders=folders)
            except DataError:
                continue
            assert found.is_relative_to(root)
            assert found.is_file()
