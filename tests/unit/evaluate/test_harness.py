from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bas_opd.errors import BasOpdError, DataError, ModelError
from bas_opd.evaluate.answering import Output
from bas_opd.evaluate.benchmarks import Scored, benchmark
from bas_opd.evaluate.benchmarks.benchmark import Benchmark, LoadedSet
from bas_opd.evaluate.harness import OUTPUTS, SCORES, Evaluation
from bas_opd.evaluate.judge import Case, Verdict
from bas_opd.evaluate.questions import Question
from bas_opd.evaluate.session import model_folder
from bas_opd.evaluate.store import SampleStore, key_of
from bas_opd.evaluate.tables import QUOTED, latex, markdown
from bas_opd.evaluate.weights import weights_fingerprint
from bas_opd.model.base import small_base

OPTIONS = {"A": "red", "B": "blue"}


class KilledError(Exception):
    pass


class Quiet:
    def start(self, steps: int, what: str, *, done: int) -> None:
        self.done = done

    def advance(self) -> None:
        self.done += 1

    def message(self, text: str) -> None: ...


class Parrot:
    """Says what it was told to, and remembers what it was asked."""

    identity = "parrot"

    def __init__(self, *words: str, dies_after: int = 1_000) -> None:
        self.words, self.dies_after = words, dies_after
        self.asked: list[str] = []

    def answers(self, questions: Sequence[Question]) -> Iterator[tuple[int, Output]]:
        # Backwards, as an answerer may give its answers in any order.
        for place in reversed(range(len(questions))):
            if len(self.asked) == self.dies_after:
                raise KilledError
            self.asked.append(questions[place].id)
            number = int(questions[place].id)
            yield place, Output(text=self.words[number % len(self.words)], is_cut=False)


class Gavel:
    """A judge that says yes to everything, and counts."""

    def __init__(self, identity: str = "gavel") -> None:
        self.identity = identity
        self.cases: list[Case] = []

    def judge_all(self, cases: Sequence[Case], *, poll: object) -> Iterator[tuple[int, Verdict]]:
        for place, case in enumerate(cases):
            self.cases.append(case)
            yield (
                place,
                Verdict(outcome="correct", text="Yes", tries=1, cached=False, fallbacks=()),
            )


def questions(n: int = 6) -> tuple[Question, ...]:
    return tuple(
        Question(
            id=str(number),
            picture=lambda: b"",
            prompt=f"Question {number}?",
            form="choice",
            reference="A",
            options=OPTIONS,
            groups={"category": "x"},
        )
        for number in range(n)
    )


def evaluation(folder: Path, *, model: str = "parrot", fingerprint: str = "set") -> Evaluation:
    return Evaluation(
        benchmark=benchmark("vstar"),
        loaded=LoadedSet(
            benchmark="vstar",
            folder=folder,
            questions=questions(),
            fingerprint=fingerprint,
            is_partial=True,
        ),
        model=model,
        folder=folder / "vstar",
    )


def score(each: Evaluation, judge: Gavel | None = None) -> list[Scored]:
    each.score(judge, Quiet(), poll=lambda: None)  # pyright: ignore[reportArgumentType]
    return list(each.scores(judge))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dies_after", [0, 1, 3, 5])
def test_a_killed_evaluation_asks_no_question_twice(tmp_path: Path, dies_after: int) -> None:
    first, second = Parrot("A", dies_after=dies_after), Parrot("A")
    with pytest.raises(KilledError):
        evaluation(tmp_path).generate(first, Quiet())
    evaluation(tmp_path).generate(second, Quiet())
    assert len(first.asked) == dies_after
    assert sorted(first.asked + second.asked) == [str(number) for number in range(6)]
    third = Parrot("A")
    evaluation(tmp_path).generate(third, Quiet())
    assert third.asked == []


def test_an_answer_cut_short_by_a_crash_is_asked_for_again(tmp_path: Path) -> None:
    evaluation(tmp_path).generate(Parrot("A"), Quiet())
    path = tmp_path / "vstar" / OUTPUTS
    path.write_bytes(path.read_bytes()[:-9])
    again = Parrot("A")
    evaluation(tmp_path).generate(again, Quiet())
    assert len(again.asked) == 1
    assert all(each.is_correct for each in score(evaluation(tmp_path)))


@pytest.mark.parametrize("other", [{"model": "owl"}, {"fingerprint": "another set"}])
def test_another_model_or_set_never_gets_these_answers(
    tmp_path: Path, other: dict[str, str]
) -> None:
    evaluation(tmp_path).generate(Parrot("A"), Quiet())
    score(evaluation(tmp_path))
    changed = evaluation(tmp_path, **other)
    with pytest.raises(BasOpdError, match="6 of 6 questions"):
        score(changed)
    with pytest.raises(BasOpdError, match="have no score"):
        changed.scores(None)
    asked = Parrot("B")
    changed.generate(asked, Quiet())
    assert len(asked.asked) == 6
    assert not any(each.is_correct for each in score(changed))
    assert all(each.is_correct for each in score(evaluation(tmp_path)))


