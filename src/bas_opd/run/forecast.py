"""What is known of a run before it starts, and what is refused then. Needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from bas_opd.answers import answer_key
from bas_opd.budget import query_budget, smallest_ratio
from bas_opd.config.schema import Config
from bas_opd.data.images import Size
from bas_opd.data.order import PromptStream, steps_per_epoch
from bas_opd.data.records import PreparedSet, grades_by_last_word
from bas_opd.data.views import (
    PromptLength,
    answered,
    check_prompts,
    crop_size,
    crop_sizes,
    full_size,
    full_sizes,
    view_sizes,
)
from bas_opd.errors import ConfigError, DataError
from bas_opd.select.rules import policy_rule
from bas_opd.text import counted
from bas_opd.types import Crop, Example

Batches = Sequence[Sequence[Example]]
TeacherLength = Callable[[Example], int]
"""Returns the tokens of the prompt that the teacher sees of an example."""


def check_run(config: Config, data: PreparedSet) -> list[tuple[Example, ...]]:
    """Refuse what cannot be trained: by the rows, the method's needs or the budget.

    Returns the examples of every step.
    """
    check_data(config, data)
    batches = planned_batches(config, data, planned_steps(config, data))
    check_queries(config, batches)
    return batches


def check_lengths(
    config: Config, data: PreparedSet, length: PromptLength, teacher: PromptLength | None = None
) -> None:
    """Refuse what is known only with a tokenizer: long prompts, and K in tokens of prompts.

    `teacher` is the prompt length of a teacher that is another model.
    """
    text = answered if config.method.name == "opsd" else lambda example: example.question
    limit = config.data.max_prompt_tokens
    check_prompts(
        data.examples, length, limit, text, view_sizes if config.needs_crops else full_sizes
    )
    if teacher is not None:
        shown = crop_sizes if config.needs_crops else full_sizes
        check_prompts(data.examples, teacher, limit, text, shown)
    if config.select.budget == "processed_tokens":
        batches = planned_batches(config, data, planned_steps(config, data))
        cost = teacher or length
        check_queries(config, batches, lambda example: cost(*shown_size(config, example)))


def check_data(config: Config, data: PreparedSet) -> None:
    """Refuse data that the method cannot learn from."""
    examples, name = data.examples, config.method.name
    if config.needs_crops and not any(example.has_crop for example in examples):
        raise DataError(
            f"None of the {len(examples):,} examples in {data.folder} has a crop, so the "
            "teacher could never be asked. Prepare the data with crop boxes or crop images."
        )
    if config.select.correctness and not any(
        example.answer for example in examples if has_view(config, example)
    ):
        which = "example with a crop" if config.needs_crops else "example"
        raise DataError(
            f"select.correctness is true, but no {which} in {data.folder} has an answer to compare "
            "responses with. Prepare the data with answers, or set select.correctness=false."
        )
    if not config.needs_answers:
        return
    answers = [e for e in examples if e.has_answer and (e.has_crop or not config.needs_crops)]
    if not answers:
        raise DataError(
            f"None of the {len(examples):,} examples in {data.folder} that the method {name} could "
            f"learn from has an answer, which {name} needs. Prepare the data with answers"
            + (", or set sft.keep=all." if name == "sft" else ", or choose another method.name.")
        )
    if name == "opsd":
        return  # its teacher reads the answers; nothing is graded
    by_last_word = grades_by_last_word(data.source)
    if not any(answer_key(e.question, e.answer, by_last_word=by_last_word) for e in answers):
        shown = f"{answers[0].answer.strip()!r} of example {answers[0].id!r}"
        raise DataError(
            f"No rule can grade any of the {len(answers):,} answers in {data.folder}, such as "
            f"{shown}, so no response could be told right from wrong. Give the letter or the text "
            "of a listed option, yes or no, or a few words."
        )


def seldom_grades(config: Config, data: PreparedSet) -> str:
    """Return how many answers no rule can grade, where responses are graded; nothing if none."""
    if not config.grades_responses:
        return ""
    by_last_word = grades_by_last_word(data.source)
    unknown = [
        e
        for e in data.examples
        if not (e.has_answer and answer_key(e.question, e.answer, by_last_word=by_last_word))
    ]
    if not unknown:
        return ""
    return (
        f"No rule can grade the answers of {counted(len(unknown), 'example')}, such as "
        f"{unknown[0].id!r}, of {len(data.examples):,}: they are not sampled."
    )


def planned_steps(config: Config, data: PreparedSet) -> int:
    """Return how many steps the settings ask for."""
    per_epoch = steps_per_epoch(len(data.examples), config.rollout.prompts_per_step)
    total = config.run.steps or per_epoch * config.run.epochs
    end = config.optim.decay_until
    if end is not None and end < total:
        raise ConfigError(
            f"The learning rate reaches 0 at step {end:,} (optim.decay_until), but the run has "
            f"{total:,} steps. Set optim.decay_until={total}, or shorten the run."
        )
    return total


def undrawn_set(folder: Path, n: int) -> PreparedSet:
    """Return a stand-in for a set that is still to be drawn: every example has crop and answer."""
    crop = Crop(area=0.1, box=(0, 0, 1, 1))
    examples = [
        Example(id=str(row), image=folder, question="What?", answer="yes", crop=crop)
        for row in range(n)
    ]
    return PreparedSet(folder=folder, examples=tuple(examples), fingerprint="")


def planned_batches(config: Config, data: PreparedSet, steps: int) -> list[tuple[Example, ...]]:
    """Return the examples of every step."""
    prompts = PromptStream(
        data.examples, per_step=config.rollout.prompts_per_step, seed=config.run.seed
    )
    return [prompts.take().examples for _ in range(steps)]


def has_view(config: Config, example: Example) -> bool:
    """Return whether the teacher has a view of an example, so that it can be asked about it."""
    if config.method.name == "opsd":
        return example.has_answer
    if config.teacher.view == "full":
        return True
    return example.has_crop and config.needs_crops


def shown_size(config: Config, example: Example) -> tuple[Size, str]:
    """Return the size of the picture that the teacher sees of an example, and the text."""
    if config.method.name == "opsd":
        return full_size(example)[0], answered(example)
    return crop_size(example) if config.needs_crops else full_size(example)


def candidate_counts(config: Config, batches: Batches) -> list[int]:
    """Return how many candidates each step has, if no response is empty."""
    examples = {id(example): example for batch in batches for example in batch}
    seen = {key: has_view(config, example) for key, example in examples.items()}
    return [config.rollout.per_prompt * sum(seen[id(e)] for e in batch) for batch in batches]


def check_queries(
    config: Config, batches: Batches, teacher_length: TeacherLength | None = None
) -> None:
    """Refuse a budget that pays for no query at any step, however short or long responses are.

    What prompts cost in processed tokens is known with `teacher_length` only.
    """
    if config.queries is None:
        return
    ratio = config.queries.query_ratio
    shares = _shares(config, batches, teacher_length)
    if any(query_budget(ratio, full) >= least for least, full in shares):
        return
    if not shares:
        return  # without any view, which the check of the data names
    needed = min(smallest_ratio(least, full) for least, full in shares)
    raise ConfigError(
        f"select.query_ratio is {ratio}, so K pays for no query at any step: the teacher would "
        f"never be asked, and nothing learned. Set select.query_ratio to at least {needed:f}, or "
        "raise rollout.prompts_per_step."
    )


def seldom_asks(
    config: Config, batches: Batches, teacher_length: TeacherLength | None = None
) -> str:
    """Return in how many steps K pays for no query, if those are most; nothing otherwise."""
    if config.queries is None:
        return ""
    shares = _shares(config, batches, teacher_length)
    ratio = config.queries.query_ratio
    empty = sum(n for (least, full), n in shares.items() if query_budget(ratio, full) < least)
    if 2 * empty <= shares.total():
        return ""
    return (
        f"In {empty:,} of {shares.total():,} steps K pays for no query, and nothing is learned: "
        f"select.query_ratio is {ratio}. Raise it, or rollout.prompts_per_step."
    )


def _shares(
    config: Config, batches: Batches, teacher_length: TeacherLength | None
) -> Counter[tuple[int, int]]:
    """Count steps by the least that a query costs, and the most that all of them can."""
    counts = candidate_counts(config, batches)
    longest = config.rollout.max_response_tokens
    if config.select.budget == "calls":
        return Counter((1, rows) for rows in counts if rows)
    if config.select.budget == "scored_tokens" or teacher_length is None:
        return Counter((1, rows * longest) for rows in counts if rows)
    shares = Counter[tuple[int, int]]()
    for rows, batch in zip(counts, batches, strict=True):
        prompts = [teacher_length(example) for example in batch if has_view(config, example)]
        if full := sum(prompts) + rows * (longest - 1):
            shares[min(prompts, default=1), full] += 1
    return shares


def never_ranks(config: Config, batches: Batches) -> str:
    """Return why a policy that learns would rank no row of this run; nothing where it can."""
    select = config.queries
    if select is None or not policy_rule(select.policy).learns:
        return ""
    # The labels of the last step come too late.
    labels = candidate_counts(config, batches)[:-1]
    if select.budget == "calls":  # in tokens, any number of candidates may fit
        budgets = {count: query_budget(select.query_ratio, count) for count in set(labels)}
        labels = [budgets[count] for count in labels]
    held = sum(labels)
    if held >= select.replay_start:
        return ""
    return (
        f"The {select.policy} policy will rank no row of this run: it learns from "
        f"{select.replay_start} labels on (select.replay_start), and its steps bring at most "
        f"{held} before the last. All rows will be drawn at random. Lower select.replay_start or "
        "take more steps."
    )
