"""What a served teacher knows, what it is compared on, and what it may send."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image, ImageOps
from stage_fixtures import draw, make_examples, make_model
from teacher_server import TeacherServer, no_fault

from bas_opd.data.views import crop_view
from bas_opd.distill.divergence import divergence_on, jensen_shannon, student_topk
from bas_opd.distill.utility import token_utility
from bas_opd.errors import DataError
from bas_opd.files import hash_of
from bas_opd.serving.client import ServerError, SpendingLimitError
from bas_opd.serving.endpoint import Endpoint
from bas_opd.serving.request_journal import RequestJournal, read_requests, without_retries
from bas_opd.serving.scoring import Answer, ScoringClient, ScoringRequest
from bas_opd.teacher import server_teacher
from bas_opd.teacher.server_teacher import Limits, ServedTeacher, TopLogprobs
from bas_opd.teacher.student_pass import StudentPass
from bas_opd.types import FullLogits, Hooks

VOCABULARY = 40


def logits(seed: int, tokens: int = 30) -> torch.Tensor:
    return 3 * torch.randn(tokens, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def known(teacher: torch.Tensor, tokens: torch.Tensor, k: int) -> TopLogprobs:
    table = teacher.log_softmax(-1)
    top = table.topk(k)
    sampled = table.gather(-1, tokens[:, None])[:, 0]
    answer = Answer(
        ids=top.indices.tolist(), logprobs=top.values.tolist(), sampled=sampled.tolist()
    )
    return TopLogprobs.of(answer, request(tokens.tolist(), k))


def request(
    response: list[int], k: int, chosen: Any = None, chooser: tuple[int, int] = (0, 0)
) -> ScoringRequest:
    return ScoringRequest(
        prompt=(1,),
        response=tuple(response),
        image=b"",
        prompt_length=3,
        k=k,
        chosen=None if chosen is None else numpy.array(chosen, dtype=numpy.int32),
        chooser=chooser,
    )


@pytest.mark.parametrize("k", [1, 4, 39, 40])
def test_the_support_is_the_sampled_token_and_the_likeliest_others(k: int) -> None:
    teacher, tokens = logits(1), torch.randint(0, VOCABULARY, (30,))
    scores = known(teacher, tokens, k)
    table = teacher.log_softmax(-1)
    for place, token in enumerate(tokens.tolist()):
        order = table[place].argsort(descending=True).tolist()
        others = [each for each in order if each != token]
        expected = set(order[:k]) if token in order[:k] else {token, *others[: k - 1]}
        assert set(scores.support()[place].tolist()) == expected
        assert scores.likeliest[place].tolist() == order[:k]
    torch.testing.assert_close(scores.logprobs(scores.support()), table.gather(-1, scores.ids))
    assert scores.topk(k + 1) is None


def test_an_id_that_is_not_known_has_no_log_prob() -> None:
    scores = known(logits(1), torch.zeros(30).long(), 4)
    index = scores.support().clone()
    assert scores.logprobs(index.flip(-1)) is not None
    index[7, 2] = next(i for i in range(VOCABULARY) if i not in index[7].tolist())
    assert scores.logprobs(index) is None


def test_chosen_ids_belong_to_their_prompt_and_step_and_to_the_places_of_the_response() -> None:
    ids = ((1, 2), (3, 4))
    plain = request([4, 5], 2)
    one, *others = (request([4, 5], 2, ids, chooser) for chooser in ((1, 0), (2, 0), (1, 1)))
    assert len({each.key("m") for each in (plain, one, *others)}) == 4
    # Answers of runs that chose nothing are found again.
    assert plain.key("m") == hash_of(["m", 2, [1], [4, 5], ""])
    assert "prompt_logprob_token_ids" not in json.loads(plain.body("m", "r"))["sampling_params"]
    asked = json.loads(one.body("m", "r"))["sampling_params"]
    # Tokens 0 to 2 are the prompt; the row of token 2 predicts the first of the response.
    assert asked["prompt_logprob_start"] == 2
    assert asked["prompt_logprob_token_ids"] == [[1, 2], [3, 4]]


def test_at_the_students_likeliest_tokens_every_term_is_that_of_the_whole_distribution() -> None:
    student, teacher, k = logits(5), logits(6), 8
    index, table = student_topk(student, k), teacher.log_softmax(-1)
    top = table.topk(k)
    answer = Answer(
        ids=top.indices.tolist(),
        logprobs=top.values.tolist(),
        sampled=table[:, 0].tolist(),
        chosen=table.gather(-1, index).tolist(),
    )
    chosen = tuple(map(tuple, index.tolist()))
    scores = TopLogprobs.of(answer, request([0] * 30, k, chosen))
    exact = FullLogits(teacher)
    for support in ("tail", "renormalise"):
        one, other = (
            divergence_on(student, each, scores.support(), alpha=0.5, support=support)
            for each in (scores, exact)
        )
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        token_utility(student, scores, index, support=scores.support()),
        token_utility(student, exact, index),
        atol=1e-5,
        rtol=1e-4,
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_divergence_is_never_above_that_of_the_whole_vocabulary(seed: int) -> None:
    student, teacher = logits(2 * seed), logits(2 * seed + 1)
    tokens = torch.randint(0, VOCABULARY, (30,), generator=torch.Generator().manual_seed(seed))
    whole = jensen_shannon(student.log_softmax(-1), teacher.log_softmax(-1), alpha=0.5)
    for k in (1, 5, 20, 39):
        scores = known(teacher, tokens, k)
        part = divergence_on(student, scores, scores.support(), alpha=0.5, support="tail")
        assert bool((part <= whole + 1e-5).all())
    scores = known(teacher, tokens, VOCABULARY)
    same = divergence_on(student, scores, scores.support(), alpha=0.5, support="tail")
    torch.testing.assert_close(same, whole, atol=1e-5, rtol=1e-4)


def test_the_overlap_is_that_of_the_students_own_top_k() -> None:
    student, teacher, k = logits(3), logits(4), 8
    scores, index = known(teacher, torch.zeros(30).long(), k), student_topk(student, k)
    one, other = (
        token_utility(student, scores, index, support=scores.support(), use_overlap=use)
        for use in (True, False)
    )
    exact, plain = (
        token_utility(student, FullLogits(teacher), index, use_overlap=use) for use in (True, False)
    )
    torch.testing.assert_close(one / other, exact / plain)


def test_a_limit_is_compared_in_exact_decimals() -> None:
    limits = Limits(price=Decimal("0.1"), spend_limit=Decimal("0.3"))
    limits.check(2_000_000, 1_000_000)
    with pytest.raises(SpendingLimitError):
        limits.check(2_000_000, 1_000_001)
    Limits().check(10**12, 10**12)


@pytest.fixture(scope="module")
def server(small_qwen35: Path) -> Any:
    with TeacherServer(small_qwen35).running() as running:
        yield running


def teacher_of(
    server: TeacherServer, folder: Path, student: Any, at_once: int = 1, **options: Any
) -> ServedTeacher:
    endpoint = Endpoint(
        url=server.url,
        model="a-teacher",
        at_once=at_once,
        timeout_seconds=5,
        first_wait_seconds=0.001,
    )
    return ServedTeacher(
        ScoringClient(endpoint, vocabulary=304),
        student.processor,
        crop_view,
        folder / "teacher" / "requests.jsonl",
        k=10,
        limits=Limits(**options),
        hooks=Hooks(asked=lambda step, calls: asked.append((step, calls))),
    )


asked: list[tuple[int, int]] = []


def test_rows_with_the_same_content_are_asked_once_and_every_row_is_counted(
    server: TeacherServer, small_qwen35: Path, tmp_path: Path
) -> None:
    student = make_model(small_qwen35)
    rollouts = draw(student, make_examples(tmp_path))
    rollouts.tokens[1], rollouts.lengths[1] = rollouts.tokens[0], rollouts.lengths[0]
    server.requests, server.fault = [], no_fault
    asked.clear()
    scores = teacher_of(server, tmp_path, student).score(rollouts, (0, 1, 4))
    assert len(server.requests) == 2
    assert asked == [(3, 3)]
    assert torch.equal(scores.answers[0].known, scores.answers[1].known)
    assert scores.scored_tokens == int(rollouts.lengths[[0, 1, 4]].sum())
    journal = read_requests(tmp_path / "teacher" / "requests.jsonl")
    assert journal is not None
    assert (journal.rows(3), journal.requests[3]) == ({0, 1, 4}, 2)
    again = teacher_of(server, tmp_path, student).score(rollouts, (0, 1, 4))
    assert len(server.requests) == 2
    assert asked == [(3, 3)]
    assert torch.equal(again.answers[4].known, scores.answers[4].known)
    packed = torch.cat([chunk.known for chunk in again.chunks((4, 0), 3)])
    assert torch.equal(packed, torch.cat([again.answers[4].known, again.answers[0].known]))


def test_a_stored_answer_is_not_asked_for_again_where_rounding_chooses_other_ids(
    server: TeacherServer, small_qwen35: Path, tmp_path: Path
) -> None:
    student = make_model(small_qwen35)
    rollouts, rows = draw(student, make_examples(tmp_path)), (0, 4)
    server.requests, server.fault = [], no_fault
    chosen = StudentPass(student, k=10).likeliest(rollouts, rows)
    other = replace(
        chosen,
        ids={
            row: numpy.column_stack([each[:, :-1], each[:, -1] ^ 1])
            for row, each in chosen.ids.items()
        },
    )
    first, again = (
        teacher_of(server, tmp_path, student).score(rollouts, rows, each)
        for each in (chosen, other)
    )
    assert len(server.requests) == 2
    for row in rows:
        assert numpy.array_equal(first.answers[row].ids, chosen.ids[row])
        assert torch.equal(first.answers[row].ids, again.answers[row].ids)
    # Another step has another student.
    teacher_of(server, tmp_path, student).score(replace(rollouts, step=4), rows, other)
    assert len(server.requests) == 4


def test_rows_that_only_the_teacher_sees_alike_have_an_answer_each(
    server: TeacherServer, small_qwen35: Path, tmp_path: Path
) -> None:
    """Two pictures with one crop: the student finds other tokens likely in each."""
    student = make_model(small_qwen35)
    rollouts = draw(student, make_examples(tmp_path))
    rollouts.tokens[3], rollouts.lengths[3] = rollouts.tokens[0], rollouts.lengths[0]
    rows = (0, 3)
    chosen = StudentPass(student, k=10).likeliest(rollouts, rows)
    assert not numpy.array_equal(chosen.ids[0], chosen.ids[3])
    server.requests, server.fault = [], no_fault
    teacher = teacher_of(server, tmp_path, student)
    teacher.view = lambda _: crop_view(rollouts.examples[0])
    scores = teacher.score(rollouts, rows, chosen)
    assert len(server.requests) == 2
    for row in rows:
        assert numpy.array_equal(scores.answers[row].ids, chosen.ids[row])
    # At its own likeliest tokens the teacher says the same of both.
    teacher.score(rollouts, rows)
    assert len(server.requests) == 3


def test_the_students_pass_computes_the_rows_it_is_asked_for_and_finds_what_the_learner_finds(
    small_qwen35: Path, tmp_path: Path
) -> None:
    student = make_model(small_qwen35)
    rollouts, rows = draw(student, make_examples(tmp_path)), (1, 4, 5)
    calls: list[Any] = []
    hooks = Hooks(asked=lambda *call: calls.append(call))
    found = StudentPass(student, k=7, hooks=hooks).likeliest(rollouts, rows)
    assert not calls, "The student is no teacher: its pass is no call."
    assert set(found.ids) == set(rows)
    prompts = sum(rollouts.prompts[number].length for number in (0, 1))
    assert found.processed_tokens == prompts + int(rollouts.lengths[list(rows)].sum()) - len(rows)
    for row in rows:
        response = rollouts.tokens[row, : int(rollouts.lengths[row])]
        prompt = rollouts.prompts[rollouts.prompt_of(row)]
        with student.compute():
            hidden = student.response_hidden([prompt], [0], [response])
        expected = student_topk(student.logits(hidden), 7)
        assert numpy.array_equal(found.ids[row], expected)
        assert found.ids[row].dtype == numpy.int32  # Of many rows they would fill the memory.


def test_no_rows_send_nothing_and_write_nothing(
    server: TeacherServer, small_qwen35: Path, tmp_path: Path
) -> None:
    student = make_model(small_qwen35)
    rollouts = draw(student, make_examples(tmp_path))
    server.requests = []
    scores = teacher_of(server, tmp_path, student).score(rollouts, ())
    assert (scores.rows, scores.scored_tokens, scores.processed_tokens) == ((), 0, 0)
    assert scores.support is None
    assert not server.requests
    assert not (tmp_path / "teacher").exists()


@pytest.mark.parametrize("at_once", [1, 6])
@pytest.mark.parametrize("place", [0, 5])
def test_a_row_that_fails_by_itself_is_dropped_whenever_it_is_asked_and_others_are_asked(
    place: int, at_once: int, server: TeacherServer, small_qwen35: Path, tmp_path: Path
) -> None:
    """A repeat leaves enough for rows that were never asked."""
    student = make_model(small_qwen35)
    rollouts = draw(student, make_examples(tmp_path))
    server.requests = []
    bad = set[str]()

    def always_this(number: int, content: dict[str, Any]) -> str | None:
        bad.add(server.key(content) if number == place else "")
        return "500" if server.key(content) in bad else None

    server.fault = always_this
    rows = (0, 1, 2, 3, 4, 5)
    scores = teacher_of(server, tmp_path, student, at_once, retries=2).score(rollouts, rows)
    server.fault = no_fault
    assert len(scores.rows) == 5
    assert len(server.requests) == 5 + 3


@pytest.mark.parametrize(
    ("in_tokens", "retries", "fails", "sent"),
    [
        (False, 0, 9, [1, 9, 9]),
        (True, 0, 9, [1, 9]),
        (True, 1, 9, [1, 9, 9]),
        (True, 0, 1, [1, 1, 9]),
    ],
)
def test_a_request_that_a_shared_answer_leaves_over_is_no_way_around_a_budget_in_tokens(
    in_tokens: bool, retries: int, fails: int, sent: list[int],
    server: TeacherServer, small_qwen35: Path, tmp_path: Path,
) -> None:  # fmt: skip
    """Two rows of one token share their content, and a third has nine: 11 in all."""
    student = make_model(small_qwen35)
    rollouts, rows = draw(student, make_examples(tmp_path)), (0, 1, 4)
    rollouts.tokens[1] = rollouts.tokens[0]
    rollouts.lengths[list(rows)] = torch.tensor([1, 1, 9])
    ends = [rollouts.tokens[row, : int(rollouts.lengths[row])].tolist() for row in (0, 4)]

    def tokens(content: dict[str, Any]) -> int:
        """Of the response, which is one of two."""
        (found,) = [len(end) for end in ends if content["token_ids"][-len(end) :] == end]
        return found

    server.requests = []
    server.fault = lambda _, content: "500" if tokens(content) == fails else None
    options = {"retries": retries, "in_tokens": in_tokens}
    kept = teacher_of(server, tmp_path, student, **options).score(rollouts, rows).rows
    assert kept == ((0, 1) if fails == 9 else (4,))
    assert sorted(map(tokens, server.requests)) == sent
    server.fault = no_fault
    again = teacher_of(server, tmp_path, student, **options).score(rollouts, rows)
    assert again.rows == kept
    assert len(server.requests) == len(sent)
    journal = read_requests(tmp_path / "teacher" / "requests.jsonl")
    assert journal is not None
    assert sorted(journal.response_tokens(rollouts.step)) == sent
    assert (without_retries(sent, retries) <= 11) == in_tokens


def test_a_row_that_has_no_room_leaves_what_there_is_to_others(
    server: TeacherServer, small_qwen35: Path, tmp_path: Path
) -> None:
    """A step is drawn again with other tokens, after requests with 9 and with 5 response tokens."""
    student = make_model(small_qwen35)
    rollouts, rows = draw(student, make_examples(tmp_path)), (4, 0, 1)
    rollouts.tokens[1] = rollouts.tokens[0]
    rollouts.lengths[list(rows)] = torch.tensor([5, 1, 1])
    teacher = teacher_of(server, tmp_path, student, in_tokens=True, retries=1)
    for key, tokens in (("before", 9), ("before that", 5)):
        teacher.journal.write(rollouts.step, 4, key, 20, tokens)
    server.requests = []
    server.fault = lambda number, _: "500" if number == 0 else None
    assert teacher.score(rollouts, rows).rows == (0, 1)
    server.fault = no_fault
    assert list(teacher.journal.response_tokens(rollouts.step)) == [9, 5, 1, 1]


def test_of_a_server_that_answers_nothing_no_row_is_dropped(
    server: TeacherServer, small_qwen35: Path, tmp_path: Path
) -> None:
    student = make_model(small_qwen35)
    rollouts, rows = draw(student, make_examples(tmp_path)), (0, 1, 2)
    server.fault = lambda *_: "500"
    with pytest.raises(ServerError, match=r"failed \d times? in a row"):
        teacher_of(server, tmp_path, student, at_once=3, retries=0).score(rollouts, rows)
    server.fault = no_fault
    # Their requests are spent: once the server is back, there is nothing to wait for.
    assert teacher_of(server, tmp_path, student, retries=0).score(rollouts, rows).rows == ()
    assert teacher_of(server, tmp_path, student, retries=3).score(rollouts, rows).rows == rows


def test_an_answer_is_found_though_its_picture_was_written_in_other_bytes(
    server: TeacherServer, small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another version of Pillow or zlib does; other pixels have answers of their own."""
    student = make_model(small_qwen35)
    rollouts, rows = draw(student, make_examples(tmp_path)), (0, 4)
    server.requests, server.fault = [], no_fault
    teacher = teacher_of(server, tmp_path, student)
    teacher.score(rollouts, rows)

    def written(image: Image.Image) -> bytes:
        file = io.BytesIO()
        image.save(file, format="PNG", compress_level=0)
        return file.getvalue()

    view = teacher.view
    with monkeypatch.context() as patch:
        patch.setattr(server_teacher, "_png", written)
        assert teacher.score(rollouts, rows).rows == rows
    assert len(server.requests) == 2
    changes: list[Callable[[Image.Image], Image.Image]] = [
        ImageOps.invert,
        lambda image: image.transpose(Image.Transpose.ROTATE_90),
    ]
    for number, change in enumerate(changes, start=1):
        teacher.view = lambda each, change=change: (change(view(each)[0]), view(each)[1])
        teacher.score(replace(rollouts, step=3 + number), rows)
        assert len(server.requests) == 2 + 2 * number


