"""A teacher behind a server: it scores the selected rows, and nothing of any other row is sent."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import numpy
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from bas_opd import disk
from bas_opd.errors import DataError
from bas_opd.files import write_bytes
from bas_opd.model.processing import Processor
from bas_opd.serving.client import SpendingLimitError
from bas_opd.serving.request_journal import RequestJournal, without_retries
from bas_opd.serving.scoring import Answer, ScoringClient, ScoringRequest
from bas_opd.teacher.student_pass import Likeliest
from bas_opd.types import BudgetKind, Costs, Hooks, Part, Rollouts, TeacherSupport, View

MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprobs:
    """The scores of a teacher that are known at k tokens of each place.

    These are the student's k likeliest, if the server was asked for them. Otherwise they are the
    teacher's k likeliest; if the sampled token is not among them, it takes the place of the last.
    """

    ids: Tensor  # [token, k]
    known: Tensor  # [token, k] log-probs at these ids
    likeliest: Tensor  # [token, k] ids, the likeliest first

    @classmethod
    def of(cls, answer: Answer, asked: ScoringRequest) -> TopLogprobs:
        """Return the scores that a server gave for the tokens of a response."""
        likeliest, known = torch.tensor(answer.ids), torch.tensor(answer.logprobs)
        if answer.chosen is not None:
            ids = torch.tensor(asked.chosen).long()
            return cls(ids=ids, known=torch.tensor(answer.chosen), likeliest=likeliest)
        sampled = torch.tensor(answer.sampled)[:, None]
        tokens = torch.tensor(asked.response)[:, None]
        is_likely = (likeliest == tokens).any(-1, keepdim=True)
        last = torch.where(is_likely, likeliest[:, -1:], tokens)
        last_known = torch.where(is_likely, known[:, -1:], sampled)
        return cls(
            ids=torch.cat([likeliest[:, :-1], last], dim=-1),
            known=torch.cat([known[:, :-1], last_known], dim=-1),
            likeliest=likeliest,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored of them."""
        return {"ids": self.ids, "known": self.known, "likeliest": self.likeliest}

    def support(self) -> Tensor:
        """Return the ids at which log-probs are known."""
        return self.ids

    def scores(self, index: Tensor) -> Tensor | None:
        """Return the log-probs at token ids, if all of them are known."""
        return self.logprobs(index)

    def logprobs(self, index: Tensor) -> Tensor | None:
        """Return the log-probs at token ids, if all of them are known."""
        found = index[..., :, None] == self.ids[..., None, :].to(index.device)
        if not bool(found.any(-1).all()):
            return None
        return self.known.to(index.device).gather(-1, found.int().argmax(-1))

    def topk(self, k: int) -> Tensor | None:
        """Return its k likeliest tokens; None if fewer are known."""
        return self.likeliest[..., :k] if k <= self.likeliest.shape[-1] else None

    def logsumexp(self) -> Tensor:
        """Return zeros: its scores are log-probs."""
        return torch.zeros_like(self.known[..., 0])


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedScores:
    """What a served teacher said about the rows that it answered.

    Of several processes each has the answers of its own rows, and the counts of all.
    """

    answers: Mapping[int, TopLogprobs]
    processed_tokens: int
    device: torch.device
    support: TeacherSupport | None = None
    """None: nothing was asked."""
    rescored_tokens: int = 0
    elsewhere: tuple[tuple[int, int], ...] = ()
    """Rows whose answers other processes have, each with its tokens."""

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows that were scored; others of the selection were dropped."""
        return tuple(sorted([*self.answers, *(row for row, _ in self.elsewhere)]))

    @property
    def scored_tokens(self) -> int:
        """Tokens of these rows, in whatever process."""
        own = sum(len(each.ids) for each in self.answers.values())
        return own + sum(tokens for _, tokens in self.elsewhere)

    @property
    def prefilled_prompts(self) -> int:
        """Each row has its prompt computed: log-probs of a prompt cannot come from a cache."""
        return len(self.rows)

    def of(self, rows: Collection[int]) -> ServedScores:
        """Return the scores as a process has them that learns from `rows`."""
        others = self.answers.keys() - set(rows)
        return replace(
            self,
            answers={row: self.answers[row] for row in rows},
            elsewhere=tuple((row, len(self.answers[row].ids)) for row in sorted(others)),
        )

    def chunks(self, rows: Sequence[int], size: int) -> Iterator[TopLogprobs]:
        """Yield the scores of the packed tokens of `rows`, `size` tokens at a time."""
        parts = [self.answers[row].tensors() for row in rows]
        packed = {
            name: torch.cat([part[name] for part in parts]).to(self.device) for name in parts[0]
        }
        for start in range(0, len(packed["ids"]), size):
            yield TopLogprobs(**{name: each[start : start + size] for name, each in packed.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be sent besides one request for each selected row, and what all of it may cost."""

    retries: int = 8
    """Further requests of a step, for those that failed or were out at a kill."""
    in_tokens: bool = False
    """Whether requests, but for `retries` of them, also have at most as many response tokens as the
    selected rows."""
    price: Decimal | None = None
    """Of a million tokens."""
    spend_limit: Decimal | None = None

    def cost(self, tokens: int) -> Decimal:
        """Return what tokens cost; without a price, nothing."""
        return tokens * (self.price or Decimal(0)) / MILLION

    def check(self, spent: int, more: int) -> None:
        """Raise if further tokens would cost more than the limit."""
        if self.spend_limit is not None and self.cost(spent + more) > self.spend_limit:
            raise SpendingLimitError(
                f"The teacher's requests so far cost {self.cost(spent):f} ({spent:,} tokens), and "
                f"the next would cost {self.cost(more):f} more, above the limit of "
                f"{self.spend_limit} (teacher.spend_limit). Nothing more was sent, and a "
                "checkpoint is written. Run the same command with a higher limit to resume."
            )


