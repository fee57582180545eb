"""The crop teacher: whose weights, which rows, what it follows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from stage_fixtures import crop_teacher, draw, make_examples, make_model

from bas_opd.data.images import open_crop
from bas_opd.data.views import answer_view, crop_size, crop_view
from bas_opd.errors import OutOfMemory
from bas_opd.model.head import Head, plain_head
from bas_opd.model.loading import LoraSettings
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.teacher import SelfTeacher, TeacherMode
from bas_opd.types import Example, View


@pytest.fixture
def model(small_qwen35: Path) -> VisionLanguageModel:
    return make_model(small_qwen35)


def disturb(model: VisionLanguageModel) -> None:
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter += 0.01


@pytest.mark.parametrize("view", [crop_view, answer_view])
def test_it_scores_the_same_tokens_under_its_own_prompt(
    view: View, model: VisionLanguageModel, tmp_path: Path
) -> None:
    rollouts = draw(model, make_examples(tmp_path))
    scores = SelfTeacher(model, view).score(rollouts, (4, 0))
    for row, hidden in scores.hidden.items():
        prompt = model.processor.encode(*view(rollouts.example_of(row)))
        response = rollouts.tokens[row, : int(rollouts.lengths[row])]
        ids = torch.cat([prompt.input_ids, response])[None]
        logits = model.network(
            input_ids=ids,
            pixel_values=prompt.pixel_values,
            image_grid_thw=prompt.grid,
            mm_token_type_ids=model.processor.mm_token_type_ids(ids),
        ).logits[0, prompt.length - 1 : -1]
        torch.testing.assert_close(scores.head.logits(hidden), logits, atol=2e-5, rtol=1e-4)
        assert not hidden.requires_grad


def test_a_crop_is_opened_once_for_its_selected_rows_and_never_for_others(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    rollouts = draw(model, make_examples(tmp_path))
    opened: list[str] = []

    def watched(example: Example) -> tuple[Any, str]:
        opened.append(example.id)
        return crop_view(example)

    scores = SelfTeacher(model, watched).score(rollouts, (0, 1, 2, 7))
    assert sorted(opened) == ["e0", "e2"]
    assert scores.prefilled_prompts == 2


def test_a_limit_that_cuts_a_prompt_apart_shows_in_the_count(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    rollouts = draw(model, make_examples(tmp_path))
    scores = crop_teacher(model, tokens_per_batch=1).score(rollouts, (0, 1, 2, 7))
    assert scores.prefilled_prompts == 4


def test_its_tokens_are_counted_as_scored_and_as_processed(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    rollouts = draw(model, make_examples(tmp_path))
    scores = crop_teacher(model).score(rollouts, (0, 1, 7))
    responses = int(rollouts.lengths[[0, 1, 7]].sum())
    crops = [
        model.processor.encode(open_crop(e), e.question).length
        for e in (rollouts.examples[0], rollouts.examples[2])
    ]
    assert scores.scored_tokens == responses
    # The last token of each of the three responses is predicted, never read.
    assert scores.processed_tokens == responses - 3 + sum(crops)


@pytest.mark.parametrize("family", ["small_qwen35", "small_qwen3vl", "small_qwen25vl"])
def test_what_it_says_a_query_costs_is_what_it_then_counts(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = make_model(request.getfixturevalue(family))
    rollouts = draw(model, make_examples(tmp_path))
    candidates = rollouts.candidates()
    teacher = crop_teacher(model, size=crop_size)
    processed = teacher.costs(rollouts, candidates, "processed_tokens")
    scored = teacher.costs(rollouts, candidates, "scored_tokens")
    assert processed is not None
    assert scored is not None
    for rows in (candidates, (0,), (0, 1), (0, 4), (1, 2, 7), ()):
        scores = teacher.score(rollouts, rows)
        assert processed.of(rows) == scores.processed_tokens
        assert scored.of(rows) == scores.scored_tokens


def test_a_price_depends_on_no_batch_size_and_is_kept_with_every_one(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    rollouts = draw(model, make_examples(tmp_path))
    rows = rollouts.candidates()
    expected = crop_teacher(model, size=crop_size).costs(rollouts, rows, "processed_tokens")
    for limit in (1, 60, 16_384):
        teacher = crop_teacher(model, size=crop_size, tokens_per_batch=limit)
        costs = teacher.costs(rollouts, rows, "processed_tokens")
        assert costs is not None
        assert costs == expected
        for chosen in ((0, 1, 2, 7), rows):
            scores = teacher.score(rollouts, chosen)
            assert scores.processed_tokens == costs.of(chosen)
            assert scores.prefilled_prompts == len({rollouts.prompt_of(row) for row in chosen})


def test_memory_that_runs_out_splits_no_prompt_whose_price_was_said(
    model: VisionLanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = draw(model, make_examples(tmp_path))
    rows = rollouts.candidates()
    teacher = crop_teacher(model, size=crop_size)
    costs = teacher.costs(rollouts, rows, "processed_tokens")
    assert costs is not None
    compute, most = model.response_hidden, 1

    def crowded(prompts: Sequence[Any], *args: Any, **options: Any) -> Any:
        if len(prompts) > most:
            raise torch.OutOfMemoryError("full")
        return compute(prompts, *args, **options)

    monkeypatch.setattr(model, "response_hidden", crowded)
    assert teacher.score(rollouts, rows).processed_tokens == costs.of(rows)
    most = 0
    longest = max(
        costs.openings[prompt] + 3 * int(rollouts.lengths[3 * prompt : 3 * prompt + 3].max())
        for prompt in costs.openings
    )
    with pytest.raises(OutOfMemory, match=f"even in its smallest batch, {longest:,}: full"):
        teacher.score(rollouts, rows)


def test_saying_what_a_query_costs_opens_no_view(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    rollouts = draw(model, make_examples(tmp_path))

    def never(_: Example) -> tuple[Any, str]:
        raise AssertionError("a view was opened")

    teacher = SelfTeacher(model, never, size=crop_size)
    assert teacher.costs(rollouts, rollouts.candidates(), "processed_tokens")


def test_a_teacher_that_does_not_know_the_size_of_its_view_cannot_say_what_a_prompt_costs(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    rollouts = draw(model, make_examples(tmp_path))
    assert crop_teacher(model).costs(rollouts, (0,), "processed_tokens") is None
    assert crop_teacher(model).costs(rollouts, (0,), "scored_tokens") is not None


@pytest.mark.parametrize(("mode", "share"), [("ema", 0.05), ("frozen", 0.0), ("live", 1.0)])
def test_each_mode_follows_the_student_as_it_says(
    model: VisionLanguageModel, tmp_path: Path, mode: TeacherMode, share: float
) -> None:
    rollouts = draw(model, make_examples(tmp_path))
    teacher = crop_teacher(model, mode=mode, tau=0.05)
    start = {n: p.detach().clone() for n, p in model.trainable().items()}
    disturb(model)
    teacher.follow()
    moved = {n: p.detach().clone() for n, p in model.trainable().items()}
    scores = teacher.score(rollouts, (0,))
    with torch.no_grad():
        for name, parameter in model.trainable().items():
            assert torch.equal(parameter, moved[name])
            parameter.copy_(torch.lerp(start[name], moved[name], share))
    expected = crop_teacher(model, mode="live").score(rollouts, (0,))
    torch.testing.assert_close(
        scores.head.logits(scores.hidden[0]) if mode != "live" else scores.hidden[0],
        expected.head.logits(expected.hidden[0]) if mode != "live" else expected.hidden[0],
        atol=2e-5,
        rtol=1e-4,
    )


def test_the_students_weights_come_back_after_a_failure(
    model: VisionLanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = draw(model, make_examples(tmp_path))
    teacher = crop_teacher(model)
    disturb(model)
    before = {n: p.detach().clone() for n, p in model.trainable().items()}

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(model, "response_hidden", fail)
    with pytest.raises(RuntimeError, match="broken"):
        teacher.score(rollouts, (0,))
    assert all(torch.equal(p, before[n]) for n, p in model.trainable().items())


def test_the_average_follows_in_fp32_while_the_student_computes_in_bf16(
    small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(small_qwen35, precision=torch.bfloat16)
    teacher = crop_teacher(model, tau=0.05)
    start = {n: w.clone() for n, w in teacher.weights.state_dict().items()}
    # Steps of 2e-6 vanish in bf16, whose neighbours are 1e-3 apart around 0.1.
    for _ in range(5):
        with torch.no_grad():
            for parameter in model.trainable().values():
                parameter += 2e-6
        teacher.follow()
    expected = 2e-6 * sum(1 - 0.95**n for n in range(1, 6))
    for name, weight in teacher.weights.state_dict().items():
        assert weight.dtype is torch.float32
        shift = (weight - start[name]).double().mean().item()
        assert shift == pytest.approx(expected, rel=0.1), name
    # Some processors offer bf16 kernels that a virtual machine cannot run.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    rollouts = draw(model, make_examples(tmp_path), tokens=3)
    assert teacher.score(rollouts, (0,)).hidden[0].isfinite().all()
    assert all(p.dtype is torch.float32 for p in model.trainable().values())


def test_with_adapters_the_teacher_is_the_average_of_the_adapter(
    small_qwen35: Path, tmp_path: Path
) -> None:
    model = make_model(small_qwen35, lora=LoraSettings(rank=4))
    teacher = crop_teacher(model)
    assert teacher.weights.state_dict()
    assert all("lora" in name for name in teacher.weights.state_dict())
    rollouts = draw(model, make_examples(tmp_path))
    before = teacher.score(rollouts, (0,)).hidden[0]
    disturb(model)
    unmoved = teacher.score(rollouts, (0,)).hidden[0]
    torch.testing.assert_close(before, unmoved)
    teacher.follow()
    assert not torch.allclose(before, teacher.score(rollouts, (0,)).hidden[0])


def test_without_rows_it_computes_nothing(model: VisionLanguageModel, tmp_path: Path) -> None:
    def never(_: Example) -> tuple[Any, str]:
        raise AssertionError("a view was opened")

    scores = SelfTeacher(model, never).score(draw(model, make_examples(tmp_path)), ())
    assert (scores.rows, scores.scored_tokens, scores.processed_tokens) == ((), 0, 0)


def test_its_chunks_are_its_logits_on_the_packed_rows(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    scores = crop_teacher(model).score(draw(model, make_examples(tmp_path)), (0, 4, 5))
    packed = torch.cat([scores.hidden[row] for row in (4, 0)])
    chunks = [chunk.logits for chunk in scores.chunks((4, 0), 3)]
    assert [len(chunk) for chunk in chunks[:-1]] == [3] * (len(chunks) - 1)
    assert torch.equal(torch.cat(chunks), scores.head.logits(packed))


def test_lending_does_not_nest(model: VisionLanguageModel) -> None:
    weights = crop_teacher(model).weights
    with weights.lent(), pytest.raises(RuntimeError, match="does not nest"), weights.lent():
        pass
    with weights.lent():  # The failure above has left it usable.
        pass


def test_a_rounded_head_in_host_memory_is_rounded_again_after_every_move(
    small_qwen35: Path, tmp_path: Path
) -> None:
    """As on a GPU, where the head has a rounded copy."""
    said: list[list[torch.Tensor]] = []
    rollouts = draw(make_model(small_qwen35), make_examples(tmp_path))
    for offload in (False, True):
        model = make_model(small_qwen35, precision=torch.bfloat16)
        weight = plain_head(model.head)
        assert weight is not None
        name = next(n for n, p in model.trainable().items() if p is weight)
        model.fast_head = Head(weight, torch.bfloat16)
        teacher = crop_teacher(model, tau=0.5, offload=offload)
        found = []
        for _ in range(3):
            scores = teacher.score(rollouts, (4, 0))
            assert isinstance(scores.head, Head)
            assert scores.head is not model.fast_head
            own = teacher.weights.state_dict()[name]
            assert torch.equal(scores.head.rounded(), own.bfloat16())
            found += [chunk.logits for chunk in scores.chunks((0, 4), 5)]
            disturb(model)
            teacher.follow()
        said.append(found)
    resident, offloaded = said
    assert not torch.equal(resident[0], resident[-1])
    assert all(torch.equal(one, other) for one, other in zip(resident, offloaded, strict=True))
