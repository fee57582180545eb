"""The methods of Table 2 through the loop: trained, recorded, stopped, resumed and checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from baseline_fixtures import PRESETS, reward, reward_even_tokens, short_config
from run_fixtures import Silent, events_of, stop_at
from run_states import assert_same_end, final_state
from shapes import rewritten

from bas_opd.audit.subject import Request, Subject
from bas_opd.config import Config
from bas_opd.errors import DataError, PreemptionError
from bas_opd.report.pages.writing import write_report
from bas_opd.rollout import Sampler
from bas_opd.run import loop
from bas_opd.run.checkpoint import published, read_checkpoint
from bas_opd.run.history import read_history
from bas_opd.run.record import GenerationRecord, PolicyRecord, QueryRecord
from bas_opd.run.verify import verify
from bas_opd.types import PromptBatch, Rollouts

Make = Callable[..., Config]
STRONG = ("optim.learning_rate=1e-2", "rollout.per_prompt=8", "rollout.max_response_tokens=2")
"""Settings under which a few steps show."""


@pytest.fixture
def config(small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    reward_even_tokens(monkeypatch)
    return lambda name, output, *overrides: short_config(
        name, tmp_path, small_qwen35, output, *overrides
    )


def train(config: Config) -> Path:
    return loop.train(config, Silent()).directory


def steps_of(run: Path) -> list[Any]:
    return read_history(run).steps


def tensors_at(run: Path, step: int) -> dict[str, torch.Tensor]:
    snapshot = read_checkpoint(run / "checkpoints" / f"step-{step:08d}")
    return {
        f"{part}/{name}": value
        for part, values in snapshot.tensors.items()
        for name, value in values.items()
    }


@pytest.mark.parametrize("name", PRESETS)
def test_a_baseline_stopped_anywhere_ends_in_the_same_state(
    name: str, config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(config(name, "whole"))
    for poll in (3, 9, 14):
        with monkeypatch.context() as patch:
            stop_at(patch, poll)
            with pytest.raises(PreemptionError):
                train(config(name, f"stopped-{poll}"))
        assert_same_end(train(config(name, f"stopped-{poll}")), whole)


@pytest.mark.parametrize("name", PRESETS)
def test_micro_batches_change_nothing(name: str, config: Make) -> None:
    # Plain rounding differs by 1e-7 of a weight; Adam divides it by tiny moments.
    size = ("optim.tokens_per_micro_batch=1", "distill.tokens_per_chunk=3")
    whole = train(config(name, "whole", "run.steps=1"))
    cut = train(config(name, "cut", "run.steps=1", *size))
    (a,), (b,) = steps_of(whole), steps_of(cut)
    assert b.loss == pytest.approx(a.loss, rel=1e-4, abs=1e-7)
    assert b.gradient_norm == pytest.approx(a.gradient_norm, rel=1e-4, abs=1e-7)
    assert a.response_tokens == b.response_tokens


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sft", GenerationRecord),
        ("grpo", PolicyRecord),
        ("dapo", PolicyRecord),
        ("opsd", QueryRecord),
    ],
)
def test_the_records_have_the_fields_of_their_method(name: str, kind: Any, config: Make) -> None:
    run = train(config(name, "run"))
    assert all(type(step) is kind for step in steps_of(run))
    assert read_history(run).config().method.name == name


def test_grpo_moves_the_policy_towards_what_is_rewarded(config: Make) -> None:
    run = train(config("grpo", "run", "run.steps=16", *STRONG))
    rewards = [fmean(step.rewards) for step in steps_of(run)]
    assert fmean(rewards[-4:]) > fmean(rewards[:4]) + 0.15


def test_dapo_moves_the_policy_towards_what_is_rewarded(config: Make) -> None:
    run = train(config("dapo", "run", "run.steps=8", *STRONG))
    right = [step.right / len(step.grades) for step in steps_of(run)]
    assert fmean(right[-3:]) > fmean(right[:3]) + 0.15


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (
            "sft-unfiltered",
            ("rollout.temperature=0.1", "optim.learning_rate=3e-3"),
        ),  # a random model says anything at 1
        ("opsd-frozen", ("optim.learning_rate=1e-4",)),
    ],
)
def test_the_loss_of_a_supervised_baseline_falls(
    name: str, settings: tuple[str, ...], config: Make
) -> None:
    run = train(config(name, "run", "run.steps=10", "rollout.prompts_per_step=16", *settings))
    losses = [step.loss for step in steps_of(run)]
    assert fmean(losses[-3:]) < 0.9 * fmean(losses[:3])


@pytest.mark.parametrize("grade", ["right", "wrong", "unread"])
def test_with_constant_rewards_and_no_kl_a_step_changes_nothing(
    grade: Any, config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward(monkeypatch, grade)
    for name, empty in (("grpo-released", 3), ("dapo", 3)):
        run = train(config(name, name, "dapo.overlong_share=0" if name == "dapo" else "run.seed=1"))
        first, last = tensors_at(run, 1), tensors_at(run, 3)
        assert first.keys() == last.keys()
        assert all(torch.equal(first[key], last[key]) for key in first)
        assert not any(key.startswith("optimiser/") for key in last)
        totals = read_history(run).finished
        assert totals is not None
        assert (totals.totals["empty_steps"], totals.totals["skipped_steps"]) == (empty, 0)
        assert totals.totals["updates"] == 0
        (remark,) = verify(run).remarks
        assert "In 3 of 3 steps nothing was learned: the rollouts of each prompt all" in remark
        assert remark in write_report(run, run / "page").sentence


def test_a_run_that_learned_in_most_steps_has_no_such_remark(config: Make) -> None:
    assert verify(train(config("grpo", "kl"))).remarks == ()


def test_dapo_draws_other_prompts_in_place_of_those_that_teach_nothing(config: Make) -> None:
    run = train(config("dapo", "run", "run.steps=4", "rollout.per_prompt=2"))
    steps = steps_of(run)
    assert any(1 < len(step.rounds) < 4 for step in steps)
    taken = 0
    for step in steps:
        right = [grade == "right" for grade in step.grades]
        groups = [right[at : at + 2] for at in range(0, len(right), 2)]
        mixed = [place for place, group in enumerate(groups) if any(group) and not all(group)]
        assert step.kept == mixed[:4]
        assert step.dropped_groups == len(step.examples) - len(step.kept)
        if len(step.rounds) < 4:  # it stopped as soon as there were enough
            assert len(mixed) >= 4
            assert sum(place < sum(step.rounds[:-1]) for place in mixed) < 4
        assert set(step.rows) == {row for place in step.kept for row in (2 * place, 2 * place + 1)}
        taken += len(step.rounds)
        state = read_checkpoint(run / "checkpoints" / f"step-{step.step + 1:08d}")
        assert state.data["cursor"] == taken


def test_dapo_drops_prompts_by_correctness_and_not_by_the_shaped_reward(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are right, and responses near the longest are penalised: rewards differ."""
    reward(monkeypatch, "right")
    settings = ("dapo.overlong_share=1", "rollout.max_response_tokens=40", "run.steps=1")
    (step,) = steps_of(train(config("dapo", "run", *settings)))
    groups = [step.rewards[at : at + 4] for at in range(0, len(step.rewards), 4)]
    assert any(len(set(group)) > 1 for group in groups), "No group has responses of two lengths."
    assert step.kept == []
    assert len(step.rounds) == 4


