"""All settings of a training run, with the paper's values as defaults.

Each description ends with the place in the paper that the default comes from. A setting without
one affects memory or convenience only and changes no result beyond rounding.
"""

from __future__ import annotations

import os
from decimal import ROUND_CEILING, Decimal
from math import ceil
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from bas_opd.errors import ConfigError
from bas_opd.rewards import Scale
from bas_opd.select.rules import PolicyName, policy_rule
from bas_opd.types import BudgetKind
from bas_opd.validation import extra_fields


def _exact(value: Any) -> Any:
    """Return the decimal as written: 0.29 is 29/100, not the nearest binary fraction."""
    if isinstance(value, float):
        value = repr(value)
    try:
        if isinstance(value, str) or type(value) is int:
            value = Decimal(value)
        # 0.10 and 0.1 are the same setting and must give the same hash.
        return value.normalize() if isinstance(value, Decimal) else value
    except ArithmeticError:  # no number, or none that is finite
        return value


def _expand_home(value: Any) -> Any:
    """Expand ~, which a shell does not do after `model.path=`."""
    return os.path.expanduser(value) if isinstance(value, str) else value


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _extra_fields(text: str) -> str:
    try:
        extra_fields(text)
    except ValueError as error:
        raise ValueError(f"judge.extra {error}.") from None
    return text


PathText = Annotated[str, BeforeValidator(_expand_home)]
Exact = Annotated[Decimal, BeforeValidator(_exact)]


