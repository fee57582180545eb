"""FineSearch as a benchmark, and its rule for a right answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bas_opd.answers import ends_with
from bas_opd.data.finesearch import make_finesearch
from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import Scored, benchmark

FINESEARCH = benchmark("finesearch")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedSet:
    folder = tmp_path_factory.mktemp("finesearch") / "set"
    return make_finesearch(folder, split="test", size="large", n=5, kinds=("count", "pair"))


def test_a_prepared_set_of_any_size_is_asked_as_it_is(prepared: PreparedSet) -> None:
    loaded = FINESEARCH.load(prepared.folder)
    assert len(loaded) == 5
    assert not loaded.is_partial
    assert FINESEARCH.is_right is ends_with
    for question, example in zip(loaded.questions, prepared.examples, strict=True):
        assert (question.id, question.prompt) == (example.id, example.question)
        assert (question.form, question.reference) == ("short", example.answer)
        assert question.picture() == example.image.read_bytes()
    assert [each.groups["kind"] for each in loaded.questions] == [
        "count",
        "pair",
        "pair",
        "count",
        "pair",
    ]
    assert loaded.questions[1].groups["pair"] == loaded.questions[2].groups["pair"]
    assert "pair" not in loaded.questions[0].groups


def test_a_namesake_of_another_kind_is_no_half_of_a_pair(prepared: PreparedSet) -> None:
    record = FINESEARCH.read(prepared.folder)[1]
    assert record.text("id").endswith("-a")
    (question,) = FINESEARCH.ask([replace(record, cells={**record.cells, "kind": "count"})])
    assert question.groups == {"kind": "count"}


def test_a_missing_set_is_made_not_downloaded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="bas-opd data make finesearch OUT --split test"):
        FINESEARCH.load(str(tmp_path / "none"))


def test_the_mean_is_over_kinds() -> None:
    def scored(name: str, kind: str, is_right: bool, **groups: str) -> Scored:
        outcome = "correct" if is_right else "wrong"
        return Scored(id=name, outcome=outcome, groups={"kind": kind, **groups})

    summary = FINESEARCH.summarise(
        [
            scored("1", "count", False),
            scored("2-a", "pair", True, pair="2"),
            scored("2-b", "pair", True, pair="2"),
            scored("3-a", "pair", True, pair="3"),
        ]
    )
    numbers = {(each.name, each.part): each.value for each in summary.also}
    assert summary.primary.value == 0.5
    assert numbers == {
        ("all questions", ""): 0.75,
        ("accuracy", "count"): 0.0,
        ("accuracy", "pair"): 1.0,
        ("pair accuracy", ""): 1.0,
    }
    assert not summary.is_partial


def test_of_nothing_there_is_no_number() -> None:
    summary = FINESEARCH.summarise([])
    assert (summary.n, summary.primary.value, summary.deferral_rate) == (0, None, 0.0)


@pytest.mark.parametrize(
    "output",
    [
        "red",
        "Red",
        "RED.",
        "The plate is red.",
        "I see a red plate. The answer is red.",
        "red .",
        " red\n",
        "It is “red” no: 'red'!",
    ],
)
def test_a_response_that_ends_with_the_answer_is_right(output: str) -> None:
    assert ends_with(output, "red")


@pytest.mark.parametrize(
    "output",
    [
        "",
        "  ",
        ".",
        "blue",
        "red or blue",
        "It is red, I think",
        "redder",
        "infrared",
        "re d",
        "red-blue",
        "The answer is: red plate.",
    ],
)
def test_a_response_that_ends_otherwise_is_wrong(output: str) -> None:
    assert not ends_with(output, "red")


def test_a_number_is_its_digits_and_nothing_else() -> None:
    assert ends_with("There are 3.", "3")
    assert not ends_with("There are 33.", "3")
    assert not ends_with("There are three.", "3")


def test_the_case_of_the_answer_does_not_matter() -> None:
    assert ends_with("yes", "Yes")
