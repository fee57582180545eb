from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from progress_fixtures import Quiet

from bas_opd.errors import BasOpdError, DataError
from bas_opd.evaluate import evaluation as evaluations
from bas_opd.evaluate.benchmarks import Scored, benchmark
from bas_opd.evaluate.benchmarks.benchmark import LoadedSet
from bas_opd.evaluate.evaluation import Evaluation
from bas_opd.evaluate.judge import Case, Verdict
from bas_opd.evaluate.questions import Output, Picture, Question
from bas_opd.evaluate.samples import OUTPUTS, SCORES, AppendedLines, Line, read_samples, scored_of
from bas_opd.files import hash_of
from bas_opd.serving.client import ServerError

OPTIONS = {"A": "red", "B": "blue"}


class KilledError(Exception):
    pass


class Parrot:
    """Gives prescribed answers, and records the questions."""

    def __init__(self, *words: str, dies_after: int = 1_000, refuses: Collection[int] = ()) -> None:
        self.words, self.dies_after, self.refuses = words, dies_after, refuses
        self.asked: list[str] = []

    def answers(self, questions: Sequence[Question]) -> Iterator[tuple[int, Output]]:
        # Backwards, as an answerer may give its answers in any order.
        for place in reversed(range(len(questions))):
            if len(self.asked) == self.dies_after:
                raise KilledError
            self.asked.append(questions[place].id)
            number = int(questions[place].id)
            if number in self.refuses:
                yield place, Output(text="", is_cut=False, refusal="It said 400.")
                continue
            word = self.words[number % len(self.words)]
            yield place, Output(text=word.removesuffix("..."), is_cut=word.endswith("..."))


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
                Verdict(outcome="correct", text="Yes", fallbacks=()),
            )


def questions(n: int = 6) -> tuple[Question, ...]:
    return tuple(
        Question(
            id=str(number),
            picture=Picture(lambda: b"", name="none"),
            prompt=f"Question {number}?",
            form="choice",
            reference="A",
            options=OPTIONS,
            groups={"category": "x"},
        )
        for number in range(n)
    )


def evaluation(
    folder: Path, *, model: str = "parrot", fingerprint: str = "set", n: int = 6
) -> Evaluation:
    return Evaluation(
        benchmark=benchmark("vstar"),
        loaded=LoadedSet(
            benchmark="vstar",
            folder=folder,
            questions=questions(n),
            fingerprint=fingerprint,
            is_partial=True,
        ),
        model=model,
        folder=folder / "vstar",
    )


def score(each: Evaluation, judge: Gavel | None = None) -> list[Scored]:
    each.score(judge, Quiet(), poll=lambda: None)  # pyright: ignore[reportArgumentType]
    return verdicts(each.scores(judge))  # pyright: ignore[reportArgumentType]


def verdicts(lines: list[Line]) -> list[Scored]:
    return [scored_of(line) for line in lines]


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
    tmp_path: Path, other: dict[str, Any]
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
    summary = each.benchmark.summarise(verdicts(each.scores(None)))
    assert (summary.primary.correct, summary.n, summary.is_partial) == (3, 6, True)
    (tmp_path / "vstar" / SCORES).unlink()
    with pytest.raises(BasOpdError, match="--only score"):
        each.scores(None)


def test_the_scores_of_two_models_and_of_two_judges_live_side_by_side(tmp_path: Path) -> None:
    one, two = evaluation(tmp_path), evaluation(tmp_path, model="owl")
    one.generate(Parrot("A", "Both A and B could be meant here."), Quiet())
    two.generate(Parrot("B"), Quiet())
    alone, judged, other = score(one), score(one, Gavel()), score(two)
    assert verdicts(one.scores(None)) == alone
    lines = one.scores(Gavel())  # pyright: ignore[reportArgumentType]
    assert verdicts(lines) == judged
    assert verdicts(two.scores(None)) == other
    before = (tmp_path / "vstar" / SCORES).read_bytes()
    score(two)
    assert (tmp_path / "vstar" / SCORES).read_bytes() == before, "nothing piles up"


