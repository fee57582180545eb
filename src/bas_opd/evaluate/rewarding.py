"""A judge of rewards: decides about responses that no rule can read, as evaluation does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bas_opd.config.schema import Config
from bas_opd.evaluate.benchmarks.summary import Outcome
from bas_opd.evaluate.judge import Case, Judge, VerdictCache, fresh_mark, messages
from bas_opd.methods.reward import Unread
from bas_opd.run.directory import VERDICTS
from bas_opd.serving.client import ChatClient, ServerError, Spending
from bas_opd.serving.endpoint import STOP_SECONDS, Endpoint
from bas_opd.types import Grade
from bas_opd.validation import extra_fields

GRADES: dict[Outcome, Grade] = {"correct": "right", "wrong": "wrong", "unscored": "unread"}
KNOWN = Case(question="Which colour is the cup?", reference="red", answer="It is red.")


def reward_judge(config: Config, *, leads: bool = True) -> RewardJudge | None:
    """Return the judge of a run, or None if it has none; raise if it does not reply.

    Of several processes the leader alone asks.
    """
    settings = config.judge
    if settings.url is None:
        return None
    endpoint = Endpoint(
        url=settings.url,
        model=settings.model,
        key_variable=settings.key_variable,
        extra=extra_fields(settings.extra),
        stop_seconds=STOP_SECONDS,
    )
    if leads:
        # One try: whoever starts a run is there to hear that the address is wrong.
        once = ChatClient(replace(endpoint, tries=1))
        try:
            once.ask(messages(KNOWN, mark=fresh_mark(KNOWN)), max_tokens=16)
        except ServerError as error:
            raise type(error)(f"The judge of rewards (judge.url) cannot be used. {error}") from None
    path = Path(config.run.output or "runs/run") / VERDICTS
    return RewardJudge(endpoint, path, max_requests=settings.max_requests)


class RewardJudge:
    """Asks once for each content, within a limit of requests that covers the whole run.

    Replies are on disk before they are used, so a resumed run finds those of the steps it repeats.
    Requests without a reply count too, as long as the process lives. Beyond the limit a response
    stays unread. A judge that gives no verdict many times in a row ends the run.
    """

    def __init__(self, endpoint: Endpoint, path: Path, *, max_requests: int) -> None:
        self._endpoint, self._path, self._max_requests = endpoint, path, max_requests
        self._judge: Judge | None = None

    def __call__(
        self, unread: Sequence[Unread], poll: Callable[[], None] = lambda: None
    ) -> list[Grade]:
        """Return what the judge says of every response; `poll` may raise to stop."""
        cases = [
            Case(question=each.question, reference=each.reference, answer=each.response)
            for each in unread
        ]
        grades: list[Grade] = ["unread"] * len(cases)
        with VerdictCache(self._path) as cache:
            self._judge = judge = self._judge or self._first(cache)
            judge.cache = cache
            for index, verdict in judge.judge_all(cases, poll=poll):
                grades[index] = GRADES[verdict.outcome]
        return grades

    def _first(self, cache: VerdictCache) -> Judge:
        requests, tokens = cache.spent()
        spending = Spending(max_requests=self._max_requests, requests=requests, tokens=tokens)
        return Judge(ChatClient(self._endpoint, spending=spending), cache)
