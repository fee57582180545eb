"""TRL's trainer with a served teacher and a budget: what reaches the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed; `make trainers` installs it")
pytest.importorskip("requests", reason="TRL's client needs requests; `make trainers` installs it")

import torch
from trl_fixtures import MICRO, ROWS, CompletionsServer, Watched, asking_a_server, tiny

from bas_opd.budget import query_budget
from bas_opd.errors import ConfigError
from bas_opd.select import EntropySelector


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompletionsServer]:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    # The client talks HTTP and needs no vLLM here to score.
    monkeypatch.setattr("trl.generation.vllm_client.is_vllm_available", lambda: True)
    with CompletionsServer().running() as server:
        yield server


def test_only_selected_rows_are_sent(tmp_path: Path, server: CompletionsServer) -> None:
    trainer = asking_a_server(tmp_path, server.url)
    seen = Watched(trainer)
    trainer.train()
    pairs = zip(seen.sampled, seen.selected, strict=True)
    expected = [list(sampled[row]) for sampled, rows in pairs for row in rows]
    assert server.prompts == expected
    assert len(expected) == 3 * query_budget("0.5", ROWS) == trainer.ledger.calls
    assert trainer.ledger.learned_steps == 3
    assert trainer.ledger.dropped_labels == 0


def test_utility_is_that_of_the_tokens_which_the_server_knows(
    tmp_path: Path, server: CompletionsServer
) -> None:
    from bas_opd.distill.divergence import student_topk
    from bas_opd.distill.utility import token_utility
    from bas_opd.teacher.server_teacher import TopLogprobs

    trainer = asking_a_server(tmp_path, server.url, max_steps=1, learning_rate=0.0)
    seen = Watched(trainer)
    trainer.train()
    record = trainer.gate.record
    for row, utility in zip(record.selected, record.utility, strict=True):
        ids, start = torch.tensor([seen.sampled[0][row]]), record.prompt_tokens[row]
        student, teacher = (
            model(input_ids=ids).logits[0, start - 1 : -1].detach() for model in (tiny(0), tiny(1))
        )
        top = teacher.log_softmax(-1).topk(8)
        known = TopLogprobs(ids=top.indices, known=top.values, likeliest=top.indices)
        u = token_utility(student, known, student_topk(student, 8), support=top.indices).mean()
        assert utility == pytest.approx(float(u), rel=1e-3)


def test_the_loss_is_the_token_mean_of_the_step(tmp_path: Path, server: CompletionsServer) -> None:
    def loss(micro: int) -> float:
        changes: dict[str, Any] = {
            "per_device_train_batch_size": micro,
            "gradient_accumulation_steps": 12 // micro,
        }
        trainer = asking_a_server(
            tmp_path, server.url, selector=EntropySelector(), max_steps=1, **changes
        )
        sample = trainer._generate_and_score_completions

        def shortened(inputs: Any) -> Any:
            batch = sample(inputs)
            keep = torch.arange(6) <= torch.arange(ROWS)[:, None] % 6
            return {**batch, "completion_mask": batch["completion_mask"] * keep}

        trainer._generate_and_score_completions = shortened
        trainer.train()
        return trainer.gate.record.loss

    assert loss(MICRO) == pytest.approx(loss(ROWS), rel=1e-5)


def test_a_selector_that_learns_needs_more_than_one_token(
    tmp_path: Path, server: CompletionsServer
) -> None:
    with pytest.raises(ConfigError, match="loss_top_k to 2 or more"):
        asking_a_server(tmp_path, server.url, beta=1.0, loss_top_k=1)
    trainer = asking_a_server(
        tmp_path, server.url, selector=EntropySelector(), beta=1.0, loss_top_k=1
    )
    trainer.train()
    assert len(server.prompts) == 3 * query_budget("0.5", ROWS)


@pytest.mark.parametrize(("status", "words"), [(503, "Request failed: 503"), (0, "aborted")])
def test_a_request_that_fails_ends_the_training_and_is_sent_once(
    status: int, words: str, tmp_path: Path, server: CompletionsServer
) -> None:
    server.failures, server.status = 1, status
    trainer = asking_a_server(tmp_path, server.url, max_steps=1)
    with pytest.raises(Exception, match=words):
        trainer.train()
    trainer.gate.abandon()
    assert len(server.prompts) == MICRO == trainer.ledger.calls


def test_a_request_that_trl_may_repeat_is_computed_twice_and_counted_once(
    tmp_path: Path, server: CompletionsServer
) -> None:
    server.failures = 1
    trainer = asking_a_server(tmp_path, server.url, max_steps=1, repeat_requests=True)
    trainer.train()
    assert trainer.ledger.calls == query_budget("0.5", ROWS)
    assert len(server.prompts) == trainer.ledger.calls + MICRO
