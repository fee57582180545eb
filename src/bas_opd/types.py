"""The data that passes between the stages of Algorithm 1.

Axes are named the same everywhere: `row` is one rollout, `token` a response position, `prompt` one
example of the batch. Rows are ordered prompt by prompt: row = prompt * rollouts_per_prompt + i.
Masks come from `lengths`, never from pad ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, get_args

from bas_opd.errors import BasOpdError, BudgetError

if TYPE_CHECKING:  # Code that only reads records and pictures does not import torch.
    from PIL import Image
    from torch import Tensor

FEATURES = (
    "mean_nll",
    "p90_nll",
    "mean_entropy",
    "response_tokens",
    "prompt_tokens",
    "crop_area",
)
"""The six entries of phi, in the order of Eq. 5."""


def _nothing(*_: object) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Callbacks from the stages to the training loop."""

    poll: Callable[[], None] = _nothing
    """Called often while a step can still be given up; raises if the run must stop."""
    notice: Callable[[str], None] = _nothing
    """Takes a sentence that the user should see."""
    asked: Callable[[int, int], None] = _nothing
    """Called with a step and its number of teacher calls, before they are made."""
    settle: Callable[[], None] = _nothing
    """Called before optimizer state or teacher change; returns when no checkpoint reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crop:
    """The privileged view of an example: a box on its upright image, or a picture of its own."""

    area: float
    """Crop area over full-image area; 0 where it is not known."""
    box: tuple[float, float, float, float] | None = None
    """x0, y0, x1, y1 in pixels of the full image after its EXIF rotation."""
    image: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One training pair (x, x~, q): full image, crop if there is one, question."""

    id: str
    image: Path
    question: str
    answer: str = ""
    kind: str = ""
    crop: Crop | None = None

    @property
    def has_crop(self) -> bool:
        return self.crop is not None

    @property
    def has_answer(self) -> bool:
        return bool(self.answer.strip())


View: TypeAlias = "Callable[[Example], tuple[Image.Image, str]]"
"""What a model gets to see of an example: a picture, and the text that goes with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBatch:
    """The examples of one training step."""

    step: int
    examples: tuple[Example, ...]
    round: int = 0
    """Which batch of its step this is; batches of one step draw different noise."""
    upcoming: tuple[Example, ...] = ()
    """The examples of the batch after it: meanwhile their pictures can be opened, or their
    rollouts drawn."""

    def only(self, is_wanted: Callable[[Example], bool]) -> PromptBatch:
        """Return the batch with the examples that a method can learn from."""
        return replace(
            self,
            examples=tuple(filter(is_wanted, self.examples)),
            upcoming=tuple(filter(is_wanted, self.upcoming)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as the model sees it, on the CPU: token ids with image tokens, and pixels."""

    input_ids: Tensor  # [token]
    pixel_values: Tensor  # [patch, pixel]; the same tensor for prompts about the same picture
    grid: Tensor  # [image, 3]: time, height, width in patches

    @property
    def length(self) -> int:
        return len(self.input_ids)


class DistantPrompt:
    """A prompt that is known by its length; it is encoded here once it is computed with.

    Another process may have encoded it already, or a thread may do so at this moment.
    """

    def __init__(self, length: int, encode: Callable[[], Prompt]) -> None:
        self.length = length
        self._encode = encode
        self._prompt: Prompt | None = None

    @property
    def input_ids(self) -> Tensor:
        return self._here().input_ids

    @property
    def pixel_values(self) -> Tensor:
        return self._here().pixel_values

    @property
    def grid(self) -> Tensor:
        return self._here().grid

    def _here(self) -> Prompt:
        if self._prompt is None:
            self._prompt = self._encode()
        return self._prompt


