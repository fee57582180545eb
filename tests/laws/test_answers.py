"""What holds for the readings of any output."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bas_opd.answers import Answer, choice, short, yes_no

OPTIONS = {"A": "red", "B": "blue", "C": "green", "D": "yellow"}
COLOURS = list(OPTIONS.values())

pieces = st.sampled_from(
    [
        "A",
        "b",
        "(C)",
        "**D**",
        " red",
        " dark blue",
        " is ",
        " the answer is ",
        "not ",
        " and ",
        "Yes",
        "no",
        ", ",
        ". ",
        "\n",
        "?",
        "wait, ",
        "actually ",
        "three ",
        "3",
        " cm",
        "1,000",
        "\\boxed{",
        "}",
        "<answer>",
        "</answer>",
        "<think>",
        "</think>",
        '{"answer": "',
        '"}',
        "$",
        "I cannot tell",
        "there is no ",
        "none of the above",
        "答案是",
        "是",
        "нет",
        "\u200b",
    ]
)
outputs = st.one_of(st.text(max_size=60), st.lists(pieces, max_size=14).map("".join))
before = st.sampled_from(
    [
        "",
        "Let me look at the picture. ",
        "Sure! ",
        "I see a house near a road.\n\n",
        "<think>It may be A, or no. 7 of them?</think>",
        "**Solution**\n\n",
    ]
)
after = st.sampled_from(["", " ", ".", "\n", "\n\nThe picture was taken by day.", "<|im_end|>"])


def is_well_formed(answer: Answer, values: set[object]) -> bool:
    if answer.status == "answered":
        return answer.value in values
    return answer.value is None and answer.status in ("deferred", "none")


@settings(max_examples=300, deadline=None)
@given(output=outputs, texts=st.lists(st.text(max_size=12), max_size=6))
def test_no_output_makes_a_letter_that_was_not_offered(output: str, texts: list[str]) -> None:
    options = dict(zip("ABCDEF", texts, strict=False))
    assert is_well_formed(choice(output, options), set(options))


@settings(max_examples=300, deadline=None)
@given(output=outputs)
def test_any_text_is_read_as_yes_as_no_or_as_neither(output: str) -> None:
    assert is_well_formed(yes_no(output), {"yes", "no"})


@settings(max_examples=300, deadline=None)
@given(output=outputs, reference=st.one_of(st.text(max_size=12), pieces))
def test_any_text_meets_a_reference_misses_it_or_leaves_it_open(
    output: str, reference: str
) -> None:
    assert is_well_formed(short(output, reference), {True, False})


@settings(max_examples=200, deadline=None)
@given(
    letter=st.sampled_from("ABCD"),
    said=st.sampled_from(
        [
            "The answer is {}",
            "Answer: ({})",
            "The correct answer is **{}**",
            "\\boxed{{{}}}",
            "<answer>{}</answer>",
            "So it must be option {}",
            "答案是{}",
        ]
    ),
    head=before,
    tail=after,
)
def test_harmless_words_around_a_choice_leave_it_as_it_is(
    letter: str, said: str, head: str, tail: str
) -> None:
    assert choice(head + said.format(letter) + tail, OPTIONS).value == letter


@settings(max_examples=200, deadline=None)
@given(
    word=st.sampled_from(["yes", "no"]),
    said=st.sampled_from(
        ["The answer is {}", "Answer: {}", "**Answer:** {}", "\\boxed{{{}}}", "<answer>{}</answer>"]
    ),
    head=before,
    tail=after,
)
def test_harmless_words_around_a_yes_or_a_no_leave_it_as_it_is(
    word: str, said: str, head: str, tail: str
) -> None:
    assert yes_no(head + said.format(word) + tail).value == word


@settings(max_examples=200, deadline=None)
@given(
    word=st.sampled_from(COLOURS),
    reference=st.sampled_from(COLOURS),
    said=st.sampled_from(
        ["The answer is {}", "Answer: {}", "\\boxed{{{}}}", "<answer>{}</answer>"]
    ),
    head=before,
    tail=after,
)
def test_harmless_words_around_a_short_answer_leave_it_as_it_is(
    word: str, reference: str, said: str, head: str, tail: str
) -> None:
    assert short(head + said.format(word) + tail, reference).value is (word == reference)


@settings(max_examples=200, deadline=None)
@given(
    order=st.permutations("ABCD"),
    text=st.sampled_from(COLOURS),
    said=st.sampled_from(
        ["{}", "The car is {}.", "The answer is {}.", "It is not {} at all.", "{} or pink", "({})"]
    ),
)
def test_options_in_another_order_give_the_same_text(
    order: list[str], text: str, said: str
) -> None:
    moved = dict(zip(order, COLOURS, strict=True))
    here, there = choice(said.format(text), OPTIONS), choice(said.format(text), moved)
    assert here.status == there.status
    assert OPTIONS.get(str(here.value)) == moved.get(str(there.value))


marks = st.sampled_from(
    [("correct", "incorrect"), ("yes", "no"), ("✓", "✗"), ("this matches", "this does not match")]
)


@settings(max_examples=100, deadline=None)
@given(
    approved=st.sets(st.sampled_from("ABCD")),
    words=marks,
    row=st.sampled_from(["{}. {}: {}", "- {}) {} - {}", "Option {}, {}: {}", "| {} | {} | {} |"]),
)
def test_of_options_with_a_verdict_each_only_a_single_approval_chooses(
    approved: set[str], words: tuple[str, str], row: str
) -> None:
    lines = [
        row.format(letter, text, words[letter not in approved]) for letter, text in OPTIONS.items()
    ]
    read = choice("\n".join(lines), OPTIONS).value
    assert read in (None, *approved) if len(approved) == 1 else read is None


@settings(max_examples=100, deadline=None)
@given(
    letter=st.sampled_from("ABCD"),
    said=st.sampled_from(
        [
            "If the car were old, {} would be correct.",
            "{} would be correct if the car were old.",
            "Unless the car is old, the answer is {}.",
            "I would choose {} if the car were old.",
            "I would never choose {}.",
            "The wrong answer is {}.",
            "Incorrect: {}",
            "The car has a vitamin {} sticker.",
        ]
    ),
)
def test_a_choice_that_is_denied_or_only_imagined_is_none(letter: str, said: str) -> None:
    assert choice(said.format(letter), OPTIONS).value is None


@settings(max_examples=100, deadline=None)
@given(
    verb=st.sampled_from(["is", "stands", "can be seen"]),
    side=st.sampled_from(["left", "right"]),
    first=st.sampled_from(["man", "car"]),
)
def test_two_things_that_change_places_are_another_claim(verb: str, side: str, first: str) -> None:
    options = {
        "A": "The man is on the left side of the car.",
        "B": "The man is on the right side of the car.",
    }
    second = "car" if first == "man" else "man"
    read = choice(f"The {first} {verb} on the {side} side of the {second}.", options).value
    assert read in ((None, "AB"[side == "right"]) if first == "man" else (None,))


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(st.integers(2, 40), min_size=2, max_size=4), off=st.integers(0, 3))
def test_a_sum_is_read_and_its_parts_are_not(parts: list[int], off: int) -> None:
    said = f"{' + '.join(map(str, parts))} = {sum(parts)}"
    assert short(said, str(sum(parts))).value is True
    assert short(said, str(parts[0])).value is False
    assert short(said, str(sum(parts) + off)).value is (off == 0)


@settings(max_examples=200, deadline=None)
@given(output=outputs)
def test_an_unfinished_thought_is_no_answer(output: str) -> None:
    for answer in (
        choice(f"{output}<think>A", OPTIONS),
        yes_no(f"{output}<think>yes"),
        short(f"{output}<think>red", "red"),
    ):
        assert answer.status == "none"


@pytest.mark.parametrize(
    "piece",
    [
        "A ",
        "is ",
        "the answer is ",
        "\\boxed{",
        "<think>",
        "<answer>",
        '"answer": "',
        "not A, ",
        "A, ",
        "A: no. ",
        "*",
        " ",
        "\n",
        "1,000 ",
        "one-",
        "I think ",
        "wait, ",
        "(A) red ",
        "no ",
        "there is a ",
        "'",
    ],
)
def test_ten_times_the_text_takes_no_more_than_some_ten_times_as_long(piece: str) -> None:
    def seconds(size: int) -> float:
        output = (piece * (size // len(piece) + 1))[:size]
        spans = []
        for _ in range(2):
            start = time.process_time()
            choice(output, OPTIONS)
            yes_no(output)
            short(output, "red")
            spans.append(time.process_time() - start)
        return min(spans)

    # Were it the square, the ratio would be a hundred; a thirtieth of a second is noise.
    assert seconds(30_000) <= 35 * seconds(3_000) + 0.03


def test_nine_thousand_answers_take_less_than_five_seconds() -> None:
    start = time.process_time()
    for _ in range(1500):
        choice("The car in the picture is green, so the answer is **C**.", OPTIONS)
        choice("B. blue", OPTIONS)
        yes_no("No, there is no dog in the image.")
        yes_no("Yes")
        short("There are three dogs.", "3")
        short('The sign says "STOP".', "STOP")
    assert time.process_time() - start < 5


def test_an_answer_of_a_kilobyte_takes_a_few_milliseconds() -> None:
    told = "The street is busy, and a man who is holding an umbrella waits, but not at the bus. "
    output = f"{told * 12}\n\nTherefore, the answer is **B**."
    start = time.process_time()
    for _ in range(50):
        choice(output, OPTIONS)
        yes_no(output)
        short(output, "blue")
    assert time.process_time() - start < 50 * 0.03