def test_rounds_of_one_step_draw_different_noise(config: Make, monkeypatch: Any) -> None:
    # With as many prompts as the set has, every round asks the same questions in another order.
    reward(monkeypatch, "wrong")
    settings = ("rollout.prompts_per_step=16", "dapo.rounds=2", "run.steps=1")
    (step,) = steps_of(train(config("dapo", "run", *settings)))
    assert step.rounds == [16, 16]
    first, second = (
        {example: step.response_tokens[4 * place : 4 * place + 4] for place, example in half}
        for half in (
            list(enumerate(step.examples))[:16],
            list(enumerate(step.examples))[16:],
        )
    )
    assert first.keys() == second.keys()
    assert first != second


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_several_updates_use_old_probabilities_of_the_learner(
    config: Make, temperature: float
) -> None:
    drawn = f"rollout.temperature={temperature}"
    run = train(config("grpo-released", "run", drawn))
    for step in steps_of(run):
        assert 1 < len([each for each in step.updates if each.rows]) <= 4
        assert step.rescored_tokens > 0
        assert step.logprob_gap == pytest.approx(0, abs=1e-4)
    single = steps_of(train(config("grpo", "single", drawn)))
    assert all(step.rescored_tokens == 0 and len(step.updates) == 1 for step in single)
    assert all(step.logprob_gap == pytest.approx(0, abs=1e-4) for step in single)