LOGPROB_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
"""Largest mean distance of another engine's log-probs where no other is set, by precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """How far the log-probs of another engine are from the trainer's, on the rows it rescored."""

    version: int
    """Of the weights that were sampled: the step that they were loaded for."""
    rows: tuple[int, ...]
    tokens: int
    logprob_gap: float
    """Mean distance over these tokens."""

    @classmethod
    def joined(cls, parts: Iterable[EngineReport | None]) -> EngineReport | None:
        """Return the reports of several processes or rounds as one; None if there is none."""
        found = [each for each in parts if each is not None]
        if len(found) < 2:
            return found[0] if found else None
        tokens = sum(each.tokens for each in found)
        return cls(
            version=found[0].version,
            rows=tuple(sorted(row for each in found for row in each.rows)),
            tokens=tokens,
            logprob_gap=sum(each.logprob_gap * each.tokens for each in found) / tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """y ~ p_theta for every prompt, with what the sampler measured (Alg. 1, line 3)."""

    step: int
    examples: tuple[Example, ...]
    prompts: tuple[Prompt | DistantPrompt, ...]
    per_prompt: int
    tokens: Tensor  # [row, token] int64, CPU
    lengths: Tensor  # [row] valid tokens, the end token counted
    logprobs: Tensor  # [row, token] fp32, of the sampled token under p_old
    entropies: Tensor | None  # [row, token] fp32 nats; None where the engine cannot give it
    engine: EngineReport | None = None
    """Where another engine than the trainer's own sampler drew them."""
    sampled_at: int | None = None
    """Steps that were taken before the weights that drew them, where that may be fewer than
    `step`."""

    def __post_init__(self) -> None:
        rows = len(self.examples) * self.per_prompt
        if not len(self.tokens) == len(self.lengths) == len(self.logprobs) == rows:
            raise BasOpdError(
                f"The rollouts of step {self.step} hold {len(self.lengths)} responses where {rows} "
                f"were asked for, {self.per_prompt} for each of {len(self.examples)} prompts. "
                "Which response belongs to which prompt is then not certain."
            )

    def __len__(self) -> int:
        return len(self.lengths)

    def prompt_of(self, row: int) -> int:
        return row // self.per_prompt

    def example_of(self, row: int) -> Example:
        return self.examples[row // self.per_prompt]

    @property
    def mask(self) -> Tensor:
        """m[row, token], from lengths alone."""
        import torch

        return torch.arange(self.tokens.shape[1]) < self.lengths[:, None]

    def candidates(
        self, has_view: Callable[[Example], bool] = lambda example: example.has_crop
    ) -> tuple[int, ...]:
        """C: rows whose example the teacher has a view of and whose response has a valid token."""
        return tuple(
            row
            for row, length in enumerate(self.lengths.tolist())
            if length > 0 and has_view(self.example_of(row))
        )

    @classmethod
    def joined(cls, rounds: Sequence[Rollouts]) -> Rollouts:
        """Return the rollouts of several rounds as those of one batch, in their order."""
        first = rounds[0]
        if len(rounds) == 1:
            return first
        import torch

        width = max(each.tokens.shape[1] for each in rounds)

        def together(columns: Iterable[Tensor]) -> Tensor:
            return torch.cat([torch.nn.functional.pad(c, (0, width - c.shape[1])) for c in columns])

        entropies = [each.entropies for each in rounds if each.entropies is not None]
        firsts = accumulate((len(each) for each in rounds), initial=0)
        engines = [
            each.engine
            and replace(each.engine, rows=tuple(first + row for row in each.engine.rows))
            for first, each in zip(firsts, rounds, strict=False)
        ]
        return cls(
            step=first.step,
            examples=tuple(example for each in rounds for example in each.examples),
            prompts=tuple(prompt for each in rounds for prompt in each.prompts),
            per_prompt=first.per_prompt,
            tokens=together(each.tokens for each in rounds),
            lengths=torch.cat([each.lengths for each in rounds]),
            logprobs=together(each.logprobs for each in rounds),
            entropies=together(entropies) if len(entropies) == len(rounds) else None,
            engine=EngineReport.joined(engines),
        )


BudgetKind = Literal["calls", "scored_tokens", "processed_tokens"]
"""What a budget counts: rows that the teacher scores, their response tokens, or all the tokens that
it processes, its prompts included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What querying rows costs in tokens: each row its own, and each prompt once."""

    rows: Mapping[int, int]
    """Row -> what it costs by itself."""
    prompts: Mapping[int, int] = field(default_factory=dict)
    """Row -> the prompt that it shares with others; needed where prompts cost something."""
    openings: Mapping[int, int] = field(default_factory=dict)
    """Prompt -> what its first queried row costs in addition."""

    def of(self, rows: Iterable[int]) -> int:
        """Return what querying these rows costs together."""
        asked = list(rows)
        touched = {self.prompts[row] for row in asked} if self.openings else set()
        return sum(self.rows[row] for row in asked) + sum(
            self.openings.get(prompt, 0) for prompt in touched
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much the teacher queries of one step may cost."""

    limit: int
    kind: BudgetKind = "calls"
    costs: Costs | None = None
    """What rows cost in tokens; None where calls are counted, one for each row."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(BudgetKind):
            known = ", ".join(get_args(BudgetKind))
            raise BudgetError(f"A budget in {self.kind!r} is not known; choose one of {known}.")
        if self.limit < 0:
            raise BudgetError(f"The budget is {self.limit} {self.unit}; it cannot be negative.")
        if (self.kind == "calls") != (self.costs is None):
            raise BudgetError(
                f"A budget in {self.unit} "
                + (
                    "counts rows and takes no costs."
                    if self.costs
                    else "needs what each row costs."
                )
            )

    @classmethod
    def of(cls, budget: Budget | int) -> Budget:
        """Return a budget; a plain number counts calls."""
        return budget if isinstance(budget, Budget) else cls(limit=budget)

    @property
    def unit(self) -> str:
        """What is counted, in words."""
        return "queries" if self.kind == "calls" else self.kind.replace("_", " ")

    def spent(self, rows: Collection[int]) -> int:
        """Return what querying these rows costs in the unit of the budget."""
        return len(rows) if self.costs is None else self.costs.of(rows)


Grade = Literal["right", "wrong", "unread"]
"""Whether a response gives the answer of its example; unread where no rule can decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """C as a selector sees it, before any teacher computation: one entry per candidate row."""

    rows: tuple[int, ...]
    values: Tensor  # phi [candidate, feature] float64, CPU: raw and detached (Eq. 5)
    has_entropy: bool = True
    prompts: tuple[int, ...] | None = None
    """Number of the prompt that each row answers, where known."""
    tokens: tuple[int, ...] | None = None
    """Response tokens of each row, where known."""
    texts: tuple[Hashable, ...] | None = None
    """The response of each row, as its token ids, where known: equal ones are repeats."""
    grades: tuple[Grade, ...] | None = None
    """Whether each row is right, where that is used to select."""

    def __len__(self) -> int:
        return len(self.rows)


Features = Candidates
"""The name of `Candidates` in version 0.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """S: the rows the teacher is asked about. One over budget or with a duplicate cannot exist."""

    rows: tuple[int, ...]
    budget: Budget | int
    explored: frozenset[int] = frozenset()
    """Rows of S drawn at random rather than for their score."""
    scores: dict[int, float] = field(default_factory=dict)
    """Candidate row -> the score it was ranked by; empty if by none. `PolicyRule.score` says what a
    policy's score is."""

    def __post_init__(self) -> None:
        if len(set(self.rows)) != len(self.rows):
            raise BudgetError("A selection names the same row twice; each query counts once.")
        budget = Budget.of(self.budget)
        if self.spent > budget.limit:
            cost = "" if budget.kind == "calls" else f" costs {self.spent} {budget.unit} and"
            raise BudgetError(
                f"A selection of {len(self.rows)} rows{cost} exceeds its budget of {budget.limit} "
                f"{budget.unit}."
            )
        if not self.explored <= set(self.rows):
            raise BudgetError("A selection marks rows as explored that it did not select.")

    @property
    def limit(self) -> int:
        """K, the most that the selection may cost."""
        return Budget.of(self.budget).limit

    @property
    def spent(self) -> int:
        """What the selection costs in the unit of its budget."""
        return Budget.of(self.budget).spent(self.rows)

    def scored_by(self, teacher: TeacherScores) -> tuple[int, ...]:
        """Return its rows that a teacher scored."""
        scored = set(teacher.rows)
        return tuple(row for row in self.rows if row in scored)


TeacherSupport = Literal["student", "teacher"]
"""Whose likeliest tokens a teacher is known at, where it is not known everywhere."""


class TokenScores(Protocol):
    """The teacher's distribution at some response tokens, as far as it is known.

    A teacher in this process knows all of it. One behind a server may know a few log-probs only.
    """

    def support(self) -> Tensor | None:
        """Return the token ids `[token, k]` where alone it is known; None: everywhere."""
        ...

    def scores(self, index: Tensor) -> Tensor | None:
        """Return log-probs at token ids `[token, k]`, up to one constant per token, if known."""
        ...

    def logprobs(self, index: Tensor) -> Tensor | None:
        """Return log-probs at token ids `[token, k]` over the whole vocabulary, if known."""
        ...

    def topk(self, k: int) -> Tensor | None:
        """Return the ids `[token, k]` of its own likeliest tokens; None where not known."""
        ...

    def logsumexp(self) -> Tensor | None:
        """Return scores less log-probs, `[token]`; None where not known."""
        ...


@dataclass(frozen=True, slots=True)
class FullLogits:
    """The scores of a teacher whose logits `[..., vocab]` are all known, detached."""

    logits: Tensor

    def support(self) -> None:
        """Return None: every token is known."""

    def scores(self, index: Tensor) -> Tensor:
        """Return the logits at the given ids."""
        return at_least_fp32(self.logits.detach().gather(-1, index))

    def logprobs(self, index: Tensor) -> Tensor:
        """Return the log-probs at the given ids."""
        return at_least_fp32(self.logits.detach()).log_softmax(-1).gather(-1, index)

    def topk(self, k: int) -> Tensor:
        """Return the ids of the k likeliest tokens."""
        return self.logits.detach().topk(k, dim=-1).indices

    def logsumexp(self) -> Tensor:
        """Return logits less log-probs."""
        return at_least_fp32(self.logits.detach()).logsumexp(-1)


def at_least_fp32(values: Tensor) -> Tensor:
    """Return half-precision values in fp32, others as they are."""
    return values.float() if values.itemsize < 4 else values


class TeacherScores(Protocol):
    """What the teacher said about the response tokens of S (Alg. 1, line 11), detached."""

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows it scored: what was computed, not what was asked for."""
        ...

    @property
    def scored_tokens(self) -> int: ...

    @property
    def processed_tokens(self) -> int: ...

    @property
    def prefilled_prompts(self) -> int: ...

    @property
    def support(self) -> TeacherSupport | None:
        """At whose likeliest tokens alone it is known; None: all of it is, or there are no rows."""
        ...

    @property
    def rescored_tokens(self) -> int:
        """Tokens that the student computed without a gradient so that it could be asked."""
        ...

    def chunks(self, rows: Sequence[int], size: int) -> Iterator[TokenScores]:
        """Yield its distribution on the packed tokens of `rows`, `size` tokens at a time."""
        ...


class Part(Protocol):
    """A part of the training state, saved in every checkpoint under a name of its own."""

    def state_dict(self) -> Mapping[str, Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Tensor], /) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportanceReport:
    """How far the trainer's log-probs were from those under which tokens were drawn."""

    tokens: int
    total_difference: float
    """Sum over tokens of the distance."""
    max_difference: float
    truncated: int
    """Tokens whose weight was above the cap."""

    @classmethod
    def joined(cls, parts: Iterable[ImportanceReport | None]) -> ImportanceReport | None:
        """Return several as one; None if there is none."""
        found = [each for each in parts if each is not None]
        if not found:
            return None
        return cls(
            tokens=sum(each.tokens for each in found),
            total_difference=sum(each.total_difference for each in found),
            max_difference=max(each.max_difference for each in found),
            truncated=sum(each.truncated for each in found),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentUpdate:
    """What one optimizer update did (Alg. 1, lines 12-13)."""

    loss: float
    gradient_norm: float
    learning_rate: float
    is_valid: bool
    """Whether the optimizer stepped: there were rows, and loss and gradient were finite."""
    observed: dict[int, float]
    """Row -> what the objective measured on it, detached; for distillation the utility u (Eq. 9).
    Rows without a finite value are absent."""
    dropped: int
    """Rows whose measurement was not finite."""
    processed_tokens: int
    tokens_of_ranks: tuple[int, ...] = ()
    """Of these, what each process of the run computed."""
    idle_passes: int | None = None
    """Micro-batches that processes sat out, together; None of one process."""
    importance: ImportanceReport | None = None
    """Where tokens had importance weights."""


def as_one_update(updates: Sequence[StudentUpdate]) -> StudentUpdate:
    """Return the updates of a step as one: the mean loss and gradient norm, and sums of the rest.

    It is valid if the optimizer stepped at least once.
    """
    tried = [each for each in updates if each.processed_tokens] or list(updates)
    idle = [each.idle_passes for each in tried if each.idle_passes is not None]
    return StudentUpdate(
        loss=sum(each.loss for each in tried) / len(tried),
        gradient_norm=sum(each.gradient_norm for each in tried) / len(tried),
        learning_rate=updates[0].learning_rate,
        is_valid=any(each.is_valid for each in updates),
        observed={row: value for each in updates for row, value in each.observed.items()},
        dropped=sum(each.dropped for each in updates),
        processed_tokens=sum(each.processed_tokens for each in updates),
        tokens_of_ranks=tuple(
            sum(tokens) for tokens in zip(*(each.tokens_of_ranks for each in tried), strict=True)
        ),
        idle_passes=sum(idle) if idle else None,
        importance=ImportanceReport.joined(each.importance for each in updates),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """Whether rows are right, by rule; a judge may have decided those that no rule could."""

    grades: tuple[Grade, ...]
    judged: tuple[int, ...] = ()
    """Places of those that a judge decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationReport:
    """How a step got responses from its teacher (SFT)."""

    graded: Graded | None
    """None where every response is learned from."""
    student_prompts: tuple[int, ...]
    """Tokens of each prompt as the student sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """What the rollouts of a step earned, and how the policy was moved (GRPO, DAPO)."""

    rounds: tuple[int, ...]
    """Prompts that were sampled in each round."""
    graded: Graded
    rewards: tuple[float, ...]
    advantages: tuple[float, ...]
    """Of every row, as the rewards of its group give it."""
    kept: tuple[int, ...]
    """Prompts that were learned from, in this order."""
    updates: tuple[tuple[tuple[int, ...], StudentUpdate], ...]
    """Rows of each mini-batch, and what its update did."""
    reference_rows: int
    reference_tokens: int
    """Rows and tokens that the initial model scored."""
    rescored_tokens: int
    """Tokens of the pass that measured log-probs before several updates."""
    logprob_gap: float | None
    """Mean distance between the log-probs of learner and sampler; None where none was computed."""
    kl: float | None
    """Mean of k3 against the initial model over the learned tokens; None without a penalty."""
    clip_share: float | None
    """Share of the learned tokens whose gradient was clipped away; None with one update a step."""
    entropy: float | None
    """Mean entropy of the sampled tokens, in nats; None where the sampler cannot give it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryReport:
    """How a step chose its teacher queries, and what they cost."""

    query_ratio: Decimal
    candidates: Candidates
    selection: Selection
    teacher: TeacherScores
    learned: bool
    """Whether the selector was updated after this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Everything a step leaves on record: the core of any method, then what this one has."""

    rollouts: Rollouts
    rows: tuple[int, ...]
    """Rows that the student learned from."""
    update: StudentUpdate
    """All updates of the step as one."""
    seconds: dict[str, float]
    waited_seconds: float = 0.0
    """Of these, what passed while pictures and prompts were not ready."""
    queries: QueryReport | None = None
    policy: PolicyReport | None = None
    generation: GenerationReport | None = None

    @property
    def is_skipped(self) -> bool:
        """Whether there was something to learn, but its loss or gradient was not finite."""
        return bool(self.rows) and not self.update.is_valid
