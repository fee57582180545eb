"""A served teacher as the settings of a run describe it, and what is checked before the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bas_opd.compute.world import World
from bas_opd.config.schema import Config
from bas_opd.data.records import PreparedSet
from bas_opd.errors import ConfigError
from bas_opd.model.processing import Processor, vocabulary_size
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.run.directory import RunDirectory
from bas_opd.run.forecast import has_view, planned_steps, shown_size
from bas_opd.serving.endpoint import STOP_SECONDS, Endpoint
from bas_opd.serving.request_journal import read_requests
from bas_opd.serving.scoring import ScoringClient, probe_text
from bas_opd.teacher.led import LedTeacher
from bas_opd.teacher.server_teacher import Limits, ServedTeacher, sample_request
from bas_opd.teacher.student_pass import StudentPass
from bas_opd.types import Hooks, TeacherSupport, View


def served_teacher(
    config: Config,
    model: VisionLanguageModel,
    view: View,
    run: RunDirectory,
    hooks: Hooks,
    world: World,
    support: TeacherSupport,
) -> LedTeacher:
    """Return the teacher behind `teacher.server`; nothing is sent yet.

    `support` is what `check_served` has found.
    """
    teacher, student = config.teacher, None
    if notice := _unlike_after_a_kill(config, model):
        hooks.notice(notice)
    if support == "student":
        student = StudentPass(
            model,
            k=config.distill.k,
            tokens_per_batch=teacher.tokens_per_batch,
            hooks=hooks,
            world=world,
        )
    if not world.leads:
        return LedTeacher(None, world, model.device, student)
    asked = ServedTeacher(
        _client(config, model.processor),
        model.processor,
        view,
        run.requests,
        k=config.distill.k,
        limits=_limits(config),
        device=model.device,
        hooks=hooks,
        check=run.check_held,
    )
    return LedTeacher(asked, world, model.device, student)


def _unlike_after_a_kill(config: Config, model: VisionLanguageModel) -> str | None:
    """Return the sentence about rollouts that are not the same when they are drawn again."""
    is_exact = config.rollout.engine != "vllm" and model.precision.itemsize >= 4
    steps = config.run.checkpoint_every
    if is_exact or steps == 1:
        return None
    return (
        f"A kill repeats up to {steps} steps (run.checkpoint_every), and this run may draw other "
        "responses then, as it samples with vLLM or in bfloat16. Requests that were sent for these "
        "steps stay charged, so most of their rows would be dropped. Set run.checkpoint_every=1 to "
        "repeat at most one step."
    )


def check_served(
    config: Config, processor: Processor, data: PreparedSet, journal: Path | None = None
) -> TeacherSupport:
    """Refuse a server that could not teach; none of these requests makes its model compute.

    `journal` has the requests of the run so far. Return at whose likeliest tokens it will be
    compared.
    """
    client = _client(config, processor)
    client.endpoint.key()
    tokenizer = processor.tokenizer
    lengths = set(_prompt_lengths(config, processor, data))
    check_spending(config, data, min(lengths, default=0), journal)
    longest = max(lengths, default=0)
    client.check(
        encode=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
        text=probe_text(processor.decode, len(tokenizer), tokenizer.get_added_vocab())
        + tokenizer.decode(processor.prompt_ids("?")),
        # The server counts the token that it is asked to generate.
        longest=longest + config.rollout.max_response_tokens + 1,
    )
    sample = sample_request(processor, min(config.distill.k, client.vocabulary))
    return client.support(config.teacher.support, sample)


def check_spending(
    config: Config, data: PreparedSet, shortest: int, journal: Path | None = None
) -> None:
    """Raise if no request can be paid for any more, not even about the shortest prompt.

    Nothing is refused where the last step has sent requests: its answers may be stored.
    """
    limits = _limits(config)
    if limits.spend_limit is None:
        return
    sent = None if journal is None else read_requests(journal)
    spent = 0 if sent is None else sent.tokens
    least = shortest + 2  # One token of a response is read, and one is generated.
    if limits.cost(spent + least) <= limits.spend_limit:
        return
    if sent is not None and sent.requests[planned_steps(config, data) - 1]:
        return
    cost = f"costs at least {limits.cost(least):f} ({least:,} tokens), but teacher.spend_limit is"
    if not spent:
        raise ConfigError(
            f"A request to the teacher {cost} {limits.spend_limit}, so it could never be asked. "
            "Raise the limit, or check teacher.price_per_million_tokens."
        )
    raise ConfigError(
        f"The teacher's requests so far cost {limits.cost(spent):f} ({spent:,} tokens) and another "
        f"{cost} {limits.spend_limit}. Run the same command with a higher limit to resume."
    )


def _limits(config: Config) -> Limits:
    teacher, queries = config.teacher, config.queries
    return Limits(
        retries=teacher.retries,
        in_tokens=queries is not None and queries.budget == "scored_tokens",
        price=teacher.price_per_million_tokens,
        spend_limit=teacher.spend_limit,
    )


def _prompt_lengths(config: Config, processor: Processor, data: PreparedSet) -> Iterator[int]:
    """Yield the tokens of every prompt that the teacher may be shown."""
    for example in data.examples:
        if has_view(config, example):
            yield processor.prompt_length(*shown_size(config, example))


def _client(config: Config, processor: Processor) -> ScoringClient:
    teacher = config.teacher
    endpoint = Endpoint(
        url=teacher.server or "",
        model=teacher.model,
        key_variable=teacher.key_variable,
        at_once=teacher.at_once,
        timeout_seconds=teacher.timeout_seconds,
        stop_seconds=STOP_SECONDS,
    )
    return ScoringClient(endpoint, vocabulary=vocabulary_size(processor))