def test_kl_clipping_and_entropy_are_on_record_where_a_method_has_them(config: Make) -> None:
    grpo = steps_of(train(config("grpo", "grpo", *STRONG)))
    assert grpo[0].kl == pytest.approx(0, abs=1e-6)  # it starts as the reference
    assert grpo[-1].kl > 1e-4
    assert all(step.clip_share is None for step in grpo)  # one update, whose ratio is 1
    assert all("reference" in step.seconds for step in grpo)
    released = steps_of(train(config("grpo-released", "released", *STRONG)))
    assert all(step.kl is None and "reference" not in step.seconds for step in released)
    assert 0 < max(step.clip_share for step in released) < 1
    assert all(step.entropy > 0 for step in (*grpo, *released))


@pytest.mark.parametrize("name", ["grpo-released", "dapo", "sft"])
def test_texts_are_on_record_though_nothing_was_learned(
    name: str, config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward(monkeypatch, "wrong")
    (step,) = steps_of(train(config(name, "run", "run.steps=1")))
    assert step.is_empty
    assert [shown.row for shown in step.shown] == [0, 1, 2, 3]


def test_texts_that_moved_the_policy_are_shown_first(config: Make) -> None:
    for step in steps_of(train(config("grpo", "run", *STRONG))):
        moved = [row for row in step.rows if step.advantages[row]]
        assert [shown.row for shown in step.shown][: len(moved)] == moved[: len(step.shown)]


def test_a_request_to_stop_waits_for_the_last_update_of_a_step(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(config("grpo-released", "whole"))
    polls: list[bool] = []

    class Watching:
        def __init__(self, poll: Any) -> None:
            self.waits, self.poll = False, poll

        def __call__(self) -> None:
            polls.append(self.waits)
            if self.waits:
                return
            self.poll()
            if polls.count(True):  # the first poll after updates began, which is of the next step
                raise PreemptionError("SIGTERM")

    from bas_opd.run import state

    with monkeypatch.context() as patch:
        patch.setattr(state, "PatientPoll", Watching)
        with pytest.raises(PreemptionError):
            train(config("grpo-released", "stopped"))
    assert True in polls
    newest, *_ = published(whole.parent / "stopped" / "checkpoints")
    assert newest.name == "step-00000001"
    assert_same_end(train(config("grpo-released", "stopped")), whole)


def test_an_error_after_the_first_update_leaves_no_half_step_on_disk(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bas_opd.errors import ModelError
    from bas_opd.learn import Learner

    whole = train(config("grpo-released", "whole"))
    update, calls = Learner.update, 0

    def failing(learner: Learner, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 7:  # the third of the second step
            raise ModelError("It broke.")
        return update(learner, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", failing)
        with pytest.raises(ModelError):
            train(config("grpo-released", "failed"))
    newest, *_ = published(whole.parent / "failed" / "checkpoints")
    assert newest.name == "step-00000001"
    assert_same_end(train(config("grpo-released", "failed")), whole)


def test_unread_responses_earn_nothing_and_are_counted(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_even_tokens(monkeypatch, unread=4)
    run = train(config("grpo", "run"))
    for step in steps_of(run):
        assert [r for r, g in zip(step.rewards, step.grades, strict=True) if g == "unread"] == [
            0.0
        ] * 4
    finished = read_history(run).finished
    assert finished is not None
    assert (finished.totals["deferred"], finished.totals["rewards"]) == (12, 48)
    assert finished.totals["rollouts"] == 48


def test_sft_learns_from_the_initial_model_on_the_crop(config: Make) -> None:
    run = train(config("sft", "run"))
    finished = read_history(run).finished
    assert finished is not None
    assert finished.totals["rollouts"] == 0
    assert finished.totals["generated"] == sum(len(s.response_tokens) for s in steps_of(run)) > 0
    for step in steps_of(run):
        right = [row for row, grade in enumerate(step.grades) if grade == "right"]
        assert step.rows == right
    initial, last = tensors_at(run, 1), tensors_at(run, 3)
    teacher = [key for key in initial if key.startswith("teacher/")]
    assert teacher
    assert all(torch.equal(initial[key], last[key]) for key in teacher)
    student = [key for key in initial if key.startswith("student/")]
    assert any(not torch.equal(initial[key], last[key]) for key in student)


def test_opsd_scores_every_response_with_an_answer_and_opens_no_crop(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bas_opd.data import views

    def refuse(*_: Any) -> Any:
        raise AssertionError("A crop was opened.")

    monkeypatch.setattr(views, "open_crop", refuse)
    for step in steps_of(train(config("opsd", "run"))):
        assert step.scored == step.candidates == list(range(16))
        assert step.budget == step.calls == 16


@pytest.mark.parametrize("name", [*PRESETS, "full"])
def test_every_step_samples_from_weights_that_were_changed_in_place(
    name: str, config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A captured CUDA graph reads weights where they were when it was captured."""
    places: list[dict[str, int]] = []
    weights: list[torch.Tensor] = []
    generate = Sampler.generate

    def noted(self: Sampler, batch: PromptBatch) -> Rollouts:
        live = self.model.trainable()
        places.append({key: weight.data_ptr() for key, weight in live.items()})
        weights.append(torch.cat([weight.detach().flatten() for weight in live.values()]))
        return generate(self, batch)

    monkeypatch.setattr(Sampler, "generate", noted)
    train(config(name, "run"))
    assert len(places) >= 3
    assert all(each == places[0] for each in places)
    # SFT samples from the initial model, the others from what they have become.
    is_initial = name.startswith("sft")
    assert torch.equal(weights[0], weights[-1]) == is_initial


def test_a_run_of_bas_opd_records_nothing_of_other_methods(config: Make) -> None:
    run = train(config("full", "run"))
    assert json.loads((run / "run.json").read_text())["config"]["method"] == {"name": "bas-opd"}
    (step, *_) = [event for event in events_of(run) if event["event"] == "step"]
    assert not {"grades", "rewards", "rounds", "updates"} & step.keys()
    assert final_state(run)["ledger"]["updates"] == 3


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        *((name, {"answer": ""}, "has an answer, which") for name in ("grpo", "dapo", "opsd")),
        ("sft", {"answer": " "}, "or set sft.keep=all"),
        ("sft", {"crop": None}, "has a crop"),
        ("sft-unfiltered", {"crop": None}, "has a crop"),
        ("full", {"crop": None}, "has a crop"),
        ("grpo", {"question": "Which?\nA. red\nB. blue", "answer": "E"}, "No rule can grade"),
    ],
)
def test_data_without_what_a_method_needs_is_refused_before_the_model_is_loaded(
    name: str, fields: dict[str, Any], words: str, config: Make, tmp_path: Path
) -> None:
    config(name, "none")  # makes the data
    data = rewritten(tmp_path / "data", tmp_path / "other", **fields)
    with pytest.raises(DataError, match=words):
        train(config(name, "run", f"data.path={data}", "model.path=nowhere"))


@pytest.mark.parametrize("name", ["grpo", "dapo", "opsd", "opsd-frozen"])
def test_a_method_that_needs_no_crops_trains_without(
    name: str, config: Make, tmp_path: Path
) -> None:
    config(name, "none")
    data = rewritten(tmp_path / "data", tmp_path / "other", crop=None)
    run = train(config(name, "run", f"data.path={data}", "run.steps=1"))
    assert steps_of(run)[0].rollouts >= 16


@pytest.mark.parametrize("name", ["sft", "grpo", "grpo-released", "dapo", "opsd"])
def test_steps_without_an_answer_are_empty_and_the_run_goes_on(
    name: str, config: Make, tmp_path: Path
) -> None:
    config(name, "none")
    data = rewritten(tmp_path / "data", tmp_path / "other", spared=1, answer="")
    run = train(config(name, "run", f"data.path={data}", "run.steps=4"))
    empty = [step.is_empty for step in steps_of(run)]
    assert len(empty) == 4
    assert sum(empty) >= (0 if name == "dapo" else 3)  # DAPO draws until it finds the one
    assert verify(run).is_sound


def test_sft_without_a_filter_needs_no_answers(config: Make, tmp_path: Path) -> None:
    config("sft", "none")
    data = rewritten(tmp_path / "data", tmp_path / "other", answer="")
    run = train(config("sft-unfiltered", "run", f"data.path={data}", "run.steps=1"))
    assert steps_of(run)[0].grades is None


def test_an_audit_of_a_baseline_is_refused(config: Make) -> None:
    run = train(config("grpo", "run", "run.steps=1"))
    with pytest.raises(DataError, match="trained by grpo, which selects no"):
        Subject(Request(run=run, device="cpu"))