def test_the_rule_decides_what_it_can_read_and_only_the_rest_goes_to_the_judge(
    tmp_path: Path,
) -> None:
    unclear = "Both A and B could be meant here."
    each = evaluation(tmp_path)
    each.generate(Parrot("A", "The answer is B.", unclear), Quiet())
    alone = score(each)
    assert [s.outcome for s in alone] == ["correct", "wrong", "unscored"] * 2
    assert [s.source for s in alone] == ["rule", "rule", "judge"] * 2
    judge = Gavel()
    judged = score(each, judge)
    assert [s.outcome for s in judged] == ["correct", "wrong", "correct"] * 2
    assert [case.answer for case in judge.cases] == [unclear] * 2
    assert judge.cases[0].reference == "(A) red"


def test_the_scores_of_one_judge_are_never_reported_as_those_of_another(tmp_path: Path) -> None:
    each = evaluation(tmp_path)
    each.generate(Parrot("A", "Both A and B could be meant here."), Quiet())
    score(each, Gavel())
    for other in (Gavel("another"), None):
        with pytest.raises(BasOpdError, match=r"3 of 6 answers .* judge"):
            each.scores(other)  # pyright: ignore[reportArgumentType]


def test_a_report_is_of_the_scores_that_were_made_last(tmp_path: Path) -> None:
    each = evaluation(tmp_path)
    each.generate(Parrot("A", "B"), Quiet())
    score(each)
    summary = each.benchmark.summarise(each.scores(None))
    assert (summary.primary.correct, summary.n, summary.is_partial) == (3, 6, True)
    (tmp_path / "vstar" / SCORES).unlink()
    with pytest.raises(BasOpdError, match="--only score"):
        each.scores(None)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with SampleStore(path) as store:
        store.add({"a": {"x": 1}, "b": {"x": 2}})
    path.write_bytes(path.read_bytes().replace(b'"key":"a"', b'"kex":"a"'))
    with pytest.raises(DataError, match=r"samples\.jsonl:1"):
        SampleStore(path)


def test_a_key_depends_on_every_part() -> None:
    assert key_of(a="x", b="y") == key_of(b="y", a="x")
    assert len({key_of(a="x", b="y"), key_of(a="xy", b=""), key_of(a="x", b="z")}) == 3


def test_the_table_shows_the_papers_rows_as_quoted_and_a_partial_set_as_partial() -> None:
    each: Benchmark = benchmark("vstar")
    scored = [
        Scored(id=str(n), outcome="correct" if n % 2 else "wrong", groups={"category": "x"})
        for n in range(10)
    ]
    summaries = [each.summarise(scored)]
    text = markdown("my_model|1", summaries)
    assert r"| my\_model" not in text
    assert r"| my_model\|1 | 50.00 (partial) | -" in text
    assert text.count("(quoted from the paper)") == len(QUOTED)
    assert "10 of 191 questions" in text
    table = latex("my_model & {co}", summaries)
    assert r"my\_model \& \{co\} & 50.00 & -- &" in table
    assert table.count("(quoted)") == len(QUOTED)


def test_the_quoted_rows_average_to_what_the_paper_states() -> None:
    # The paper prints 81.60 for its learned selector at 4B.
    assert round(sum(QUOTED["BAS-OPD (4B)"]) / 7, 2) == 81.60


def test_a_model_is_known_by_any_of_its_bytes_and_by_its_settings(tmp_path: Path) -> None:
    import shutil

    shutil.copytree(small_base(), tmp_path / "copy")
    assert weights_fingerprint(tmp_path / "copy") == weights_fingerprint(small_base())
    weights = tmp_path / "copy" / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    other = weights_fingerprint(tmp_path / "copy")
    assert other != weights_fingerprint(small_base())
    (tmp_path / "copy" / "generation_config.json").write_text("{}")
    assert weights_fingerprint(tmp_path / "copy") != other
    weights.unlink()
    with pytest.raises(ModelError, match="no weights"):
        weights_fingerprint(tmp_path / "copy")


def test_a_run_an_adapter_and_nothing_are_told_apart(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "model").mkdir(parents=True)
    with pytest.raises(ModelError, match="neither a finished run"):
        model_folder(str(run))
    (run / "model" / "config.json").write_text("{}")
    assert model_folder(str(run)) == run / "model"
    assert model_folder(str(run / "model")) == run / "model"
    (run / "model" / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="bas-opd export"):
        model_folder(str(run))
