"""The data that passes between the stages of Algorithm 1.

Axes are named the same everywhere: `row` is one rollout, `token` a response position, `prompt` one
example of the batch. Rows are ordered prompt by prompt: row = prompt * rollouts_per_prompt + i.
Masks come from `lengths`, never from pad ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from bas_opd.errors import BasOpdError, BudgetError

if TYPE_CHECKING:  # Whoever reads records and pictures only does not wait for torch.
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


def _nothing(*_: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """How the stages reach whoever runs them."""

    poll: Callable[[], None] = _nothing
    """Called often while a step can still be abandoned; raises if the run was asked to stop."""
    notice: Callable[[str], None] = _nothing
    """Takes a sentence that the user should see."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBatch:
    """The examples of one training step."""

    step: int
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as the model sees it, on the CPU: token ids with image tokens, and pixels."""

    input_ids: Tensor  # [token]
    pixel_values: Tensor  # [patch, pixel]
    grid: Tensor  # [image, 3]: time, height, width in patches

    @property
    def length(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """y ~ p_theta for every prompt, with what the sampler measured (Alg. 1, line 3)."""

    step: int
    examples: tuple[Example, ...]
    prompts: tuple[Prompt, ...]
    per_prompt: int
    tokens: Tensor  # [row, token] int64, CPU
    lengths: Tensor  # [row] valid tokens, the end token counted
    logprobs: Tensor  # [row, token] fp32, of the sampled token under p_old
    entropies: Tensor | None  # [row, token] fp32 nats; None where the engine cannot give it

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

    def candidates(self) -> tuple[int, ...]:
        """C: rows whose example has a crop and whose response has a valid token."""
        return tuple(
            row
            for row, length in enumerate(self.lengths.tolist())
            if length > 0 and self.example_of(row).has_crop
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """phi for every candidate (Eq. 5), raw and detached."""

    rows: tuple[int, ...]
    values: Tensor  # [candidate, feature] float64, CPU
    has_entropy: bool = True

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """S: the rows the teacher is asked about. One over budget or with a duplicate cannot exist."""

    rows: tuple[int, ...]
    budget: int
    explored: frozenset[int] = frozenset()
    """Rows of S drawn at random rather than for their score."""
    scores: dict[int, float] = field(default_factory=dict)
    """Candidate row -> the predicted utility or entropy it was ranked by; empty if by none."""

    def __post_init__(self) -> None:
        if len(self.rows) > self.budget:
            raise BudgetError(
                f"A selection of {len(self.rows)} rows exceeds its budget of {self.budget} queries."
            )
        if len(set(self.rows)) != len(self.rows):
            raise BudgetError("A selection names the same row twice; each query counts once.")
        if not self.explored <= set(self.rows):
            raise BudgetError("A selection marks rows as explored that it did not select.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherScores:
    """p^T on the response tokens of S, kept as hidden states: the head is applied in chunks."""

    rows: tuple[int, ...]
    hidden: tuple[Tensor, ...]  # per selected row: [token, hidden], detached
    head: Callable[[Tensor], Tensor]  # hidden -> logits
    scored_tokens: int
    processed_tokens: int
    prefilled_prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentUpdate:
    """What one optimiser update did (Alg. 1, lines 12-13)."""

    loss: float
    gradient_norm: float
    learning_rate: float
    is_valid: bool
    utility: dict[int, float]
    """Selected row -> u (Eq. 9), detached; rows without a finite utility are absent."""
    dropped_labels: int
    processed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Everything a step leaves on record."""

    query_ratio: Decimal
    rollouts: Rollouts
    features: Features
    selection: Selection
    teacher: TeacherScores | None
    update: StudentUpdate
    learned: bool
    """Whether the predictor was updated after this step."""
    seconds: dict[str, float]