def test_an_answer_is_read_by_the_rule_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = evaluation(tmp_path)
    each.generate(Parrot("A", "B", "Both A and B could be meant here."), Quiet())
    first = score(each)
    read: list[str] = []
    monkeypatch.setattr(evaluations, "by_rule", lambda _, question, __: read.append(question.id))
    judge = Gavel()
    again = score(each, judge)
    assert read == ["2", "5"], "what no rule could read is tried again"
    assert len(judge.cases) == 2
    assert [s for s in again if s.source == "rule"] == [s for s in first if s.source == "rule"]


def test_a_score_of_an_early_version_gets_the_groups_of_its_question(tmp_path: Path) -> None:
    each = evaluation(tmp_path)
    each.generate(Parrot("A", "B"), Quiet())
    first = score(each)
    path = tmp_path / "vstar" / SCORES
    whole = path.read_bytes()
    lines = [json.loads(line) for line in whole.splitlines()]
    assert all(line.pop("groups") for line in lines)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert score(each) == first
    assert path.read_bytes() == whole


def test_a_score_of_another_output_is_not_reused(tmp_path: Path) -> None:
    each = evaluation(tmp_path)
    each.generate(Parrot("A"), Quiet())
    assert all(s.is_correct for s in score(each))
    (tmp_path / "vstar" / OUTPUTS).unlink()
    each.generate(Parrot("B", "Both A and B could be meant here."), Quiet())
    assert [s.outcome for s in score(each)] == ["wrong", "unscored"] * 3


def test_cut_empty_and_refused_answers_are_recorded(tmp_path: Path) -> None:
    each = evaluation(tmp_path)
    each.generate(Parrot("A", "It is the colour...", " ", "A...", refuses=[4]), Quiet())
    scored = score(each)
    assert [s.note for s in scored] == ["", "cut", "empty", "cut", "refused", "cut"]
    assert [s.outcome for s in scored] == [
        *("correct", "wrong", "wrong", "correct", "unscored", "wrong"),
    ]
    assert {s.source for s in scored} == {"rule"}
    assert verdicts(each.score(None, Quiet(), poll=lambda: None)) == scored


def test_a_question_that_is_refused_is_named_and_asked_again_and_blocks_no_other(
    tmp_path: Path,
) -> None:
    shown = Quiet()
    evaluation(tmp_path).generate(Parrot("A", refuses=[1, 4]), shown)
    (message,) = shown.messages
    assert message.startswith("2 questions of V*Bench were refused, '4' first: It said 400.")
    assert evaluation(tmp_path).answered() == 4
    before = (tmp_path / "vstar" / OUTPUTS).read_bytes()
    still = Parrot("A", refuses=[1, 4])
    evaluation(tmp_path).generate(still, Quiet())
    assert sorted(still.asked) == ["1", "4"]
    assert (tmp_path / "vstar" / OUTPUTS).read_bytes() == before
    healed = Parrot("A")
    evaluation(tmp_path).generate(healed, Quiet())
    assert sorted(healed.asked) == ["1", "4"]
    assert all(s.is_correct for s in score(evaluation(tmp_path)))


def test_a_server_that_refuses_everything_is_not_asked_to_the_end_nor_blocked_by_a_few(
    tmp_path: Path,
) -> None:
    everything = Parrot("A", refuses=range(60))
    with pytest.raises(ServerError, match=r"20 questions of .* '59' first: It said 400\."):
        evaluation(tmp_path, n=60).generate(everything, Quiet())
    assert len(everything.asked) == 20
    evaluation(tmp_path, n=60).generate(Parrot("A", refuses=range(30, 60)), Quiet())
    assert evaluation(tmp_path, n=60).answered() == 30


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with AppendedLines(path) as file:
        file.append("a", {"x": 1})
        file.append("b", {"x": 2})
    path.write_bytes(path.read_bytes().replace(b'"key":"a"', b'"kex":"a"'))
    with pytest.raises(DataError, match=r"samples\.jsonl:1"):
        read_samples(path)


def test_keys_are_those_of_every_earlier_version() -> None:
    """Otherwise no evaluation could be resumed after an update."""
    parts = {"model": "m", "benchmark": "b", "id": "1", "prompt": "What colour is it? é"}
    assert hash_of(parts) == "3feab11a06a396c1c601e9637d85c5d93e49edf32225271f7b4c99f73e9d25f3"
