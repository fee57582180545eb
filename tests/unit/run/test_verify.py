"""What `verify` finds when someone has been at a run, chain recomputed or not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_fixtures import events_of, rewrite, small_run
from run_states import sign

from bas_opd.config import Config, config_hash
from bas_opd.config.schema import SelectConfig
from bas_opd.errors import DataError
from bas_opd.files import write_json
from bas_opd.run import replaying
from bas_opd.run.history import read_history
from bas_opd.run.ledger import Ledger
from bas_opd.run.manifest import manifest_of
from bas_opd.run.verify import Verification, verify
from bas_opd.types import Budget

Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def learned(small_qwen35: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("learned"), small_qwen35)


@pytest.fixture
def run(learned: Path, tmp_path: Path) -> Path:
    """A copy of a sound run that a test may spoil."""
    return Path(shutil.copytree(learned, tmp_path / "run"))


def problems(result: Verification) -> dict[str, list[str]]:
    return {check.name: list(check.problems) for check in result.checks if check.problems}


def step_of(events: Events, number: int) -> dict[str, Any]:
    return next(e for e in events if e["event"] == "step" and e["step"] == number)


def test_a_run_as_it_was_left_is_sound_wherever_it_is(run: Path) -> None:
    result = verify(run, draws=True)
    assert problems(result) == {}
    assert result.is_finished
    assert (result.steps, result.planned_steps) == (5, 5)
    assert any(score is not None for score in step_of(events_of(run), 3)["scores"])


def shuffled(events: Events) -> None:
    step = step_of(events, 1)
    step["examples"] = step["examples"][::-1]


def swapped(events: Events) -> None:
    first, second = step_of(events, 0), step_of(events, 1)
    first["examples"], second["examples"] = second["examples"], first["examples"]


@pytest.mark.parametrize("forge", [shuffled, swapped])
def test_examples_in_another_order_than_that_of_the_data_are_found(
    run: Path, forge: Callable[[Events], None]
) -> None:
    events = events_of(run)
    forge(events)
    rewrite(run, events)
    found = problems(verify(run))
    step = 1 if forge is shuffled else 0
    said = f"step {step}: examples are not those that the seed draws from the data."
    assert found["examples"][0] == said


def test_without_the_data_the_order_is_said_not_to_be_checked(
    run: Path, learned: Path, tmp_path: Path
) -> None:
    events = events_of(run)
    moved = Path(shutil.copytree(learned.parent / "data", tmp_path / "moved"))
    events[0]["data"]["folder"] = str(tmp_path / "gone")
    rewrite(run, events)
    notes = {check.name: check.note for check in verify(run).checks}
    assert notes["examples"] == "not checked: the data is not there"
    notes = {check.name: check.note for check in verify(run, data=moved).checks}
    assert notes["examples"] == "in the order of the data"
    with pytest.raises(DataError, match="is not a prepared set"):
        verify(run, data=tmp_path)


@pytest.mark.parametrize("policy", ["full", "random", "entropy", "regressed", "covering"])
def test_runs_of_every_policy_are_sound(policy: str, small_qwen35: Path, tmp_path: Path) -> None:
    ratio = "1" if policy == "full" else "0.3"
    settings = (f"select.policy={policy}", f"select.query_ratio={ratio}", "run.steps=2")
    run = small_run(tmp_path, small_qwen35, *settings)
    assert problems(verify(run, draws=True)) == {}

    events = events_of(run)
    replace_a_row(step_of(events, 1), events[-1]["totals"])
    rewrite(run, events)
    found = problems(verify(run, draws=True))
    assert found["selection" if policy != "full" else "budget"][0].startswith("step 1: selected")


def change(number: int, **fields: Any) -> Callable[[Events], None]:
    return lambda events: step_of(events, number).update(fields)


@pytest.fixture(scope="module")
def by_tokens(small_qwen35: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = ["select.policy=covering", "select.budget=processed_tokens"]
    settings += ["select.query_ratio=0.6"]
    return small_run(tmp_path_factory.mktemp("tokens"), small_qwen35, *settings)


@pytest.fixture
def covered(by_tokens: Path, tmp_path: Path) -> Path:
    """A copy of a sound run of the covering policy with a budget in processed tokens."""
    return Path(shutil.copytree(by_tokens, tmp_path / "covered"))


@pytest.mark.parametrize("kind", ["scored_tokens", "processed_tokens"])
@pytest.mark.parametrize(
    ("policy", "coverage"),
    [
        *(("full", False), ("random", False), ("entropy", False), ("learned", False)),
        *(("random", True), ("entropy", True), ("learned", True)),
    ],
)
def test_runs_with_a_budget_in_tokens_are_sound(
    kind: str, policy: str, coverage: bool, small_qwen35: Path, tmp_path: Path
) -> None:
    settings = [f"select.budget={kind}", f"select.policy={policy}", "run.steps=3"]
    settings += [f"select.coverage={str(coverage).lower()}", "select.exploration=0.4"]
    settings.append(f"select.query_ratio={'1' if policy == 'full' else '0.4'}")
    run = small_run(tmp_path, small_qwen35, *settings)
    assert problems(verify(run, draws=True)) == {}
    steps = [step_of(events_of(run), number) for number in range(3)]
    for step in steps:
        assert step["budget_kind"] == kind
        assert step[kind] == step["spent"] <= step["budget"]
    assert any(step["selected"] for step in steps)
    if policy == "learned" and kind == "scored_tokens":
        assert steps[-1]["explored"]


def test_a_covering_run_in_processed_tokens_is_sound(covered: Path) -> None:
    assert problems(verify(covered, draws=True)) == {}
    step = step_of(events_of(covered), 3)
    assert step["scores"][0] is not None
    assert step["spent"] == step["processed_tokens"] <= step["budget"]
    assert step["budget"] == step["full_cost"] * 6 // 10


@pytest.mark.parametrize(
    ("tamper", "check", "sentence"),
    [
        (change(2, budget_kind="scored_tokens"), "budget", "step 2: budget_kind is scored"),
        (change(2, budget=10**6), "budget", "step 2: budget is 1000000, but floor(0.6 x"),
        (change(2, full_cost=10**6), "budget", "step 2: full_cost is 1000000"),
        (change(2, full_cost=None), "budget", "step 2: full_cost is None"),
        (change(2, spent=1), "budget", "step 2: spent is 1"),
        (change(2, spent=None), "budget", "step 2: spent is None"),
        (change(2, costs=None), "records", "step 2: costs belong to a budget in tokens"),
        (change(2, costs=[]), "records", "step 2: candidates and costs differ"),
        (change(2, openings=[1]), "records", "step 2: examples and openings differ"),
        (change(2, texts=[0]), "records", "step 2: candidates and texts differ"),
        (change(2, texts=None), "selection", "step 2: texts is missing"),
        (change(2, processed_tokens=1), "cost", "step 2: processed_tokens is 1"),
        (lambda e: cheaper(step_of(e, 2)), "budget", "step 2: costs has 0 for row"),
        (lambda e: free(step_of(e, 2)), "budget", "step 2: full_cost is"),
        (lambda e: dear(step_of(e, 2), 10_000), "budget", "step 2: openings has 10000 for"),
        (lambda e: dear(step_of(e, 2), 0), "budget", "step 2: openings has 0 for"),
        (lambda e: dear(step_of(e, 4), 100), "budget", "step 4: openings has 100 for"),
        (change(2, prefilled_prompts=9), "cost", "step 2: prefilled_prompts is 9, but its rows"),
        (lambda e: longer(step_of(e, 2)), "budget", "step 2: texts has row"),
        (lambda e: one_text(step_of(e, 0)), "selection", "step 0: selected holds two rows of one"),
        (lambda e: replace_a_row(step_of(e, 3), {}), "selection", "step 3: selected holds other"),
        (lambda e: leave_a_row(step_of(e, 0)), "selection", "step 0: selected leaves out row"),
        (lambda e: leave_a_row(step_of(e, 3)), "selection", "step 3: selected holds other"),
        (lambda e: invert(step_of(e, 3)), "selection", "step 3: selected holds other rows"),
    ],
)
def test_a_forged_budget_in_tokens_and_a_forged_covering_choice_are_found(
    covered: Path, tamper: Callable[[Events], None], check: str, sentence: str
) -> None:
    events = events_of(covered)
    tamper(events)
    rewrite(covered, events)
    found = problems(verify(covered))
    assert any(problem.startswith(sentence) for problem in found[check]), found


def cheaper(step: dict[str, Any]) -> None:
    step["costs"][0] = 0


def free(step: dict[str, Any]) -> None:
    step["openings"] = [1] * len(step["openings"])


def dear(step: dict[str, Any], cost: int) -> None:
    """Say another price of a prompt that was not asked about, so that K grows."""
    asked = {row // step["per_prompt"] for row in step["selected"]}
    prompts = {row // step["per_prompt"] for row in step["candidates"]}
    place = min(prompts - asked)
    step["full_cost"] += cost - step["openings"][place]
    step["openings"][place] = cost
    step["budget"] = step["full_cost"] * 6 // 10


def one_text(step: dict[str, Any]) -> None:
    step["texts"] = [0] * len(step["texts"])


def longer(step: dict[str, Any]) -> None:
    """Call two rows the same that are not of the same length."""
    one_text(step)
    step["response_tokens"][step["candidates"][1]] += 1


def leave_a_row(step: dict[str, Any]) -> None:
    step["selected"].pop()
    step["utility"].pop()


def invert(step: dict[str, Any]) -> None:
    step["scores"] = [-score for score in step["scores"]]


@pytest.fixture(scope="module")
def by_grades(small_qwen35: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = ("select.policy=covering", "select.correctness=true", "run.examples_per_step=99")
    return small_run(tmp_path_factory.mktemp("grades"), small_qwen35, *settings)


@pytest.fixture
def graded(by_grades: Path, tmp_path: Path) -> Path:
    """A copy of a sound run whose selection uses whether responses are right."""
    return Path(shutil.copytree(by_grades, tmp_path / "graded"))


def another_grade(step: dict[str, Any]) -> None:
    row = step["selected"][0]
    step["grades"][step["candidates"].index(row)] = "right"


@pytest.mark.parametrize(
    ("tamper", "check", "sentence"),
    [
        (change(2, grades=None), "selection", "step 2: grades is missing"),
        (change(2, grades=[]), "records", "step 2: candidates and grades differ"),
        (change(2, grades=["good"]), "records", "step 2: grades 1"),
        (lambda e: another_grade(step_of(e, 2)), "selection", "step 2: grades has row"),
    ],
)
def test_a_forged_grade_is_found(
    graded: Path, tamper: Callable[[Events], None], check: str, sentence: str
) -> None:
    events = events_of(graded)
    assert set(step_of(events, 2)["grades"]) <= {"wrong", "unread"}  # the model only stammers
    assert problems(verify(graded, draws=True)) == {}
    tamper(events)
    rewrite(graded, events)
    found = problems(verify(graded, draws=True))
    assert any(problem.startswith(sentence) for problem in found[check]), found


def test_grades_that_nothing_used_are_refused(run: Path) -> None:
    events = events_of(run)
    step_of(events, 1)["grades"] = ["wrong"] * len(step_of(events, 1)["candidates"])
    rewrite(run, events)
    assert problems(verify(run))["selection"] == [
        "step 1: grades is on record, but nothing used it."
    ]


def test_another_covering_draw_is_found_by_drawing_again(covered: Path) -> None:
    events = events_of(covered)
    replace_a_row(step_of(events, 0), events[-1]["totals"])
    shutil.rmtree(covered / "checkpoints")
    rewrite(covered, events)
    assert "selection" not in problems(verify(covered))
    found = problems(verify(covered, draws=True))["selection"]
    assert found[0] == "step 0: selected is not what the seed draws."


def test_invented_scores_are_found_by_predicting_again(run: Path) -> None:
    """Scores that fit the choice are consistent by themselves; only the selector knows better."""
    events = events_of(run)
    step = step_of(events, 3)
    step["scores"] = [2 * score + 1 for score in step["scores"]]
    rewrite(run, events)
    assert problems(verify(run)) == {}
    assert problems(verify(run, draws=True)) == {
        "selection": ["step 3: scores are not what the selector predicts after the steps before."]
    }


def test_predictions_that_tie_at_zero_cannot_be_told_apart_by_a_forger() -> None:
    """The rows that tie there are ordered by the seed; a rounding would choose among them."""
    predicted = {0: 1.0, 1: 0.0, 2: 0.0}

    def found(*recorded: float) -> list[str]:
        step: Any = SimpleNamespace(grades=None, score_of=dict(enumerate(recorded)))
        replay: Any = SimpleNamespace(scores=lambda *_: predicted)
        return list(replaying._predictions(step, Budget(limit=1), SelectConfig(), replay))

    assert found(1.0 + 1e-9, 0.0, 0.0) == []
    assert len(found(1.0, 0.0, 1e-9)) == 1


def test_an_invented_label_is_found_by_learning_again(run: Path) -> None:
    events = events_of(run)
    step = step_of(events, 1)
    step["utility"] = [utility + 0.5 for utility in step["utility"]]
    rewrite(run, events)
    assert problems(verify(run)) == {}
    found = problems(verify(run, draws=True))["selection"]
    assert found[0].startswith("step 2: scores are not what the selector predicts")


def test_records_without_the_fields_of_later_versions_are_sound(run: Path) -> None:
    events = events_of(run)
    for event in events:
        for name in ("budget_kind", "spent", "full_cost", "texts"):
            event.pop(name, None)
    rewrite(run, events)
    assert problems(verify(run, draws=True)) == {}


def test_a_run_that_asked_nothing_in_most_steps_is_named(run: Path) -> None:
    events = events_of(run)
    empty: dict[str, Any] = {"selected": [], "utility": [], "explored": [], "scored": []}
    for number in range(3):
        step_of(events, number).update(empty)
    rewrite(run, events)
    (remark,) = verify(run).remarks
    assert remark.startswith("In 3 of 5 steps the teacher was asked nothing: select.query_ratio=")


def test_a_learning_policy_that_never_ranked_a_row_is_named(
    run: Path, small_qwen35: Path, tmp_path: Path
) -> None:
    assert verify(run).remarks == ()
    short = small_run(tmp_path / "short", small_qwen35, "run.steps=2", "select.replay_start=99")
    (remark,) = verify(short).remarks
    assert remark.startswith("The learned policy ranked no row: it learns from 99 labels on")


def test_verifying_imports_no_torch(run: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from bas_opd.run.verify import verify\n"
        "assert verify(Path(sys.argv[1])).is_sound\n"
        "assert not {'torch', 'safetensors', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(run)], check=True)


def replace_a_row(step: dict[str, Any], totals: dict[str, Any]) -> None:
    """Swap a row that was chosen for its score against another, and make every sum fit."""
    old = next(row for row in step["selected"] if row not in step["explored"])
    new = next((r for r in step["candidates"] if r not in step["selected"]), None)
    new = old + 1000 if new is None else new
    step["selected"] = sorted({*step["selected"], new} - {old})
    step["scored"] = list(step["selected"])
    if new < len(step["response_tokens"]):
        change = step["response_tokens"][new] - step["response_tokens"][old]
        step["scored_tokens"] += change
        totals["scored_tokens"] = totals.get("scored_tokens", 0) + change


def add_a_row(events: Events) -> None:
    step = step_of(events, 2)
    step["selected"].append(next(r for r in step["candidates"] if r not in step["selected"]))
    step["utility"].append(None)


def repeat_a_row(events: Events) -> None:
    step = step_of(events, 2)
    step["selected"][-1] = step["selected"][0]


def forget(events: Events) -> None:
    events.remove(step_of(events, 2))


def repeat(events: Events) -> None:
    step = step_of(events, 2)
    events.insert(events.index(step), dict(step))


def forge_the_student(events: Events) -> None:
    """Claim that the student computed one token in every step, and make every sum fit."""
    for event in events:
        if event["event"] == "step":
            event["total_tokens"] -= 3 * (event["student_tokens"] - 1)
            event["student_tokens"] = 1


def feature(name: str, value: float | None) -> Callable[[Events], None]:
    def forge(events: Events) -> None:
        step = step_of(events, 2)
        for phi in step["features"]:
            phi[step["feature_names"].index(name)] = value

    return forge


def rename_a_feature(events: Events) -> None:
    step_of(events, 2)["feature_names"][2] = "mood"


def lengthen(field: str) -> Callable[[Events], None]:
    return lambda events: step_of(events, 2)[field].append(0)


@pytest.mark.parametrize(
    ("tamper", "check", "sentence"),
    [
        (lambda e: replace_a_row(step_of(e, 3), e[-1]["totals"]), "selection", "step 3: selected"),
        (change(2, budget=99), "budget", "step 2: budget is 99"),
        (change(2, query_ratio="0.5"), "budget", "step 2: query_ratio is 0.5"),
        (add_a_row, "budget", "step 2: selected holds"),
        (repeat_a_row, "budget", "step 2: selected names a row twice"),
        (change(2, explored=[999]), "budget", "step 2: explored names row 999"),
        (change(3, explored=[]), "selection", "step 3: selected holds other rows"),
        (change(0, learned=True), "selection", "step 0: learned is True"),
        (change(4, learned=False), "selection", "step 4: learned is False"),
        (change(2, scored=[]), "cost", "step 2: scored and selected"),
        (change(2, calls=1), "cost", "step 2: calls is 1"),
        (change(2, scored_tokens=1), "cost", "step 2: scored_tokens is 1"),
        (change(2, candidate_tokens=1), "cost", "step 2: candidate_tokens is 1"),
        (change(2, overrun=1), "cost", "step 2: overrun is 1"),
        (change(2, prefilled_tokens=1), "cost", "step 2: prefilled_tokens is 1"),
        (change(2, sampled_tokens=1), "cost", "step 2: sampled_tokens is 1"),
        (change(2, total_tokens=1), "cost", "step 2: total_tokens is 1"),
        (change(2, student_tokens=1), "cost", "step 2: total_tokens is"),
        (change(2, processed_tokens=1), "cost", "step 2: total_tokens is"),
        (forge_the_student, "cost", "step 2: student_tokens is 1, but its rows make"),
        (change(2, prefilled_prompts=0), "cost", "step 2: prefilled_prompts is 0, but its rows"),
        (change(2, prefilled_prompts=99), "cost", "step 2: prefilled_prompts is 99, but its rows"),
        (feature("response_tokens", 7.0), "budget", "step 2: features has other response_tokens"),
        (feature("response_tokens", None), "budget", "step 2: features has other response_tokens"),
        (feature("prompt_tokens", 1.0), "budget", "step 2: features has other prompt_tokens"),
        (rename_a_feature, "budget", "step 2: feature_names are not those"),
        (
            change(2, per_prompt=0),
            "records",
            "step 2: per_prompt must be a number",
        ),
        (change(2, per_prompt=2), "records", "step 2: response_tokens has not per_prompt rows"),
        (lengthen("response_tokens"), "records", "step 2: response_tokens has not per_prompt"),
        (lengthen("prompt_tokens"), "records", "step 2: prompt_tokens and examples"),
        (lengthen("candidates"), "records", "step 2: candidates"),
        (change(2, selected="all"), "records", "step 2: selected must"),
        (forget, "order", "step 3: step 2 is missing"),
        (repeat, "order", "step 2: on record again"),
        (lambda e: e[-1]["totals"].update(calls=1), "totals", "calls of the totals is 1"),
        (lambda e: e[-1]["totals"].update(total_tokens=1), "totals", "total_tokens of the totals"),
        (lambda e: e[-1]["totals"]["seconds"].clear(), "totals", "seconds.ema of the totals"),
        (lambda e: e[0].update(config_hash="0"), "settings", "config_hash of the started event"),
        (lambda e: e[0]["config"].update(select=1), "settings", "config of the started event"),
        (lambda e: e[0]["data"].update(fingerprint="0"), "settings", "fingerprint of run.json"),
        (lambda e: e[0].update(steps=9), "complete", "the plan has 9 steps"),
        (lambda e: e[-1].update(steps=9), "complete", "the finished event has 9 steps"),
        (lambda e: e.insert(3, {"event": "resumed", "step": 4}), "records", "step 4: the run was"),
        (lambda e: e.pop(0), "records", "The started event"),
        (lambda e: e.insert(3, e[0]), "records", "A started event follows others"),
        (lambda e: e.append(e[-2]), "records", "A step event follows"),
        (lambda e: e[-1].update(model=[]), "records", "the finished event: model"),
        (lambda e: e[-1]["totals"].update(seconds=None), "totals", "seconds.ema of the totals"),
        (lambda e: e[0].update(steps="5"), "records", "the started event: steps"),
    ],
)
def test_a_change_is_found_and_named_though_the_chain_was_recomputed(
    run: Path, tamper: Callable[[Events], None], check: str, sentence: str
) -> None:
    events = events_of(run)
    tamper(events)
    rewrite(run, events)
    found = problems(verify(run))
    assert any(problem.startswith(sentence) for problem in found[check]), found


def as_of_two_processes(events: Events) -> None:
    """Say that two processes took each step, from the second on, one of them without rows."""
    events.insert(2, {"event": "resumed", "step": 1, "environment": {"processes": 2}})
    for number in range(1, 5):
        step = step_of(events, number)
        step["student_tokens_of_ranks"] = [step["student_tokens"], 0]
        step["idle_passes"] = 1


def test_the_tokens_of_several_processes_are_sound(run: Path) -> None:
    events = events_of(run)
    as_of_two_processes(events)
    rewrite(run, events)
    assert problems(verify(run)) == {}
    notes = {check.name: check.note for check in verify(run).checks}
    assert notes["processes"] == "tokens of 1 and 2"


@pytest.mark.parametrize(
    ("tamper", "sentence"),
    [
        (change(2, student_tokens_of_ranks=[1, 0]), "student_tokens_of_ranks is [1, 0], but"),
        (change(2, student_tokens_of_ranks=None), "student_tokens_of_ranks has 0 numbers, but"),
        (lengthen("student_tokens_of_ranks"), "student_tokens_of_ranks has 3 numbers, but there"),
        (change(2, idle_passes=-1), "idle_passes is -1, but 1 of 2 processes had no tokens"),
        (change(2, idle_passes=0), "idle_passes is 0, but 1 of 2 processes had no tokens"),
        (lambda e: e[2]["environment"].clear(), "student_tokens_of_ranks has 2 numbers, but there"),
    ],
)
def test_forged_tokens_of_processes_are_found(
    run: Path, tamper: Callable[[Events], None], sentence: str
) -> None:
    events = events_of(run)
    as_of_two_processes(events)
    tamper(events)
    rewrite(run, events)
    found = problems(verify(run))
    assert list(found) == ["processes"]
    assert any(each.startswith(f"step 2: {sentence}") for each in found["processes"]), found


def test_a_process_that_takes_from_another_is_found(run: Path) -> None:
    events = events_of(run)
    as_of_two_processes(events)
    step = step_of(events, 2)
    step["student_tokens_of_ranks"] = [step["student_tokens"] + 1, -1]
    rewrite(run, events)
    assert "student_tokens_of_ranks is" in problems(verify(run))["processes"][0]


def test_other_settings_with_their_own_hash_are_another_run(run: Path) -> None:
    events = events_of(run)
    events[0]["config"]["select"]["query_ratio"] = "0.5"
    events[0]["config_hash"] = config_hash(Config.model_validate(events[0]["config"]))
    rewrite(run, events)
    found = problems(verify(run))
    assert found["budget"][0] == "step 0: query_ratio is 0.25, not 0.5."
    assert "select.query_ratio: was 0.5, is now 0.25" in found["settings"][0]


def test_a_null_where_entropy_with_coverage_needs_a_length_is_named(
    small_qwen35: Path, tmp_path: Path
) -> None:
    settings = ("select.policy=entropy", "select.coverage=true", "run.steps=2")
    run = small_run(tmp_path, small_qwen35, *settings)
    events = events_of(run)
    step = step_of(events, 1)
    step["features"][0][step["feature_names"].index("response_tokens")] = None
    rewrite(run, events)
    found = problems(verify(run))
    assert found == {"budget": ["step 1: features has other response_tokens than the step."]}


def test_a_flipped_bit_is_found_and_the_last_whole_step_named(run: Path) -> None:
    path = run / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    place = lines[3].index(b'"loss":') + 9
    lines[3] = lines[3][:place] + bytes([lines[3][place] ^ 1]) + lines[3][place + 1 :]
    path.write_bytes(b"".join(lines))
    (problem,) = problems(verify(run))["records"]
    assert "records.jsonl:4" in problem
    assert problem.endswith("No record after that of step 1 was read.")


def test_another_draw_is_found_only_by_drawing_again(run: Path) -> None:
    events = events_of(run)
    replace_a_row(step_of(events, 0), events[-1]["totals"])
    # The checkpoints hold the ledger too, and would give it away.
    shutil.rmtree(run / "checkpoints")
    rewrite(run, events)
    assert problems(verify(run)) == {}
    found = problems(verify(run, draws=True))
    assert list(found) == ["selection"]
    assert found["selection"][0] == "step 0: selected is not what the seed draws."


def test_a_run_with_steps_left_is_sound_only_if_that_is_accepted(run: Path) -> None:
    events = events_of(run)
    shutil.rmtree(run / "checkpoints" / "step-00000005")
    rewrite(run, events[:-2])
    assert list(problems(verify(run))) == ["complete"]
    result = verify(run, unfinished=True)
    assert result.is_sound
    assert not result.is_finished
    with (run / "records.jsonl").open("ab") as file:
        file.write(b'{"schema_version":1,"ev')
    assert verify(run, unfinished=True).is_sound
    assert "records" in problems(verify(run))


def test_a_resumed_and_prolonged_run_is_sound(run: Path) -> None:
    events = events_of(run)
    events[0]["steps"] = 3
    events.insert(4, {"event": "resumed", "step": 3, "steps": 5})
    rewrite(run, events)
    assert problems(verify(run)) == {}


@pytest.mark.parametrize("name", ["model", "checkpoints/step-00000004"])
def test_files_must_be_what_they_were(run: Path, name: str) -> None:
    check = name.partition("/")[0]
    file = next((run / name).glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    (problem,) = problems(verify(run))[check]
    assert problem.endswith(f"is damaged: {file.name} has changed.")
    file.unlink()
    assert "lacks or adds files" in problems(verify(run))[check][0]
    shutil.rmtree(run / name)
    assert ("is missing" in problems(verify(run)).get("model", [""])[0]) == (check == "model")


def test_a_checkpoint_must_be_of_a_step_on_record_and_of_its_name(run: Path) -> None:
    events = events_of(run)
    rewrite(run, events[:-2])
    (problem,) = problems(verify(run, unfinished=True))["checkpoints"]
    assert problem.endswith("step-00000005 is of step 5, but 4 steps are on record.")
    rewrite(run, events)
    (run / "checkpoints" / "step-00000004").rename(run / "checkpoints" / "step-00000003")
    (problem,) = problems(verify(run))["checkpoints"]
    assert problem.endswith("step-00000003 holds the state of step 4.")


def test_a_run_without_its_identity_is_not_sound(run: Path) -> None:
    (run / "run.json").write_text('{"config": 1}')
    assert problems(verify(run))["settings"][0].startswith(f"{run / 'run.json'} cannot be read")
    (run / "run.json").unlink()
    assert "run.json is missing" in problems(verify(run))["settings"][0]


def test_every_record_has_the_id_of_the_run(run: Path) -> None:
    events, own = events_of(run), json.loads((run / "run.json").read_text())["run_id"]
    assert own
    assert {event["run_id"] for event in events} == {own}


def test_records_of_another_run_are_found_though_the_chain_was_recomputed(run: Path) -> None:
    events = events_of(run)
    step_of(events, 2)["run_id"] = "0" * 32
    rewrite(run, events)
    (problem,) = problems(verify(run))["records"]
    assert problem.endswith("records.jsonl:4 is of another run.")
    events[0]["run_id"] = "0" * 32
    rewrite(run, events)
    found = problems(verify(run))
    assert found["settings"][0].startswith("run_id of run.json is")
    assert len(found["records"]) == len(events) - 2
    assert found["checkpoints"] == [
        f"{run / 'checkpoints' / name} is of another run."
        for name in ("step-00000005", "step-00000004")
    ]


def test_records_without_an_id_stay_sound(run: Path) -> None:
    """Those of versions that gave one to the first record only, or to none."""
    events = events_of(run)
    for event in events[1:]:
        del event["run_id"]
    rewrite(run, events)
    assert "records" not in problems(verify(run))


def test_the_ledger_of_a_checkpoint_must_be_that_of_its_steps(run: Path) -> None:
    folder = run / "checkpoints" / "step-00000004"
    state = json.loads((folder / "state.json").read_text())
    state["ledger"]["calls"] += 1
    (folder / "state.json").write_text(json.dumps(state))
    sign(folder)
    (problem,) = problems(verify(run))["checkpoints"]
    assert problem.startswith("calls of the checkpoint step-00000004 is")


def test_a_folder_without_records_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no records\.jsonl"):
        verify(tmp_path)


def test_a_changed_line_is_damage_even_where_the_last_one_was_cut(run: Path) -> None:
    records = run / "records.jsonl"
    lines = records.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"per_prompt":4', b'"per_prompt":5')
    records.write_bytes(b"".join(lines)[:-20])
    assert "does not follow" in problems(verify(run, unfinished=True))["records"][0]
    with pytest.raises(DataError, match="is not what a run writes"):
        read_history(run)


def test_an_incomplete_last_line_is_no_damage_of_an_unfinished_run(run: Path) -> None:
    records = run / "records.jsonl"
    lines = records.read_bytes().splitlines(keepends=True)
    records.write_bytes(b"".join(lines[:-1]) + lines[-1][:-20])
    assert not problems(verify(run, unfinished=True, files=False))
    assert read_history(run).is_cut


def test_a_finished_event_names_the_files_of_the_model(run: Path) -> None:
    events = events_of(run)
    del events[-1]["model"]
    rewrite(run, events)
    assert "the finished event: model" in problems(verify(run))["records"][0]


def test_a_version_that_is_no_number_is_explained(run: Path) -> None:
    identity = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**identity, "schema_version": "one"}))
    assert "cannot be read" in problems(verify(run))["settings"][0]


def test_a_total_that_an_older_version_did_not_count_may_be_absent(run: Path) -> None:
    events = events_of(run)
    assert events[-1]["totals"].pop("skipped_steps") == 0
    rewrite(run, events)
    assert "totals" not in problems(verify(run, files=False))
    del events[-1]["totals"]["calls"]
    rewrite(run, events)
    assert "calls of the totals is None" in problems(verify(run, files=False))["totals"][0]


def as_version_0_1_left_it(run: Path) -> None:
    """Take out the token costs that version 0.1 did not count, from records and checkpoints."""
    names = ("prefilled_tokens", "sampled_tokens", "total_tokens")
    events = events_of(run)
    for event in events:
        for holder in (event, event.get("totals", {})):
            for name in names:
                holder.pop(name, None)
    rewrite(run, events)
    for folder in (run / "checkpoints").iterdir():
        state = json.loads((folder / "state.json").read_text())
        state["ledger"] = {k: v for k, v in state["ledger"].items() if k not in names}
        (folder / "state.json").write_text(json.dumps(state))
        manifest = manifest_of(folder, schema_version=1)
        del manifest["checksum"]
        write_json(folder / "manifest.json", manifest)


def test_records_of_version_0_1_stay_sound_and_their_token_costs_are_recomputed(run: Path) -> None:
    kept = Ledger.of(read_history(run).steps)
    as_version_0_1_left_it(run)
    assert problems(verify(run)) == {}
    steps = read_history(run).steps
    assert {step.total_tokens for step in steps} == {None}
    assert Ledger.of(steps) == kept
    assert kept.total_tokens > kept.prefilled_tokens + kept.sampled_tokens > 0