class Section(BaseModel):
    """Validation is strict: an unknown key or a number written as text is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


MethodName = Literal["bas-opd", "sft", "grpo", "dapo", "opsd"]


class MethodConfig(Section):
    """How the policy is trained."""

    name: MethodName = Field(
        default="bas-opd",
        description="The paper's method, or one of those it compares with in Table 2 "
        "(docs/methods.md).",
    )


class ModelConfig(Section):
    """The policy p_theta: checkpoint, device and precision."""

    path: PathText = Field(
        min_length=1,
        description="Local folder or hub id of a Qwen3.5, Qwen3-VL or Qwen2.5-VL model; the paper "
        "trains Qwen3.5-4B and Qwen3.5-9B (Sec. 3.1).",
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Precision of the computation; parameters stay in float32. "
        "auto: bfloat16 on a GPU, float32 on a CPU.",
    )
    device: str = Field(
        default="auto", min_length=1, description="auto, cpu, cuda, or a torch device."
    )
    kernels: Literal["auto", "reference"] = Field(
        default="auto",
        description="auto: CUDA graphs and kernels of its own where a GPU has them. reference: "
        "none of them, which is slower; for comparing.",
    )
    thinking: bool = Field(
        default=False, description="Whether responses start with thinking; not in the paper's runs."
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Recompute activations in the backward pass to save memory."
    )
    min_pixels: int | None = Field(
        default=None,
        gt=0,
        description="Fewest pixels of an image; unset: the checkpoint's value.",
    )
    max_pixels: int | None = Field(
        default=None,
        gt=0,
        description="Most pixels of an image; unset: the checkpoint's value.",
    )

    @model_validator(mode="after")
    def _pixels_are_ordered(self) -> ModelConfig:
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(
                f"model.min_pixels is {self.min_pixels}, above model.max_pixels "
                f"({self.max_pixels}). Raise max_pixels or lower min_pixels."
            )
        return self


class LoraConfig(Section):
    """Low-rank adapters instead of full training; the paper trains all parameters."""

    rank: int = Field(default=0, ge=0, description="Rank of the adapters; 0 trains all parameters.")
    alpha: int = Field(default=32, gt=0, description="Adapter outputs are scaled by alpha / rank.")
    targets: Annotated[str | tuple[str, ...], BeforeValidator(_frozen)] = Field(
        default="language",
        min_length=1,
        description="language: every linear layer of the language model; all-linear: the vision "
        "tower's too; otherwise the names of the modules that peft adapts.",
    )


class DataConfig(Section):
    """The prepared set of full-image and crop pairs."""

    path: PathText = Field(
        min_length=1,
        description="Folder of a prepared set; the paper uses 3,120 pairs (Sec. 3.1).",
    )
    max_prompt_tokens: int = Field(
        default=8192,
        gt=0,
        description="Longest prompt, image tokens included; a longer one is an error, never cut. "
        "With max_response_tokens it gives the model length of 9,216 (Sec. 3.1, App. B.1).",
    )
    workers: int | None = Field(
        default=None,
        ge=0,
        le=256,
        description="Threads that open the pictures of the next step and of selected rows while "
        "the GPU works; 0: none. Unset: with a GPU, one less than its process has cores, at least "
        "1 and at most 8; on a CPU none. It changes no number.",
    )


class RolloutConfig(Section):
    """Sampling y ~ p_theta for every prompt of a step (Alg. 1, line 3)."""

    prompts_per_step: int = Field(default=28, gt=0, description="Prompts per step (Table 6).")
    per_prompt: int = Field(default=8, gt=0, description="Rollouts per prompt (Table 6).")
    temperature: float = Field(default=1.0, ge=1e-3, description="Sampling temperature.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus sampling threshold.")
    max_response_tokens: int = Field(
        default=1024, gt=0, description="Longest response, end token included (Sec. 3.1)."
    )
    prompts_per_batch: int | None = Field(
        default=None,
        gt=0,
        description="Prompts sampled together; unset: all. Saves memory and changes no sample.",
    )
    engine: Literal["sampler", "vllm"] = Field(
        default="sampler",
        description="What computes the rollouts: the sampler of this package, or vLLM in this "
        "process (docs/engines.md). In float32 both draw the same.",
    )
    engine_cache_gib: float = Field(
        default=4.0, gt=0, description="GiB of vLLM's cache of keys and values."
    )
    logprob_tolerance: float | None = Field(
        default=None,
        gt=0,
        description="Largest mean distance between the log-probs of vLLM and of the trainer before "
        "a run stops; unset: 0.001 in float32, 0.1 in bfloat16.",
    )
    ahead: Literal[0, 1] = Field(
        default=0,
        description="1: the rollouts of a step are drawn before the update of the step before it, "
        "one update late (docs/engines.md). 0: after it, as in the paper.",
    )
    overlap: bool = Field(
        default=False,
        description="With ahead=1, draw while the student is trained, by a copy of its network. "
        "It takes memory for that; in float32 it changes no number.",
    )
    correct: bool | Literal["auto"] = Field(
        default="auto",
        description="Weigh each token by the trainer's probability over that under which it was "
        "drawn, at most correct_cap (docs/engines.md). auto: for grpo and dapo where rollouts are "
        "not drawn by the trainer's own network with its present weights, and top_p is 1.",
    )
    correct_cap: float = Field(
        default=2.0, gt=0, description="Largest such weight; 2 in the released base code."
    )

    @model_validator(mode="after")
    def _engine_settings_are_used(self) -> RolloutConfig:
        for name in ("engine_cache_gib", "logprob_tolerance"):
            value = getattr(self, name)
            if self.engine == "sampler" and value != type(self).model_fields[name].default:
                raise ValueError(
                    f"rollout.{name} is {value}, but rollout.engine is sampler, which does not use "
                    "it. Remove it, or set rollout.engine=vllm."
                )
        if self.overlap and (not self.ahead or self.engine == "vllm"):
            why = (
                "rollout.engine is vllm, which shares the GPU with the trainer step by step"
                if self.ahead
                else "rollout.ahead is 0: nothing is drawn ahead"
            )
            raise ValueError(
                f"rollout.overlap is true, but {why}. Set rollout.overlap=false, or "
                "rollout.ahead=1 with rollout.engine=sampler."
            )
        return self


WEEK = 7 * 24 * 60
"""Minutes."""
COVERING = {"exploration": Decimal(0), "half_life": 100.0, "replay_capacity": 8192}
"""Defaults of the covering policy, which fits a regression and trains no network."""


class SelectConfig(Section):
    """Which rollouts are sent to the crop teacher (Alg. 1, lines 4-10 and 14)."""

    policy: PolicyName = Field(
        default="learned",
        description="How S is chosen from C (Sec. 2.2, App. A.1). regressed and covering are not "
        "in the paper; regressed25.toml has its settings, and covering defaults of its own.",
    )
    query_ratio: Exact = Field(
        default=Decimal("0.25"),
        gt=0,
        le=1,
        description="rho of K = floor(rho |C|) (Eq. 4, Table 6); in tokens, the share of what "
        "querying every candidate would cost.",
    )
    budget: BudgetKind = Field(
        default="calls",
        description="What the budget counts: calls, as in the paper; scored_tokens, the response "
        "tokens of the queried rows; or processed_tokens, all tokens that the teacher processes.",
    )
    coverage: bool = Field(
        default=False,
        description="Spread the queries over prompts and different responses; not in the paper. "
        "The covering policy always does.",
    )
    correctness: bool = Field(
        default=False,
        description="Let the covering policy know which responses are right by the answers of the "
        "data; the paper uses no answers.",
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="Seed of all random row selection (Table 5)."
    )
    exploration: Exact = Field(
        default=Decimal("0.1"),
        ge=0,
        le=1,
        description="epsilon of K_e = ceil(epsilon K) (Table 5).",
    )
    hidden: int = Field(default=32, gt=0, description="Hidden units of the predictor (Table 5).")
    learning_rate: float = Field(
        default=1e-3, gt=0, description="Adam learning rate of the predictor (Table 5)."
    )
    momentum: float = Field(
        default=0.99, ge=0, lt=1, description="Momentum of the running normaliser (Table 5)."
    )
    replay_capacity: int = Field(
        default=512, gt=0, description="Capacity of the replay buffer in labels (Table 5)."
    )
    replay_start: int = Field(
        default=96, gt=0, description="Labels in the buffer before the first update (Table 5)."
    )
    replay_batch: int = Field(default=256, gt=0, description="Batch size of an update (Table 5).")
    updates_per_step: int = Field(default=2, gt=0, description="Updates per step (Table 5).")
    half_life: float = Field(
        default=10.0, gt=0, description="Steps after which a label's weight is halved (Table 5)."
    )
    rank_weight: float = Field(
        default=0.2,
        ge=0,
        description="lambda_rank, the weight of the ranking loss (Eq. 10, Table 5).",
    )
    min_gap: float = Field(
        default=1e-6, ge=0, description="Utility gap above which a pair is ranked (Table 5)."
    )

    @model_validator(mode="before")
    @classmethod
    def _covering_has_defaults_of_its_own(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("policy") == "covering":
            return {**COVERING, **data}
        return data

    @model_validator(mode="after")
    def _correctness_is_used(self) -> SelectConfig:
        if self.correctness and not policy_rule(self.policy).covers:
            raise ValueError(
                f"select.correctness is true, but the {self.policy} policy does not use it. Set "
                "select.correctness=false or select.policy=covering."
            )
        return self

    @model_validator(mode="after")
    def _full_covers_anyway(self) -> SelectConfig:
        if policy_rule(self.policy).asks_everything and self.coverage:
            raise ValueError(
                "select.policy is full, which queries every candidate, but select.coverage is "
                "true and would leave out repeated responses. Set select.coverage=false or choose "
                "another policy."
            )
        return self

    @model_validator(mode="after")
    def _full_means_every_candidate(self) -> SelectConfig:
        if policy_rule(self.policy).asks_everything and self.query_ratio != 1:
            raise ValueError(
                f"select.policy is full, which queries every candidate, but select.query_ratio "
                f"is {self.query_ratio}. Set select.query_ratio=1 or choose another policy."
            )
        return self

    @model_validator(mode="after")
    def _replay_can_start(self) -> SelectConfig:
        if self.replay_start > self.replay_capacity:
            raise ValueError(
                f"select.replay_start is {self.replay_start}, but the replay holds only "
                f"{self.replay_capacity} labels, so the predictor would never learn. "
                "Lower select.replay_start or raise select.replay_capacity."
            )
        return self


class DistillConfig(Section):
    """The loss L_BAS on selected tokens and the utility u (Eqs. 7-9 and 11)."""

    alpha: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="alpha of D_alpha; 0.5 is the Jensen-Shannon divergence (Sec. 3.1).",
    )
    k: int = Field(default=100, gt=0, description="Size of the student's top-k support (Sec. 3.1).")
    support: Literal["tail", "renormalise"] = Field(
        default="tail",
        description="The probability mass outside the top k: one tail bucket, as in the released "
        "base code, or renormalised away. The paper does not say which.",
    )
    use_overlap: bool = Field(
        default=True, description="Whether u has the factor o (Eq. 9, Table 4)."
    )
    use_confidence: bool = Field(
        default=True, description="Whether u has the factor c (Eq. 8, Table 4)."
    )
    tokens_per_chunk: int = Field(
        default=512, gt=0, description="Tokens whose logits exist at once. Smaller saves memory."
    )


class TeacherConfig(Section):
    """The crop teacher p_theta-bar (Alg. 1, lines 11 and 13)."""

    mode: Literal["ema", "frozen", "live"] = Field(
        default="ema",
        description="ema: moving average of the student; frozen: its initial weights; "
        "live: the student itself (Sec. 3.1). A model of its own is always frozen.",
    )
    path: PathText | None = Field(
        default=None,
        min_length=1,
        description="Local folder or hub id of another model with the student's tokens, which "
        "teaches and never changes; unset: the student's own network, as in the paper "
        "(docs/teachers.md).",
    )
    server: str | None = Field(
        default=None,
        min_length=1,
        description="Address of a vLLM server whose model teaches, as in http://127.0.0.1:8000/v1, "
        "in place of teacher.path.",
    )
    model: str = Field(default="", description="Name of the model at that address.")
    key_variable: str = Field(
        default="", description="Environment variable that holds the key; empty: none is sent."
    )
    support: Literal["auto", "student", "teacher"] = Field(
        default="auto",
        description="At whose likeliest tokens a served teacher is compared. student: the "
        "student's, as in the paper, for one more pass of the student over the selected rows; "
        "teacher: its own; auto: the student's if the server can (docs/teachers.md).",
    )
    at_once: int = Field(default=8, gt=0, description="Requests that are out at once.")
    retries: int = Field(
        default=8,
        ge=0,
        description="Requests of a step beyond one for each selected row, for those that failed or "
        "were out at a kill. A row that is left without an answer is dropped.",
    )
    timeout_seconds: float = Field(
        default=300.0, gt=0, description="Seconds after which a request has failed."
    )
    price_per_million_tokens: Exact | None = Field(
        default=None,
        gt=0,
        description="What a million tokens of the server cost, in any currency; with "
        "teacher.spend_limit.",
    )
    spend_limit: Exact | None = Field(
        default=None,
        gt=0,
        description="Most that all requests of the run may cost, failed ones included. A run that "
        "reaches it stops with a checkpoint.",
    )
    view: Literal["crop", "full"] = Field(
        default="crop",
        description="What the teacher sees with bas-opd: the crop (Sec. 2.1), or the full image as "
        "the student does, which is not the paper's and needs another model (docs/teachers.md).",
    )
    tau: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="Rate of the moving average (Sec. 3.1; Alg. 1, line 13).",
    )
    tokens_per_batch: int = Field(
        default=16384, gt=0, description="Tokens per teacher pass. Smaller saves memory."
    )

    @model_validator(mode="before")
    @classmethod
    def _another_model_is_frozen(cls, data: Any) -> Any:
        if isinstance(data, dict) and (data.get("path") or data.get("server")):
            return {"mode": "frozen", **data}
        return data

    @model_validator(mode="after")
    def _another_model_stays_frozen(self) -> TeacherConfig:
        place = "path" if self.path is not None else "server"
        if self.is_another_model and self.mode != "frozen":
            raise ValueError(
                f"teacher.{place} names a model of its own, which never changes, but teacher.mode "
                f"is {self.mode}. Remove one of them."
            )
        if self.path is not None and self.server is not None:
            raise ValueError("teacher.path and teacher.server are both set. Remove one of them.")
        return self

    @model_validator(mode="after")
    def _server_has_what_it_needs(self) -> TeacherConfig:
        if self.server is not None and not self.model:
            raise ValueError("teacher.server needs the name of a model too. Set teacher.model.")
        if self.server is None:
            for name in SERVED:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"teacher.{name} is for a served teacher, but teacher.server is not set. "
                        "Set it, or remove the other."
                    )
        if (self.price_per_million_tokens is None) != (self.spend_limit is None):
            raise ValueError(
                "teacher.price_per_million_tokens and teacher.spend_limit need each other: a price "
                "without a limit bounds nothing, and a limit without a price counts nothing. Set "
                "both, or neither."
            )
        return self

    @property
    def is_another_model(self) -> bool:
        """Whether the teacher is not the student's own network."""
        return self.path is not None or self.server is not None


