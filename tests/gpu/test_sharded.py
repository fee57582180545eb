"""One process that treats its parameters like several, on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from run_fixtures import OFTEN, Silent, tiny
from shapes import make_pictures

from bas_opd.run import loop
from bas_opd.run.record_file import read_records

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("reshard", ["false", "true"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_sharded_run_takes_the_steps_of_one_that_is_not(
    precision: str, reshard: str, small_qwen35: Path, tmp_path: Path
) -> None:
    data = make_pictures(tmp_path / "data", n=16, seed=1).folder
    settings = (*OFTEN, "model.device=cuda", f"model.precision={precision}")
    found = []
    ways = ("shard.always=true", f"shard.reshard={reshard}")
    for name, own in (("whole", ()), ("sharded", ways)):
        run = loop.train(tiny(small_qwen35, data, tmp_path / name, *settings, *own), Silent())
        records = read_records(run.directory / "records.jsonl")
        found.append([each for each in records if each["event"] == "step"])
    # In half precision a token may differ, and all that follows with it.
    count, tolerance = (4, 1e-3) if precision == "float32" else (1, 5e-2)
    for whole, sharded in list(zip(*found, strict=True))[:count]:
        assert sharded["loss"] == pytest.approx(whole["loss"], rel=tolerance)
        assert sharded["gradient_norm"] == pytest.approx(whole["gradient_norm"], rel=tolerance)
