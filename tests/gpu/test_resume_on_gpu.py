"""Stopping and going on with the state on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from run_fixtures import OFTEN, Silent, stop_at, tiny
from shapes import make_pictures

from bas_opd.errors import PreemptionError
from bas_opd.run import loop
from bas_opd.run.checkpoint import published, read_checkpoint
from bas_opd.run.record_file import read_records

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_on_a_gpu_resumes_where_it_stopped(
    precision: str, small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers to what a GPU's unordered sums allow, and a teacher kept in fp32."""
    data = make_pictures(tmp_path / "data", n=16, seed=1).folder
    settings = (*OFTEN, "model.device=cuda", f"model.precision={precision}")
    whole = tiny(small_qwen35, data, tmp_path / "whole", *settings)
    stopped = tiny(small_qwen35, data, tmp_path / "stopped", *settings)
    loop.train(whole, Silent())
    with monkeypatch.context() as patch:
        stop_at(patch, 12)
        with pytest.raises(PreemptionError):
            loop.train(stopped, Silent())
    loop.train(stopped, Silent())
    losses = [
        [e["loss"] for e in read_records(path / "records.jsonl") if e["event"] == "step"]
        for path in (tmp_path / "whole", tmp_path / "stopped")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    end = read_checkpoint(published(tmp_path / "stopped" / "checkpoints")[0])
    assert end.step == 4
    assert {tensor.dtype for tensor in end.tensors["teacher"].values()} == {torch.float32}
    assert set(end.tensors["optimiser"])