class ServedTeacher:
    """A model behind a server, with the student's tokens; it never changes.

    Requests are on disk before they are sent, and answers before they are used. So a request that
    was out at a kill is charged, and an answer is never asked for again.
    """

    def __init__(
        self,
        client: ScoringClient,
        processor: Processor,
        view: View,
        journal: Path,
        *,
        k: int,
        limits: Limits,
        device: torch.device | None = None,
        hooks: Hooks | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Answers are beside the journal; `check` raises if it is no longer the run's."""
        self.client, self.processor, self.view = client, processor, view
        self._path, self.answers = journal, journal.with_name("answers")
        self.k = min(k, client.vocabulary)
        self.limits = limits
        self.device = device or torch.device("cpu")
        self.hooks = hooks or Hooks()
        self._check = check
        self._journal: RequestJournal | None = None

    @property
    def journal(self) -> RequestJournal:
        """The journal of requests, read when it is first needed."""
        if self._journal is None:
            self._journal = RequestJournal.resume(self._path, check=self._check)
            disk.make_folder(self.answers, exist_ok=True)
        return self._journal

    def costs(self, rollouts: Rollouts, rows: Sequence[int], kind: BudgetKind) -> Costs | None:
        """Return the response tokens of rows; what else is processed is the server's affair."""
        if kind != "scored_tokens":
            return None
        return Costs(rows={row: int(rollouts.lengths[row]) for row in rows})

    def score(
        self, rollouts: Rollouts, rows: Sequence[int], likeliest: Likeliest | None = None
    ) -> ServedScores:
        """Return what the server says of `rows` (Alg. 1, line 11); no rows, no request.

        With the student's `likeliest` tokens it is asked about these. A step sends at most one
        request for each of `rows`, and `retries` more over all resumes. Where the budget is in
        tokens, those of all but `retries` requests are at most those of `rows`.
        A row without an answer is dropped, if the server answers others.
        """
        if not rows:
            return ServedScores(answers={}, processed_tokens=0, device=self.device)
        step, asked = rollouts.step, self._requests(rollouts, rows, likeliest)
        keys = {row: request.key(self.client.endpoint.model) for row, request in asked.items()}
        first_rows: dict[str, int] = {}
        for row, key in keys.items():
            first_rows.setdefault(key, row)
        found = {key: self._stored(key) for key in first_rows}
        missing = {key: row for key, row in first_rows.items() if found[key] is None}
        new = [
            row
            for row, key in keys.items()
            if key not in missing and not self.journal.lists(step, row, key)
        ]
        if calls := sum(key in missing for key in keys.values()) + len(new):
            self.hooks.asked(step, calls)
        for row in new:
            self.journal.write(step, row, keys[row], 0)
        lengths = [len(asked[row].response) for row in rows]
        budget = _StepBudget(self, step, requests=len(rows), response_tokens=sum(lengths))
        budget.begin({key: asked[row] for key, row in missing.items()})

        def ask(key: str) -> TopLogprobs | None:
            row = missing[key]
            charge = lambda: budget.charge(row, key, asked[row])  # noqa: E731
            answer = self.client.score(asked[row], charge)
            return None if answer is None else self._store(key, answer, asked[row])

        order = list(missing)
        for index, scores in self.client.in_parallel(ask, order, poll=self.hooks.poll):
            found[order[index]] = scores
        answers = {row: scores for row, key in keys.items() if (scores := found[key]) is not None}
        for row in answers:
            if not self.journal.lists(step, row, keys[row]):  # It shares the answer of another.
                self.journal.write(step, row, keys[row], 0)
        if dropped := len(rows) - len(answers):
            if not answers:
                self.client.check_failures()  # Nothing shows that it answers other rows.
            of_tokens = f" with {sum(lengths)} tokens in all" if self.limits.in_tokens else ""
            self.hooks.notice(
                f"Step {step}: {dropped} of {len(rows)} selected rows have no answer and are "
                f"dropped, since the step has sent {self.journal.requests[step]} requests: one for "
                f"each row{of_tokens} and {self.limits.retries} more (teacher.retries), those "
                "before a resume included."
            )
        return ServedScores(
            answers=answers,
            processed_tokens=sum(asked[row].tokens for row in answers),
            device=self.device,
            support="teacher" if likeliest is None else "student",
            rescored_tokens=0 if likeliest is None else likeliest.processed_tokens,
        )

    def follow(self) -> None:
        """Do nothing: this teacher never changes."""

    def close(self) -> None:
        """Do nothing: this teacher holds nothing between steps."""

    def parts(self) -> dict[str, Part]:
        """Return nothing: a checkpoint holds what changes."""
        return {}

    def _requests(
        self, rollouts: Rollouts, rows: Sequence[int], likeliest: Likeliest | None
    ) -> dict[int, ScoringRequest]:
        """Build what is asked about rows; the view of each prompt is opened once."""
        seen: dict[int, tuple[tuple[int, ...], bytes, str, int]] = {}
        for number in dict.fromkeys(rollouts.prompt_of(row) for row in rows):
            image, question = self.view(rollouts.examples[number])
            image = self.processor.resized(image)
            length = self.processor.prompt_length(image.size, question)
            ids = tuple(self.processor.prompt_ids(question))
            seen[number] = (ids, _png(image), _pixels(image), length)
        requests = {}
        for row in rows:
            number = rollouts.prompt_of(row)
            prompt, picture, pixels, length = seen[number]
            requests[row] = ScoringRequest(
                prompt=prompt,
                response=tuple(rollouts.tokens[row, : int(rollouts.lengths[row])].tolist()),
                image=picture,
                pixels=pixels,
                prompt_length=length,
                k=self.k,
                chosen=None if likeliest is None else likeliest.ids[row],
                chooser=(rollouts.step, number),
            )
        return requests

    def _stored(self, key: str) -> TopLogprobs | None:
        path = self.answers / f"{key}.safetensors"
        try:
            return TopLogprobs(**load(disk.read_file(path)))
        except FileNotFoundError:
            return None
        except (SafetensorError, TypeError) as error:
            raise DataError(
                f"The stored answer {path} is damaged ({error}). Restore it, or remove it to have "
                "it asked for again."
            ) from error

    def _store(self, key: str, answer: Answer, asked: ScoringRequest) -> TopLogprobs:
        scores = TopLogprobs.of(answer, asked)
        self._check()
        write_bytes(self.answers / f"{key}.safetensors", save(scores.tensors()))
        return scores


def sample_request(processor: Processor, k: int) -> ScoringRequest:
    """Return a request about one token with a picture, which asks for one place too many."""
    image, question = processor.resized(Image.new("RGB", (64, 64))), "?"
    return ScoringRequest(
        prompt=tuple(processor.prompt_ids(question)),
        response=(0,),
        image=_png(image),
        prompt_length=processor.prompt_length(image.size, question),
        k=k,
        chosen=numpy.tile(numpy.arange(k, dtype=numpy.int32), (2, 1)),
    )


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


def _pixels(image: Image.Image) -> str:
    """Return the hash of a picture, whatever library writes it."""
    head = f"{image.mode} {image.width} {image.height} ".encode("ascii")
    return hashlib.sha256(head + image.tobytes()).hexdigest()


class _StepBudget:
    """Decides before each request of a step whether it may be sent, and charges it."""

    def __init__(
        self, teacher: ServedTeacher, step: int, *, requests: int, response_tokens: int
    ) -> None:
        """The limits are without those of `retries`."""
        self._journal, self._limits, self._step = teacher.journal, teacher.limits, step
        self._requests, self._response_tokens = requests, response_tokens
        self._unasked: dict[str, int] = {}  # Content -> tokens of its response.
        self._lock = threading.Lock()

    def begin(self, missing: Mapping[str, ScoringRequest]) -> None:
        """Take the contents to ask for; raise if they cost more than is left."""
        self._unasked = {
            key: len(asked.response)
            for key, asked in missing.items()
            if not self._journal.was_asked(self._step, key)
        }
        self._limits.check(self._journal.tokens, sum(each.charged for each in missing.values()))

    def charge(self, row: int, key: str, asked: ScoringRequest) -> bool:
        """Return whether a request may be sent; then it is charged.

        A repeated request leaves enough for those that were never sent.
        """
        with self._lock:
            is_new = self._unasked.pop(key, None) is not None
            kept = () if is_new else self._unasked.values()
            tokens = len(asked.response)
            if not self._has_room((*kept, tokens)):
                return False
            self._limits.check(self._journal.tokens, asked.charged)
            self._journal.write(self._step, row, key, asked.charged, tokens)
            return True

    def _has_room(self, more: Sequence[int]) -> bool:
        """Return whether requests with so many response tokens each may be sent, too."""
        sent = (*self._journal.response_tokens(self._step), *more)
        retries = self._limits.retries
        if len(sent) > self._requests + retries:
            return False
        return not self._limits.in_tokens or (
            without_retries(sent, retries) <= self._response_tokens
        )