SERVED = (
    *("model", "key_variable", "support", "at_once", "retries", "timeout_seconds"),
    *("price_per_million_tokens", "spend_limit"),
)
"""Settings of `TeacherConfig` that only a served teacher has."""


class GrpoConfig(Section):
    """The clipped policy gradient of GRPO, which DAPO shares; dapo has other defaults."""

    scale: Scale = Field(
        default="std",
        description="What a reward less the mean of its group is divided by: the group's standard "
        "deviation, or nothing. The paper does not say; GRPO's own paper.",
    )
    clip_low: float = Field(
        default=0.2, gt=0, lt=1, description="The ratio is clipped below 1 - clip_low."
    )
    clip_high: float = Field(
        default=0.2, gt=0, description="The ratio is clipped above 1 + clip_high; dapo: 0.28."
    )
    dual_clip: float | None = Field(
        default=None,
        gt=1,
        description="Largest ratio that counts where the advantage is negative; unset: no limit.",
    )
    beta: float = Field(
        default=0.04,
        ge=0,
        description="Weight of the KL divergence (k3) from the initial model; 0: none, and the "
        "initial model is not kept. dapo: 0.",
    )
    aggregate: Literal["sequence", "token"] = Field(
        default="sequence",
        description="The loss is the mean of the rows' token means, or of all tokens of a "
        "mini-batch. dapo: token.",
    )
    updates_per_step: int = Field(
        default=1,
        gt=0,
        description="Mini-batches of prompts, each an optimizer update. dapo: 4.",
    )


