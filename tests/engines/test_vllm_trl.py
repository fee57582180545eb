"""TRL's trainer with a budget, and a real vLLM server as the teacher."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TRL names the versions of vLLM that it was tested with.
    pytest.importorskip("trl.trainer.distillation_trainer", reason="needs TRL; see `make engines`")

from trl_fixtures import ROWS, CompletionsServer, Watched, asking_a_server, tiny, tokenizer
from vllm_server import serving

from bas_opd.budget import query_budget


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("teacher")
    tiny(1).save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    with serving(folder / "model", folder / "log") as address:
        yield address.removesuffix("/v1")


def test_what_it_teaches_is_what_the_same_model_here_does(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in holds the same weights; the rows that are asked about are the same, too."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    trainer = asking_a_server(tmp_path / "vllm", url)
    seen = Watched(trainer)
    trainer.train()
    with CompletionsServer().running() as server:
        beside = asking_a_server(tmp_path / "stand-in", server.url)
        theirs = Watched(beside)
        beside.train()
    assert seen.selected == theirs.selected
    assert seen.sampled == theirs.sampled
    assert trainer.ledger.calls == 3 * query_budget("0.5", ROWS)
    assert trainer.ledger.learned_steps == 3
    one, two = trainer.gate.record, beside.gate.record
    assert one.loss == pytest.approx(two.loss, rel=1e-4)
    assert one.utility == pytest.approx(two.utility, rel=1e-3)
