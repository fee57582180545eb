from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy
import pytest
import torch
from shapes import make_pictures

from bas_opd.algorithm import train_step
from bas_opd.config import Config, load_config, preset
from bas_opd.config.loading import flat
from bas_opd.data.order import step_indices
from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.methods import BasOpd
from bas_opd.run.state import build_method
from bas_opd.select import LearnedSelector, RandomSelector, build_selector, features_from
from bas_opd.stats.intervals import mean_interval
from bas_opd.types import FEATURES, PromptBatch, Selection
from recipes.selector_study import ceiling, columns, describe, regressors
from recipes.selector_study import log as logging_script
from recipes.selector_study import replay as replay_script
from recipes.selector_study.entrants import (
    CHOSEN,
    PAPER,
    Fitted,
    normal_quantiles,
    roster,
    scaled,
)
from recipes.selector_study.replay import compare, oracle, replay, result_of
from recipes.selector_study.scored import Candidates, ScoredLog, save_log

ROOT = Path(__file__).parents[3]
STAND_IN = (
    "rollout.prompts_per_step=6",
    "rollout.per_prompt=4",
    "rollout.max_response_tokens=8",
    "distill.k=20",
)
SELECTOR = {"replay_start": 8, "replay_batch": 4, "learning_rate": 0.05, "exploration": 0.2}
PATHS = ("model.path=model", "data.path=data")
Worth = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _by_entropy(features: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return features[:, FEATURES.index("mean_entropy")].pow(4)


def _where_siblings_agree(features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """High where the four rollouts of a prompt have the same last word."""
    place = features[:, FEATURES.index("response_tokens")].long() - 2
    last = tokens.gather(1, place[:, None]).reshape(-1, 4)
    return 0.1 + (last == last[:, :1]).all(1).double().repeat_interleave(4)


def _synthetic(path: Path, worth: Worth, *, seed: int = 0, steps: int = 7) -> ScoredLog:
    """Write and load a log in which the utility is a known function of what can be seen.

    28 prompts by 4 responses of 3 to 6 tokens; the end token 9 stands last.
    """
    draws = torch.Generator().manual_seed(seed)
    tables = []
    for _ in range(steps):
        rows = 112
        lengths = torch.randint(3, 7, (rows,), generator=draws)
        mask = torch.arange(6) < lengths[:, None]
        nll, entropies = torch.rand(2, rows, 6, generator=draws).where(mask, 0.0)
        entropies = entropies * torch.rand(rows, 1, generator=draws)
        tokens = torch.randint(0, 2, (rows, 6), generator=draws)
        tokens[torch.arange(rows), lengths - 1] = 9
        features = features_from(-nll, lengths, entropies=entropies)
        tables.append(
            {
                "row": range(10, 10 + rows),  # not 0, 1, ...: a place is no row
                "prompt": torch.arange(rows) // 4,
                "example": torch.arange(rows) // 4,
                "kind": torch.arange(rows) // 4 % 2,
                "length": lengths,
                "features": features,
                "utility": worth(features, tokens),
                "tokens": tokens.where(mask, 0),
                "logprobs": -nll,
                "entropies": entropies,
            }
        )
    save_log(
        path,
        tables,
        loss=[0.0] * steps,
        kind_names=["colour", "shape"],
        end_ids=[9],
        settings="{}",
    )
    return ScoredLog.load(path)


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> ScoredLog:
    return _synthetic(tmp_path_factory.mktemp("logs") / "synthetic.npz", _by_entropy)


class Spy:
    """A random selector that keeps what it was told."""

    def __init__(self) -> None:
        self.selector = RandomSelector()
        self.picked: list[set[int]] = []
        self.told: list[set[int]] = []

    def select(self, candidates: Candidates, budget: int, *, step: int) -> Selection:
        selection = self.selector.select(candidates, budget, step=step)
        self.picked.append(set(selection.rows))
        return selection

    def learn(self, candidates: Candidates, utility: Mapping[int, float], *, step: int) -> None:
        self.told.append(set(utility))


# Logging.


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> PreparedSet:
    return make_pictures(tmp_path_factory.mktemp("set") / "data", n=20, seed=4, size=(96, 96))


@pytest.fixture(scope="module")
def stand_in(small_qwen35: Path, pictures: PreparedSet, tmp_path_factory: Any) -> ScoredLog:
    """A log of a student that does not move: its rate is below what a float can hold."""
    out = tmp_path_factory.mktemp("logs") / "deep" / "stand-in.npz"
    paths = [str(small_qwen35), str(pictures.folder), str(out)]
    options = ["--steps", "6", "--seed", "5", "--policy-lr", "1e-30", "--device", "cpu"]
    logging_script.main([*paths, *options, *STAND_IN])
    return ScoredLog.load(out)


def _learned_config(model: Path, data: PreparedSet) -> Config:
    return load_config(
        preset("full"),
        [
            f"model.path={model}",
            f"data.path={data.folder}",
            "model.device=cpu",
            "optim.learning_rate=1e-30",
            "run.seed=5",
            "select.policy=learned",
            "select.query_ratio=0.25",
            *(f"select.{name}={value}" for name, value in SELECTOR.items()),
            *STAND_IN,
        ],
        over=preset("finesearch"),
    )


def test_the_replay_picks_the_rows_that_training_picked(
    small_qwen35: Path, pictures: PreparedSet, stand_in: ScoredLog
) -> None:
    config = _learned_config(small_qwen35, pictures)
    method = build_method(config)
    assert isinstance(method, BasOpd)
    trained, by_prediction = [], 0
    for step in range(6):
        rows = step_indices(20, 6, 5, step)
        batch = PromptBatch(step=step, examples=tuple(pictures.examples[row] for row in rows))
        report = train_step(method.stages, batch, config.select.query_ratio)
        assert report.queries is not None
        trained.append(report.rows)
        by_prediction += bool(report.queries.selection.scores)
    assert by_prediction >= 3
    selector = LearnedSelector(**SELECTOR)
    assert [result.rows for result in replay(stand_in, selector, "0.25")] == trained


def test_a_log_holds_the_candidates_in_the_order_of_the_data(
    pictures: PreparedSet, stand_in: ScoredLog
) -> None:
    for step in stand_in.steps:
        candidates = step.candidates
        indices = step_indices(20, 6, 5, candidates.step)
        examples = [pictures.examples[index] for index in indices]
        expected = [row for row in range(24) if examples[row // 4].has_crop]
        assert list(candidates.rows) == expected
        assert candidates.prompt.tolist() == [row // 4 for row in expected]
        kinds = [candidates.kind_names[kind] for kind in candidates.kind.tolist()]
        assert kinds == [examples[row // 4].kind for row in expected]
        area = candidates.values[:, FEATURES.index("crop_area")].tolist()
        crops = [examples[row // 4].crop for row in expected]
        assert area == [crop.area for crop in crops if crop]


def test_what_a_log_says_of_tokens_agrees_with_what_it_says_of_rows(
    stand_in: ScoredLog,
) -> None:
    for step in stand_in.steps:
        candidates = step.candidates
        again = features_from(
            candidates.logprobs, candidates.length, entropies=candidates.entropies
        )
        torch.testing.assert_close(again[:, :4], candidates.values[:, :4], rtol=2e-3, atol=0)
        assert not candidates.logprobs[~candidates.mask].any()


def test_a_log_keeps_the_settings_it_was_made_with(
    small_qwen35: Path, pictures: PreparedSet, tmp_path: Path
) -> None:
    out = tmp_path / "one.npz"
    paths = [str(small_qwen35), str(pictures.folder), str(out)]
    logging_script.main([*paths, "--steps", "1", "--seed", "5", "--device", "cpu", *STAND_IN])
    with numpy.load(out, allow_pickle=False) as log:
        assert log["utility"].min() > 0
        assert log["loss"].min() > 0
        settings = json.loads(str(log["settings"]))
    assert settings["run"]["seed"] == 5
    assert settings["select"]["policy"] == "full"
    small = load_config(preset("finesearch"), PATHS)
    assert settings["optim"]["learning_rate"] == small.optim.learning_rate
    assert settings["data"]["fingerprint"] == pictures.fingerprint


def test_the_utility_of_a_published_log_is_the_mean_over_its_tokens() -> None:
    with numpy.load(ROOT / "docs/results/selector/seed-100.npz", allow_pickle=False) as log:
        means = log["token_utility"].astype(float).sum(1) / log["length"]
        numpy.testing.assert_allclose(means, log["utility"], rtol=1e-2, atol=1e-6)


def test_a_log_says_what_was_trained_on_but_not_where_it_lay(
    small_qwen35: Path, pictures: PreparedSet
) -> None:
    config = _learned_config(small_qwen35, pictures)
    text = logging_script._settings(config, pictures)
    for place in (config.model.path, config.data.path, config.run.output):
        assert place
        assert place not in text
    published = sorted((ROOT / "docs/results/selector").glob("*.npz"))
    assert len(published) == 3
    for path in published:
        with numpy.load(path, allow_pickle=False) as log:
            settings = json.loads(str(log["settings"]))
        # Settings that came after the logs.
        later = {"select.budget", "select.coverage", "select.correctness"}
        later |= {
            "optim.decay_until",
            "optim.offload",
            "optim.moments",
            "data.workers",
            "model.kernels",
        }
        later |= {"rollout.engine", "rollout.engine_cache_gib", "rollout.logprob_tolerance"}
        later |= {"rollout.correct", "rollout.correct_cap", "rollout.ahead", "rollout.overlap"}
        sections = ("eval", "method", "sft", "grpo", "dapo", "judge", "shard")
        now = {name for name in flat(json.loads(text)) if name.split(".")[0] not in sections}
        later |= {name for name in now - flat(settings).keys() if name.startswith("teacher.")}
        assert flat(settings).keys() == now - later


def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    with path.open("wb") as file:
        numpy.savez_compressed(file, candidates=numpy.array([3]))
    with pytest.raises(DataError, match="not a log of scored batches"):
        ScoredLog.load(path)


# Replaying.


def test_a_selector_is_told_what_it_paid_for_and_nothing_else(synthetic: ScoredLog) -> None:
    spy = Spy()
    replay(synthetic, spy, "0.25")
    assert spy.told == spy.picked
    assert {len(rows) for rows in spy.told} == {28}


def test_a_utility_that_is_not_finite_is_no_label_and_worth_nothing(synthetic: ScoredLog) -> None:
    step = synthetic.steps[0]
    missing = replace(step, utility=torch.full_like(step.utility, torch.nan))
    spy = Spy()
    (result,) = replay(replace(synthetic, steps=(missing,)), spy, "0.25")
    assert spy.told == [set()]
    assert result.capture == 0


@pytest.mark.parametrize("name", roster())
def test_utilities_that_were_not_paid_for_change_no_pick(name: str, synthetic: ScoredLog) -> None:
    picked = [result.rows for result in replay(synthetic, roster()[name](), "0.25")]
    hidden = []
    for step, rows in zip(synthetic.steps, picked, strict=True):
        known = torch.isin(torch.tensor(step.candidates.rows), torch.tensor(rows))
        hidden.append(replace(step, utility=step.utility.where(known, torch.nan)))
    again = replay(replace(synthetic, steps=tuple(hidden)), roster()[name](), "0.25")
    assert [result.rows for result in again] == picked
    assert all(len(rows) == 28 for rows in picked)


def test_no_entrant_captures_more_than_the_oracle(synthetic: ScoredLog) -> None:
    best = [result.capture for result in oracle(synthetic, "0.25")]
    for name, make in roster().items():
        results = replay(synthetic, make(), "0.25")
        for result, bound in zip(results, best, strict=True):
            assert 0 < result.capture <= bound + 1e-12, name


def test_random_picking_captures_its_share(synthetic: ScoredLog) -> None:
    captures = [
        result.capture
        for seed in range(60)
        for result in replay(synthetic, RandomSelector(seed=seed), "0.25")
    ]
    assert numpy.mean(captures) == pytest.approx(0.25, abs=0.01)


def test_the_paper_s_entrant_is_the_real_class_with_the_paper_s_settings() -> None:
    selector, paper = roster()[PAPER](), LearnedSelector()
    assert type(selector) is LearnedSelector
    assert vars(selector).keys() == vars(paper).keys()
    for name, value in vars(paper).items():
        if isinstance(value, int | float):
            assert vars(selector)[name] == value


def test_the_policy_that_was_chosen_is_the_one_that_is_shipped(synthetic: ScoredLog) -> None:
    """With the settings of its preset, through the configuration, as a run builds it."""
    config = load_config(preset("regressed25"), PATHS).select
    ratio = str(config.query_ratio)
    shipped = build_selector(**config.model_dump(exclude={"query_ratio", "budget"}))
    studied = replay(synthetic, roster()[CHOSEN](), ratio)
    assert [r.rows for r in replay(synthetic, shipped, ratio)] == [r.rows for r in studied]
    assert fmean(r.capture for r in studied[4:]) > 0.5


def test_revealing_tells_every_utility_but_changes_no_budget(synthetic: ScoredLog) -> None:
    spy = Spy()
    replay(synthetic, spy, "0.25", reveal=True)
    assert [len(rows) for rows in spy.told] == [112] * 7
    assert [len(rows) for rows in spy.picked] == [28] * 7


def test_scores_leave_out_the_warm_up_and_pair_the_logs(tmp_path: Path) -> None:
    logs = [_synthetic(tmp_path / f"{seed}.npz", _by_entropy, seed=seed) for seed in (1, 2, 3)]
    names = ("entropy", PAPER)
    scores = compare(logs, {name: roster()[name] for name in names}, ratio="0.25", warmup=5)
    by_name = {score.name: score for score in scores}
    late = [[r.capture for r in replay(log, roster()["entropy"](), "0.25")[5:]] for log in logs]
    entropy, learned = by_name["entropy"], by_name[PAPER]
    assert entropy.captures == pytest.approx([numpy.mean(run) for run in late])
    assert entropy.of_oracle == pytest.approx(1)  # here the utility rises with the entropy
    gains = [a - b for a, b in zip(entropy.captures, learned.captures, strict=True)]
    assert entropy.gain == pytest.approx(numpy.mean(gains))
    assert entropy.gain_interval == pytest.approx(4.30265 * numpy.std(gains, ddof=1) / 3**0.5)
    assert learned.gain == 0


def test_a_single_log_has_its_interval_over_stretches_of_steps(synthetic: ScoredLog) -> None:
    entropy = compare([synthetic], {"entropy": roster()["entropy"]}, ratio="0.25", warmup=2)[-1]
    captures = [r.capture for r in replay(synthetic, roster()["entropy"](), "0.25")[2:]]
    assert entropy.capture == pytest.approx(fmean(captures))
    assert entropy.interval == pytest.approx(
        mean_interval(captures).half_width
    )  # five stretches of a step
    assert numpy.isnan(entropy.gain)


def test_what_is_picked_is_described(synthetic: ScoredLog, tmp_path: Path) -> None:
    """The first eight rows are the two first prompts of 28, four responses each."""
    rows = synthetic.steps[0].candidates.rows[:8]
    picks = [result_of(step, rows, 0.0) for step in synthetic.steps]
    found = describe.describe(synthetic, picks, warmup=1)
    assert found["prompts"] == pytest.approx(2 / 28)
    assert found["effective_prompts"] == pytest.approx(2)
    assert found["kinds"] == {"colour": 0.5, "shape": 0.5}
    lengths = [step.candidates.length[:8] for step in synthetic.steps[1:]]
    assert found["tokens"] == pytest.approx(fmean(float(part.sum()) for part in lengths))
    assert found["short"] == pytest.approx(
        fmean(float((part <= 3).double().mean()) for part in lengths)
    )


def test_the_variance_between_prompts_is_all_where_siblings_are_worth_the_same(
    tmp_path: Path,
) -> None:
    log = _synthetic(tmp_path / "log.npz", _where_siblings_agree, steps=3)
    assert describe.between_prompts(log, 0) == pytest.approx(1)
    assert sum(describe.utility_by_kind(log, 0).values()) == pytest.approx(1)


def test_the_ceiling_finds_what_another_log_holds(tmp_path: Path) -> None:
    fitted, against = (
        _synthetic(tmp_path / f"{seed}.npz", _by_entropy, seed=seed, steps=4) for seed in (1, 2)
    )
    found = ceiling.ceiling(fitted, against, columns.paper_columns, "0.25")
    best = [r.capture for r in oracle(against, "0.25")]
    assert fmean(r.capture for r in found) > 0.85 * fmean(best)


def test_the_command_prints_and_writes_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, report = tmp_path / "log.npz", tmp_path / "scores.json"
    _synthetic(path, _by_entropy)
    replay_script.main([str(path), "--warmup", "4", "--only", "entropy", "--json", str(report)])
    names = [score["name"] for score in json.loads(report.read_text())["scores"]]
    assert names == ["oracle", "oracle, per token", "entropy", PAPER]
    assert "entropy" in capsys.readouterr().out
    replay_script.main([str(path), "--warmup", "4", "--columns"])
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("high mean_entropy ")]
    assert line.split()[4] == "1.000"
    with pytest.raises(SystemExit):
        replay_script.main([str(path), "--warmup", "7"])


# Entrants.


@pytest.mark.parametrize("name", ["ridge", "process", "stumps", "network", "ridge, all columns"])
def test_a_regression_finds_a_utility_that_its_columns_hold(name: str, tmp_path: Path) -> None:
    log = _synthetic(tmp_path / "log.npz", _by_entropy, steps=12)
    best = numpy.mean([result.capture for result in oracle(log, "0.25")[6:]])
    own = numpy.mean([result.capture for result in replay(log, roster()[name](), "0.25")[6:]])
    assert own > 0.9 * best


def test_what_only_siblings_show_is_found_by_the_sibling_columns(tmp_path: Path) -> None:
    log = _synthetic(tmp_path / "log.npz", _where_siblings_agree, steps=12)

    def capture(name: str) -> float:
        return float(numpy.mean([r.capture for r in replay(log, roster()[name](), "0.25")[6:]]))

    assert capture("ridge, sibling columns") > 1.5 * capture("ridge")


def _one_word(features: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """A response with one telling token: the longer it is, the less that weighs in the mean."""
    total = 0.2 + features[:, FEATURES.index("p90_nll")]
    return total / features[:, FEATURES.index("response_tokens")]


def test_a_sum_that_the_columns_hold_is_divided_by_the_length(tmp_path: Path) -> None:
    log = _synthetic(tmp_path / "log.npz", _one_word, steps=12)

    def p90(candidates: Candidates) -> dict[str, torch.Tensor]:
        return {"p90_nll": columns.paper_columns(candidates)["p90_nll"]}

    ridge = partial(regressors.Ridge, regressors.linear)
    entrant = Fitted(ridge, columns=p90, is_total=True, target=scaled)
    results = replay(log, entrant, "0.25")[6:]
    for result, best in zip(results, oracle(log, "0.25")[6:], strict=True):
        assert result.capture > 0.99 * best.capture
    labels = entrant.replay.labels
    torch.testing.assert_close(labels.utility, 0.2 + labels.features[:, 0])


def test_dividing_by_the_cost_asks_about_shorter_responses(tmp_path: Path) -> None:
    log = _synthetic(tmp_path / "log.npz", lambda features, _: 1 + features[:, 2], steps=12)

    def tokens(name: str) -> float:
        return float(numpy.mean([r.token_share for r in replay(log, roster()[name](), "0.25")[6:]]))

    assert tokens("ridge, per token") < tokens("ridge") - 0.04


def test_a_bonus_prefers_what_is_not_known() -> None:
    x = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    far = torch.tensor([[0.0], [4.0]], dtype=torch.float64)
    for regressor in (regressors.Ridge(), regressors.GaussianProcess()):
        regressor.fit(x, x[:, 0].sin(), torch.ones(50, dtype=torch.float64))
        _, deviation = regressor.predict(far)
        assert deviation[1] > 2 * deviation[0]


class Stub:
    """A regression that knows nothing and is unsure of the rows with a high first column."""

    def fit(self, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> None:
        self.x, self.weight = x, weight

    def predict(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(len(x), dtype=x.dtype), x[:, 0] - x[:, 0].min()


def _last_pick(log: ScoredLog, **settings: Any) -> set[int]:
    entrant = Fitted(Stub, columns=columns.paper_columns, **settings)
    return set(replay(log, entrant, "0.25")[-1].rows)


def test_uncertainty_ranks_with_a_bonus_and_scatters_with_a_draw(synthetic: ScoredLog) -> None:
    values = synthetic.steps[-1].candidates.values[:, 0]
    unsure = {10 + place for place in values.topk(28).indices.tolist()}
    assert _last_pick(synthetic) == set(range(10, 38))  # all alike: in row order
    assert _last_pick(synthetic, bonus=1.0) == unsure
    drawn = _last_pick(synthetic, is_thompson=True)
    assert 28 / 4 < len(drawn & unsure) < 28
    assert drawn != _last_pick(synthetic, is_thompson=True, seed=1)


def test_labels_fade_with_their_age_and_leave_with_their_number(synthetic: ScoredLog) -> None:
    entrant = Fitted(Stub, columns=columns.paper_columns, half_life=2.0, capacity=70)
    replay(synthetic, entrant, "0.25")
    regressor = entrant.regressor
    assert isinstance(regressor, Stub)
    ages = [2] * 14 + [1] * 28 + [0] * 28
    assert regressor.weight.tolist() == pytest.approx([2 ** (-age / 2) for age in ages])


def test_an_outlier_does_not_rule_the_fit(synthetic: ScoredLog) -> None:
    (step, *_) = synthetic.steps
    values = step.candidates.values.clone()
    values[0, 0] = 1e6
    step = replace(step, candidates=replace(step.candidates, values=values))
    entrant = Fitted(Stub, columns=columns.paper_columns)
    replay(replace(synthetic, steps=(step,)), entrant, "1")
    assert isinstance(entrant.regressor, Stub)
    assert entrant.regressor.x.abs().max() == 4


def test_old_labels_are_outvoted() -> None:
    x = torch.randn(200, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sign = torch.ones(200, dtype=torch.float64)
    sign[:100] = -1
    weight = torch.where(sign < 0, 0.01, 1.0).double()
    for regressor in (regressors.Ridge(), regressors.GaussianProcess(), regressors.Stumps()):
        regressor.fit(x, sign * x[:, 0], weight)
        mean, _ = regressor.predict(torch.tensor([[-1.0], [1.0]], dtype=torch.float64))
        assert mean[1] > mean[0] + 0.5


def test_no_column_reads_the_padding(synthetic: ScoredLog) -> None:
    candidates = synthetic.steps[0].candidates
    spoiled = replace(
        candidates,
        responses=candidates.responses.where(candidates.mask, torch.arange(112)[:, None]),
        logprobs=candidates.logprobs.where(candidates.mask, -99.0),
        entropies=candidates.entropies.where(candidates.mask, torch.nan),
    )
    clean, dirty = columns.ALL_COLUMNS(candidates), columns.ALL_COLUMNS(spoiled)
    assert clean.keys() == dirty.keys()
    for name, values in clean.items():
        assert values.isfinite().all(), name
        torch.testing.assert_close(dirty[name], values, rtol=0, atol=0)


def test_columns_say_what_they_are_named() -> None:
    """Two prompts of two responses: 5 6 END beside 5 7 END, and 8 END beside 8 8 8, cut off."""
    tokens = torch.tensor([[5, 6, 9], [5, 7, 9], [8, 9, 0], [8, 8, 8]])
    lengths = torch.tensor([3, 3, 2, 3])
    nll, entropies = torch.tensor(
        [
            [[0.0, 0.2, 0.5], [0.0, 1.0, 0.0], [0.4, 0.0, 0.0], [0.1, 0.2, 0.3]],
            [[0.5, 0.0, 0.0], [0.0, 0.9, 0.0], [0.05, 0.0, 0.0], [0.0, 0.0, 0.4]],
        ],
        dtype=torch.float64,
    )
    step = _synthetic_step(tokens, lengths, nll, entropies)
    seen = columns.ALL_COLUMNS(step)
    expected = {
        "max_nll": [0.5, 1.0, 0.4, 0.3],
        "first_nll": [0.0, 0.0, 0.4, 0.1],
        "last_nll": [0.2, 1.0, 0.4, 0.3],
        "last_entropy": [0.0, 0.9, 0.05, 0.4],
        "entropy_above_0.3": [1 / 3, 1 / 3, 0.0, 1 / 3],
        "nll_above_0.1": [2 / 3, 1 / 3, 1 / 2, 2 / 3],
        "mean_nll_entropy": [0.0, 0.3, 0.01, 0.04],
        "is_ended": [1, 1, 1, 0],
        "same_last_token": [0.5, 0.5, 1.0, 1.0],
        "same_response": [0.5, 0.5, 0.5, 0.5],
        "prompt_response_tokens": [3.0, 3.0, 2.5, 2.5],
        "response_tokens_beside_prompt": [0.0, 0.0, -0.5, 0.5],
        "response_tokens_spread": [0.0, 0.0, 0.5, 0.5],
        "is_shape": [0, 0, 1, 1],
    }
    for name, values in expected.items():
        assert seen[name].tolist() == pytest.approx(values, abs=1e-6), name


def _synthetic_step(
    tokens: torch.Tensor, lengths: torch.Tensor, nll: torch.Tensor, entropies: torch.Tensor
) -> Candidates:
    values = features_from(-nll, lengths, entropies=entropies)
    return Candidates(
        step=0,
        rows=tuple(range(len(tokens))),
        values=values,
        prompt=torch.arange(len(tokens)) // 2,
        kind=torch.arange(len(tokens)) // 2,
        length=lengths,
        responses=tokens,
        logprobs=-nll,
        entropies=entropies,
        end_ids=(9,),
        kind_names=("colour", "shape"),
    )


def testnormal_quantiles_share_the_rank_of_equal_values() -> None:
    values = torch.tensor([[3.0], [1.0], [3.0], [9.0]], dtype=torch.float64)
    quantiles = normal_quantiles(values)[:, 0]
    normal = torch.distributions.Normal(0.0, 1.0)
    torch.testing.assert_close(
        normal.cdf(quantiles), torch.tensor([0.5, 0.125, 0.5, 0.875]).double()
    )


def test_exploration_spends_its_share_at_random(synthetic: ScoredLog) -> None:
    entrant = Fitted(regressors.Ridge, columns=columns.paper_columns, exploration=0.25)
    replay(replace(synthetic, steps=synthetic.steps[:6]), entrant, "0.25")
    selection = entrant.select(synthetic.steps[6].candidates, 28, step=6)
    assert len(selection.explored) == 7
    best = sorted(selection.scores, key=lambda row: -selection.scores[row])[:21]
    assert set(selection.rows) == set(best) | selection.explored