class DapoConfig(Section):
    """Dynamic sampling and the overlong penalty of DAPO."""

    rounds: int = Field(
        default=4,
        gt=0,
        description="Most batches of prompts that are sampled in a step, to replace those whose "
        "rollouts are all right or all wrong.",
    )
    overlong_share: Exact = Field(
        default=Decimal("0.2"),
        ge=0,
        le=1,
        description="Last part of the longest response in which a soft penalty grows from 0 to 1; "
        "a fifth, as in DAPO's paper. 0: no penalty.",
    )


class SftConfig(Section):
    """Fine-tuning on responses of the initial model that sees the crop."""

    keep: Literal["right", "all"] = Field(
        default="right", description="Which responses are learned from: the right ones, or all."
    )


class JudgeConfig(Section):
    """A served model that decides about responses which no rule can read, for rewards."""

    url: str | None = Field(
        default=None,
        description="Address of an OpenAI-compatible server, as in http://127.0.0.1:8000/v1; "
        "unset: such responses earn nothing.",
    )
    model: str = Field(default="", description="Name of the model at that address.")
    key_variable: str = Field(
        default="",
        description="Environment variable that holds the key; empty: none is sent.",
    )
    max_requests: int = Field(
        default=1000,
        gt=0,
        description="Most requests of the run; equal cases are asked once. Beyond it responses "
        "that no rule can read earn nothing.",
    )
    extra: Annotated[str, AfterValidator(_extra_fields)] = Field(
        default="{}",
        description="Further fields of its requests as a JSON object in quotes, as to switch off "
        "thinking.",
    )


