from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from audit_fixtures import PROVENANCE

from bas_opd.audit.records import (
    Candidate,
    CheckpointGeometry,
    GeometryAudit,
    Pair,
    UtilityAudit,
)
from bas_opd.errors import ConfigError, DataError
from bas_opd.report.figures import (
    Arm,
    accuracy_by_part,
    accuracy_cost,
    budget_sweep,
    gradient_geometry,
    save,
    utility_diagnostics,
)
from bas_opd.report.figures.arms import over_seeds
from bas_opd.stats.resampling import Estimate


def estimate(value: float, reach: float = 0.02) -> Estimate:
    return Estimate(value=value, low=value - reach, high=value + reach)


def arm(name: str, budget: float | None, mean: float, share: float | None = None) -> Arm:
    parts = {"colour": estimate(mean - 0.1), "count": estimate(mean + 0.1)}
    return Arm(name=name, budget=budget, parts=parts, mean=estimate(mean), token_share=share)


ARMS = [
    arm("base", None, 0.4),
    arm("full", 1.0, 0.55, 1.0),
    arm("learned10", 0.1, 0.5, 0.08),
    arm("learned25", 0.25, 0.6, 0.16),
]


def utility_audit(predicted: bool = True, **changes: Any) -> UtilityAudit:
    candidates = [
        Candidate(
            batch=batch,
            row=row,
            example=f"{batch}-{row}",
            kind="colour",
            tokens=5,
            predicted=float(row) if predicted else None,
            entropy=float(-row),
            utility=0.01 * (row + 1),
        )
        for batch in range(4)
        for row in range(8)
    ]
    values = {**PROVENANCE, "step": 111, "dropped": 0, "candidates": candidates, **changes}
    return UtilityAudit(**values)


def geometry_audit(**changes: Any) -> GeometryAudit:
    pair = Pair(selected_norm=2.0, unselected_norm=1.0, cosine=0.5, selected=2, unselected=6)
    checkpoints = [
        CheckpointGeometry(step=step, pairs=[pair, pair], mean=pair) for step in (18, 36)
    ]
    return GeometryAudit(**{**PROVENANCE, "checkpoints": checkpoints, **changes})


def texts(figure: Any) -> str:
    import matplotlib.text

    return "\n".join(each.get_text() for each in figure.findobj(matplotlib.text.Text))


def panels_of(figure: Any) -> Any:
    """The panels, whose matplotlib types say too little of what is in them."""
    return figure.axes


def test_bars_stand_at_the_accuracies_with_the_mean_last() -> None:
    (axes,) = panels_of(accuracy_by_part(ARMS, source="s"))
    heights = [bar.get_height() for bar in axes.patches]
    assert heights[:3] == pytest.approx([30, 50, 40])
    assert len(heights) == 3 * len(ARMS)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["colour", "count", "mean"]


def test_a_sweep_has_a_panel_for_each_part_and_marks_the_maximum_and_full_querying() -> None:
    figure = budget_sweep(ARMS, source="s")
    shown = [axes for axes in panels_of(figure) if axes.axison]
    assert [axes.get_title(loc="left") for axes in shown] == ["colour", "count", "mean"]
    lines = shown[-1].get_lines()
    curve = next(line for line in lines if len(line.get_xdata()) == 3)
    assert list(curve.get_xdata()) == pytest.approx([10, 25, 100])
    assert list(curve.get_ydata()) == pytest.approx([50, 60, 55])
    assert any(list(line.get_ydata()) == pytest.approx([60]) for line in lines)
    assert any(list(line.get_ydata()) == pytest.approx([55, 55]) for line in lines)


def test_a_sweep_of_one_budget_is_refused() -> None:
    with pytest.raises(DataError, match="two budgets"):
        budget_sweep(ARMS[:2], source="s")


def test_cost_is_a_share_of_full_querying_and_the_base_a_line() -> None:
    figure = accuracy_cost(ARMS, source="the source")
    left, right = panels_of(figure)
    widths = [bar.get_width() for bar in right.patches]
    assert widths == pytest.approx([100, 8, 16])
    assert [label.get_text() for label in left.get_yticklabels()] == [
        "full  (100 % queried)",
        "learned10  (10 % queried)",
        "learned25  (25 % queried)",
    ]
    assert "base" in texts(figure)
    assert "the source" in texts(figure)


def test_cost_without_full_querying_is_refused() -> None:
    with pytest.raises(DataError, match=r"select\.policy=full"):
        accuracy_cost([arm("learned25", 0.25, 0.6)], source="s")


def test_the_diagnostics_show_every_ranking_the_bands_and_their_tests() -> None:
    figure = utility_diagnostics(utility_audit())
    capture, bands = panels_of(figure)
    assert [text.get_text() for text in capture.get_legend().get_texts()] == [
        "oracle",
        "learned",
        "entropy",
        "random",
    ]
    assert [bar.get_height() for bar in bands.patches] == pytest.approx(
        [0.075, 0.055, 0.035, 0.015]
    )
    assert texts(figure).count("p = ") == 3
    assert "32 candidates of 4 training batches" in texts(figure)


def test_a_single_batch_is_drawn_without_intervals() -> None:
    alone = [each for each in utility_audit().candidates if each.batch == 0]
    figure = utility_diagnostics(utility_audit(candidates=alone))
    assert [bar.get_height() for bar in panels_of(figure)[1].patches] == pytest.approx(
        [0.075, 0.055, 0.035, 0.015]
    )
    assert not list(panels_of(figure)[1].collections)


def test_without_predictions_only_the_capture_is_drawn() -> None:
    figure = utility_diagnostics(utility_audit(predicted=False))
    (capture,) = panels_of(figure)
    assert "learned" not in [text.get_text() for text in capture.get_legend().get_texts()]


def test_the_geometry_has_a_panel_for_each_checkpoint_with_its_ratio_and_cosine() -> None:
    figure = gradient_geometry(geometry_audit())
    assert [axes.get_title(loc="left") for axes in panels_of(figure)] == ["step 18", "step 36"]
    assert "ratio 2.00 ± 0" in texts(figure)
    assert "cosine 0.500 ± 0" in texts(figure)
    tips = {tuple(round(x, 6) for x in each.xy) for each in arrows_of(figure.axes[0])}
    assert tips == {(1.0, 0.0), (0.25, round(0.5 * math.sqrt(0.75), 6))}


def arrows_of(axes: Any) -> Sequence[Any]:
    from matplotlib.text import Annotation

    return axes.findobj(Annotation)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: utility_diagnostics(utility_audit(teacher="student")),
        lambda: gradient_geometry(geometry_audit(teacher="student")),
    ],
)
def test_a_stand_in_for_the_teacher_is_named_on_the_figure(draw: Any) -> None:
    assert "IN PLACE OF" in texts(draw())


def test_a_figure_is_saved_as_svg_and_pdf_and_the_same_numbers_give_the_same_bytes(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        files = save(accuracy_cost(ARMS, source="s"), tmp_path / name)
        assert [file.suffix for file in files] == [".svg", ".pdf"]
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()
    assert not re.search(rb"(href|src)=\"http", (tmp_path / "a.svg").read_bytes())


def test_without_matplotlib_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"bas-opd\[figures\]"):
        accuracy_cost(ARMS, source="s")


def test_one_seed_has_no_interval() -> None:
    assert over_seeds([0.5]) == Estimate(value=0.5, low=0.5, high=0.5)
    several = over_seeds([0.4, 0.6])
    assert several.low < 0.4 < 0.6 < several.high