def test_a_step_that_draws_other_tokens_asks_as_far_as_its_requests_go(
    server: TeacherServer, small_qwen35: Path, tmp_path: Path
) -> None:
    student = make_model(small_qwen35)
    rollouts = draw(student, make_examples(tmp_path))
    rows, notices = (0, 1, 2, 3, 4, 5), list[str]()
    teacher_of(server, tmp_path, student, retries=2).score(rollouts, rows)
    server.requests = []
    rollouts.tokens[:, 0] += 1  # As on other hardware, after a resume.
    teacher = teacher_of(server, tmp_path, student, retries=2)
    teacher.hooks = Hooks(notice=notices.append)
    assert len(teacher.score(rollouts, rows).rows) == 2
    assert len(server.requests) == 2
    (notice,) = notices
    assert "4 of 6 selected rows" in notice
    assert "has sent 8 requests: one for each row and 2 more" in notice


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[1]",
        '{"step": 1, "row": 2, "key": "k", "tokens": -1}',
        '{"step": 1, "row": 2, "key": "k", "tokens": 5, "response_tokens": 6}',
        "{",
    ],
)
def test_a_damaged_journal_is_a_sentence(line: str, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(f'{{"schema_version": 1}}\n{line}\n')
    with pytest.raises(DataError, match=r"requests\.jsonl:2 .*Restore the file"):
        read_requests(path)


def test_a_journal_of_before_is_continued_and_says_that_it_has_newer_lines(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    old = '{"step": 0, "row": 4, "key": "k", "tokens": 70}'
    path.write_text(f'{{"schema_version": 1}}\n{old}\n')
    journal = RequestJournal.resume(path)
    journal.write(0, 5, "l", 30, 9)
    assert (journal.tokens, journal.requests[0]) == (100, 2)
    assert list(journal.response_tokens(0)) == [0, 9]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["schema_version"] for each in lines if "schema_version" in each] == [1, 2]
    again = RequestJournal.resume(path)
    assert (again.tokens, list(again.response_tokens(0))) == (100, [0, 9])
    assert len(path.read_text().splitlines()) == 4


def test_a_line_that_a_kill_cut_short_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "teacher" / "requests.jsonl"
    journal = RequestJournal.resume(path)
    journal.write(0, 4, "k", 70)
    with path.open("ab") as file:
        file.write(b'{"step": 0, "row"')
    again = RequestJournal.resume(path)
    again.write(0, 5, "l", 30)
    assert (again.tokens, again.requests[0], again.rows(0)) == (100, 2, {4, 5})
    read = read_requests(path)
    assert read is not None
    assert (read.tokens, read.requests[0]) == (100, 2)