class OptimConfig(Section):
    """AdamW on theta."""

    learning_rate: float = Field(default=2e-6, gt=0, le=1, description="Learning rate (Sec. 3.1).")
    weight_decay: float = Field(default=0.01, ge=0, le=1, description="Weight decay (Sec. 3.1).")
    gradient_clip: float = Field(
        default=1.0, gt=0, description="Largest gradient norm; from the released base code."
    )
    warmup_steps: int = Field(
        default=10, ge=0, description="Steps of linear warm-up; from the released base code."
    )
    decay_until: int | None = Field(
        default=None,
        gt=0,
        description="Step at which a linear decay, which follows the warm-up, reaches 0; unset: "
        "the rate stays constant.",
    )
    tokens_per_micro_batch: int = Field(
        default=16384, gt=0, description="Tokens per student pass. Smaller saves memory."
    )
    share_prompts: bool = Field(
        default=True,
        description="Compute a prompt once for all its selected rollouts; same gradients.",
    )
    offload: bool = Field(
        default=False,
        description="Keep AdamW's moments and the teacher's weights in page-locked host memory, "
        "and copy them to the GPU piece by piece; same numbers, bit for bit.",
    )
    moments: Literal["float32", "8bit"] = Field(
        default="float32",
        description="How AdamW's moments are kept: 8bit takes a quarter of the memory and rounds "
        "them after each step (docs/configuration.md). They then stay on the GPU.",
    )

    @model_validator(mode="after")
    def _decay_follows_the_warm_up(self) -> OptimConfig:
        if self.decay_until is not None and self.decay_until <= self.warmup_steps:
            raise ValueError(
                f"optim.decay_until is {self.decay_until}, but the warm-up alone has "
                f"{self.warmup_steps} steps (optim.warmup_steps). Raise one or lower the other."
            )
        return self


class ShardConfig(Section):
    """Several processes that train together (docs/scale.md)."""

    timeout_minutes: float = Field(
        default=30.0, gt=0, description="Longest wait of a process for the others."
    )
    always: bool = Field(
        default=False,
        description="Treat the parameters of one process as those of several are, to measure what "
        "it costs.",
    )
    reshard: bool = Field(
        default=False,
        description="Gather the layers of the student's passes one by one, and sum the gradients "
        "of each as soon as they are there: less memory, more to exchange. One process alone does "
        "so with shard.always only.",
    )
    replicas: int = Field(
        default=1,
        ge=1,
        description="Into how many equal groups of neighbours the processes are cut, each with all "
        "parameters: weights are gathered within a group, and only gradients cross.",
    )


