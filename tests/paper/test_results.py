"""Published numbers come from records, and nothing is published that is not in them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from bas_opd.model.base import LEARNT_KINDS, small_base
from bas_opd.reproduce.arms import BASE
from bas_opd.reproduce.policies import base_hash
from bas_opd.reproduce.results import read_results
from bas_opd.reproduce.table import folder_table, replace_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results/policies"
PAGE = (ROOT / "docs/results.md").read_text(encoding="utf-8")


def test_the_published_table_is_that_of_its_records() -> None:
    assert replace_table(PAGE, folder_table(RESULTS)) == PAGE


def test_the_records_are_of_the_shipped_base_over_at_least_five_seeds() -> None:
    results = read_results(RESULTS)
    assert {result.base for result in results} == {base_hash(small_base())}
    assert all(set(result.kinds) == set(LEARNT_KINDS) and result.n >= 4_000 for result in results)
    trained = {result.arm for result in results} - {BASE}
    assert {"full", "random25", "entropy25", "learned10", "learned25", "learned50"} < trained
    for arm in trained:
        assert len({result.seed for result in results if result.arm == arm}) >= 5
    assert all(result.cost.overrun == 0 for result in results if result.cost)


def test_the_learning_rate_is_the_one_that_did_best_on_val() -> None:
    rates: dict[float, list[float]] = {}
    for path in sorted((ROOT / "docs/results/learning-rate").glob("*-lr*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        assert result["split"] == "val"
        shares = [kind["correct"] / kind["n"] for kind in result["kinds"].values()]
        rates.setdefault(result["learning_rate"], []).append(sum(shares) / len(shares))
    best = max(rates, key=lambda rate: sum(rates[rate]))
    assert {result.learning_rate for result in read_results(RESULTS)} == {best}
    for rate, (full, random) in rates.items():
        (line,) = re.findall(rf"^\| (?:\*\*)?{rate:g}(?:\*\*)? \|.*$", PAGE, re.MULTILINE)
        assert f"{full:.2%}" in line
        assert f"{random:.2%}" in line
