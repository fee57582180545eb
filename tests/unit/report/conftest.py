"""Pictures that the runs of these tests were trained on."""

from __future__ import annotations

import pytest
from shapes import make_pictures

from bas_opd.data.records import PreparedSet


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> PreparedSet:
    return make_pictures(tmp_path_factory.mktemp("pictures") / "set", n=24, seed=3)