class EvalConfig(Section):
    """Evaluation during training; it changes no draw and no weight."""

    every: int = Field(
        default=0,
        ge=0,
        description="Steps between evaluations; the first comes before training, the last after "
        "it. 0: none.",
    )
    data: PathText | None = Field(
        default=None,
        min_length=1,
        description="Folder of a prepared set to evaluate on, other than that of training.",
    )
    limit: int | None = Field(
        default=None,
        gt=0,
        description="Most questions of an evaluation, as many of each kind as possible; unset: "
        "all.",
    )

    @model_validator(mode="after")
    def _has_data(self) -> EvalConfig:
        if self.every and self.data is None:
            raise ValueError(
                f"eval.every is {self.every}, but eval.data is not set. Give the folder of a "
                "prepared set, such as eval.data=data/val, or set eval.every=0."
            )
        return self


class RunConfig(Section):
    """Length, seed, output and checkpoints of the run."""

    seed: int = Field(default=42, ge=0, lt=2**63, description="Training seed (Table 6).")
    epochs: int = Field(
        default=1,
        gt=0,
        description="Passes over the data; one is the paper's 111 steps (Sec. 3.1).",
    )
    steps: int | None = Field(
        default=None,
        gt=0,
        description="Number of steps, across epochs if needed; unset: run.epochs decides.",
    )
    output: PathText | None = Field(
        default=None,
        min_length=1,
        description="Run directory; unset: runs/<name of the config file>.",
    )
    examples_per_step: int = Field(
        default=4,
        ge=0,
        description="Rows per step whose text is recorded, those learned from first.",
    )
    checkpoint_every: int = Field(
        default=10, gt=0, description="Steps between checkpoints; the last step always writes one."
    )
    keep_checkpoints: int = Field(
        default=2, gt=0, description="Number of newest checkpoints kept, teacher included."
    )
    keep_every: int | None = Field(
        default=None,
        gt=0,
        description="Also keep the checkpoints at multiples of this many steps, for audits.",
    )
    max_bad_steps: int = Field(
        default=10, gt=0, description="Consecutive non-finite steps after which the run stops."
    )


USED_BY: dict[str, frozenset[str]] = {
    "select": frozenset({"bas-opd"}),
    "distill": frozenset({"bas-opd", "opsd"}),
    "distill.use_overlap": frozenset({"bas-opd"}),
    "distill.use_confidence": frozenset({"bas-opd"}),
    "distill.tokens_per_chunk": frozenset({"bas-opd", "opsd", "sft", "grpo", "dapo"}),
    "teacher": frozenset({"bas-opd", "opsd"}),
    "teacher.view": frozenset({"bas-opd"}),
    "teacher.tokens_per_batch": frozenset({"bas-opd", "opsd", "grpo", "dapo"}),
    "grpo": frozenset({"grpo", "dapo"}),
    "dapo": frozenset({"dapo"}),
    "sft": frozenset({"sft"}),
    "judge": frozenset({"grpo", "dapo", "sft"}),
    "rollout.correct": frozenset({"bas-opd", "opsd", "grpo", "dapo"}),
    "rollout.ahead": frozenset({"bas-opd", "opsd", "grpo", "dapo"}),
}
"""Section or setting -> the methods that use it; all others are used by every method."""
DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "grpo": {"optim": {"learning_rate": 1e-6}},
    "dapo": {
        "optim": {"learning_rate": 1e-6},
        "grpo": {"clip_high": 0.28, "beta": 0.0, "aggregate": "token", "updates_per_step": 4},
    },
}
"""Method -> defaults of its own."""


class Config(Section):
    """All settings of a run, from `load_config` or built in code."""

    method: MethodConfig = MethodConfig()
    model: ModelConfig
    lora: LoraConfig = LoraConfig()
    data: DataConfig
    rollout: RolloutConfig = RolloutConfig()
    select: SelectConfig = SelectConfig()
    distill: DistillConfig = DistillConfig()
    teacher: TeacherConfig = TeacherConfig()
    grpo: GrpoConfig = GrpoConfig()
    dapo: DapoConfig = DapoConfig()
    sft: SftConfig = SftConfig()
    judge: JudgeConfig = JudgeConfig()
    optim: OptimConfig = OptimConfig()
    shard: ShardConfig = ShardConfig()
    eval: EvalConfig = EvalConfig()
    run: RunConfig = RunConfig()

    def uses(self, setting: str) -> bool:
        """Return whether the method uses a setting, such as grpo.beta."""
        users = USED_BY.get(setting) or USED_BY.get(setting.partition(".")[0])
        return users is None or self.method.name in users

    def check_used(self, setting: str) -> None:
        """Refuse a setting that the method does not use."""
        if self.uses(setting):
            return
        section, _, key = setting.partition(".")
        users = USED_BY.get(setting) or USED_BY[section]
        raise ConfigError(
            f"{setting} is {getattr(getattr(self, section), key)}, but the method "
            f"{self.method.name} does not use it; it belongs to {', '.join(sorted(users))}. Remove "
            "it, or choose another method.name."
        )

    def check_typed(self, setting: str) -> None:
        """Refuse a typed setting that is not used; a recipe may serve several engines."""
        self.check_used(setting)
        is_sampling = setting == "rollout.prompts_per_batch" and not self.eval.every
        if is_sampling and self.rollout.engine == "vllm":
            raise ConfigError(
                f"{setting} is {self.rollout.prompts_per_batch}, but rollout.engine is vllm, which "
                "batches by the size of its cache. Remove it; rollout.engine_cache_gib is the size."
            )

    def check_limits(self) -> None:
        """Refuse what cannot be meant. A run that was begun before this was refused is still read.

        Processes wait for a week at most, and the prompts of a step can be cut into the updates.
        """
        if self.shard.timeout_minutes > WEEK:
            raise ConfigError(
                f"shard.timeout_minutes is {self.shard.timeout_minutes:g}, but may be {WEEK:,} "
                "(a week) at most. Lower it."
            )
        prompts, updates = self.rollout.prompts_per_step, self.grpo.updates_per_step
        made = ceil(prompts / ceil(prompts / updates))
        if self.uses("grpo.updates_per_step") and made != updates:
            raise ConfigError(
                f"grpo.updates_per_step is {updates}, but {prompts} prompts "
                f"(rollout.prompts_per_step) make {made} mini-batches of up to "
                f"{ceil(prompts / updates)}. Set it to {made}, or choose a multiple of {updates} "
                "prompts."
            )

    @property
    def queries(self) -> SelectConfig | None:
        """How teacher queries are selected; None for a method that makes none.

        OPSD asks about every candidate.
        """
        if self.method.name == "opsd":
            return SelectConfig(policy="full", query_ratio=Decimal(1))
        return self.select if self.method.name == "bas-opd" else None

    @property
    def importance_cap(self) -> float | None:
        """Largest importance weight of a token; None where tokens have none."""
        rollout, corrects = self.rollout, self.rollout.correct
        if corrects == "auto":
            is_other = rollout.engine != "sampler" or rollout.ahead > 0
            has_ratio = self.method.name in ("grpo", "dapo") and rollout.top_p == 1
            corrects = is_other and has_ratio
        return rollout.correct_cap if corrects else None

    @property
    def keeps_second_weights(self) -> bool:
        """Whether a teacher or a reference has a second set of the student's weights."""
        if self.queries is not None:
            return self.teacher.mode != "live" and not self.teacher.is_another_model
        return self.method.name == "sft" or self.grpo.beta > 0

    @property
    def grades_responses(self) -> bool:
        """Whether the method compares responses with the answers of the data."""
        name = self.method.name
        return name in ("grpo", "dapo") or (name == "sft" and self.sft.keep == "right")

    @property
    def needs_answers(self) -> bool:
        """Whether the method learns from the answers of the data."""
        return self.method.name == "opsd" or self.grades_responses

    @property
    def needs_crops(self) -> bool:
        """Whether the method learns from crops."""
        if self.method.name == "bas-opd":
            return self.teacher.view == "crop"
        return self.method.name == "sft"

    @model_validator(mode="before")
    @classmethod
    def _methods_have_defaults_of_their_own(cls, data: Any) -> Any:
        method = data.get("method") if isinstance(data, dict) else None
        name = method.get("name") if isinstance(method, dict) else None
        sections = {
            section: {**defaults, **data.get(section, {})}
            for section, defaults in DEFAULTS.get(name if isinstance(name, str) else "", {}).items()
            if isinstance(data.get(section, {}), dict)
        }
        return {**data, **sections} if sections else data

    @model_validator(mode="after")
    def _every_setting_is_used(self) -> Config:
        for section, default in _DEFAULT_SECTIONS.items():
            # The mode of a teacher follows from its path, so the path is named first.
            for key, value in sorted(getattr(self, section), key=lambda found: found[0] == "mode"):
                if value != getattr(default, key):
                    self.check_used(f"{section}.{key}")
        return self

    @model_validator(mode="after")
    def _groups_can_be_compared(self) -> Config:
        if self.method.name not in ("grpo", "dapo"):
            return self
        rollout, updates = self.rollout, self.grpo.updates_per_step
        if rollout.per_prompt < 2:
            raise ValueError(
                f"method.name is {self.method.name}, which compares the rollouts of a prompt with "
                "each other, but rollout.per_prompt is 1. Set rollout.per_prompt to 2 or more."
            )
        if updates > rollout.prompts_per_step:
            raise ValueError(
                f"grpo.updates_per_step is {updates}, but a step has only "
                f"{rollout.prompts_per_step} prompts (rollout.prompts_per_step). Lower one or "
                "raise the other."
            )
        if rollout.top_p < 1 and updates > 1:
            raise ValueError(
                f"rollout.top_p is {rollout.top_p:g} and grpo.updates_per_step is {updates}, but "
                "ratios of probabilities are not known where sampling cuts the distribution. Set "
                "rollout.top_p=1 or grpo.updates_per_step=1."
            )
        return self

    @model_validator(mode="after")
    def _weights_are_known_and_used(self) -> Config:
        rollout = self.rollout
        if rollout.correct is True and rollout.top_p < 1:
            raise ValueError(
                f"rollout.correct is true and rollout.top_p is {rollout.top_p:g}, but ratios of "
                "probabilities are not known where sampling cuts the distribution. Set "
                "rollout.top_p=1 or rollout.correct=false."
            )
        default = RolloutConfig.model_fields["correct_cap"].default
        if self.importance_cap is None and rollout.correct_cap != default:
            raise ValueError(
                f"rollout.correct_cap is {rollout.correct_cap:g}, but no token has an importance "
                "weight in this run. Remove it, or set rollout.correct=true."
            )
        return self

    @model_validator(mode="after")
    def _next_batch_is_known(self) -> Config:
        if self.method.name == "dapo" and self.rollout.ahead and self.dapo.rounds > 1:
            raise ValueError(
                f"rollout.ahead is 1 and dapo.rounds is {self.dapo.rounds}, but how many batches a "
                "step draws is known when they are graded, so the next one cannot be drawn before. "
                "Set rollout.ahead=0 or dapo.rounds=1."
            )
        return self

    @model_validator(mode="after")
    def _another_model_sees_what_the_student_sees(self) -> Config:
        if self.teacher.view == "full" and not self.teacher.is_another_model:
            raise ValueError(
                "teacher.view is full, but the teacher is the student's own network: both would "
                "see the same image, and nothing would be learned. Set teacher.view=crop, or name "
                "another model with teacher.path or teacher.server."
            )
        return self

    @model_validator(mode="after")
    def _server_shares_no_prompts(self) -> Config:
        if self.teacher.server is not None and self.select.budget == "processed_tokens":
            raise ValueError(
                "select.budget is processed_tokens, which counts a prompt once for all its rows, "
                "but a server (teacher.server) computes it for each. Set select.budget to calls or "
                "scored_tokens; teacher.spend_limit bounds all tokens."
            )
        return self

    @model_validator(mode="after")
    def _judge_has_a_name_and_work(self) -> Config:
        if self.judge.url is None and self.judge != JudgeConfig():
            raise ValueError("judge has settings, but no judge.url. Set it, or remove the others.")
        if self.judge.url and not self.judge.model:
            raise ValueError("judge.url needs the name of a model too. Set judge.model.")
        if self.judge.url and not self.grades_responses:
            raise ValueError(
                "judge.url is set, but sft.keep=all grades no response. Remove it, or set "
                "sft.keep=right."
            )
        return self


_DEFAULT_SECTIONS: dict[str, Section] = {
    "select": SelectConfig(),
    "distill": DistillConfig(),
    "teacher": TeacherConfig(),
    "grpo": GrpoConfig(),
    "dapo": DapoConfig(),
    "sft": SftConfig(),
    "judge": JudgeConfig(),
    "rollout": RolloutConfig(),
}
"""Sections of which not every method uses all, as they are where nothing was set."""


def overlong_cache(config: Config) -> int:
    """Return the tokens over which DAPO's penalty grows, rounded up: 205 of 1,024."""
    share = config.dapo.overlong_share * config.rollout.max_response_tokens
    return int(share.to_integral_value(ROUND_CEILING))
