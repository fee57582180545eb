"""Rollouts one step ahead: those of a step are drawn before the update of the step before it.

What a step learns from is then one update old, and can be drawn while that update is computed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bas_opd.errors import BasOpdError, CheckpointError
from bas_opd.rollout.engine import RolloutEngine
from bas_opd.types import (
    DistantPrompt,
    EngineReport,
    Example,
    Part,
    Prompt,
    PromptBatch,
    Rollouts,
)

PATIENCE_SECONDS = 3.0
"""How long `close` waits for sampling that goes on."""

Saved = Mapping[str, Tensor]


class AheadEngine:
    """Draws the batch after the one it returns, with the weights that were loaded last.

    The first batch is drawn when it is asked for. Both batches are saved in checkpoints: a step
    that was given up is taken again with the one, a step that was taken is followed by the other.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        encode: Callable[[Example], Prompt],
        prompt_length: Callable[[Example], int],
        *,
        beside: Beside | None = None,
    ) -> None:
        """`encode` returns the prompt of an example, which a checkpoint does not hold.

        `prompt_length` is asked first, and must need no pixels. `beside` runs the engine, which
        must have a network of its own, in a thread.
        """
        self._engine, self._encode, self._beside = engine, encode, beside
        self._prompt_length = prompt_length
        self._weights: tuple[Mapping[str, Tensor], int] | None = None
        self._held: dict[int, Rollouts | Saved | Future[Rollouts]] = {}
        """Step -> its rollouts: of the step in progress, and of the one after it."""

    def load_weights(self, named: Mapping[str, Tensor], version: int) -> None:
        """Note the weights; they are loaded before they draw."""
        self._weights = named, version

    def generate(self, batch: PromptBatch) -> Rollouts:
        """Return the rollouts of a batch, and begin with those of the batch after it."""
        step = batch.step
        # What cannot be had stays held: no checkpoint is written without it.
        held, coming = self._held.get(step), self._held.get(step + 1)
        rollouts = self._drawn(batch) if held is None else self._whole(held, batch)
        self._held = {step: rollouts}
        if batch.upcoming:
            following = PromptBatch(step=step + 1, examples=batch.upcoming)
            self._held[step + 1] = self._begun(following) if coming is None else coming
        return rollouts

    def close(self) -> None:
        """Give up what is being drawn, and free the engine unless it still draws."""
        self._held.clear()
        if self._beside is None or self._beside.close():
            self._engine.close()

    def parts(self) -> dict[str, Part]:
        """Return itself: a checkpoint holds the rollouts that are still to be used."""
        return {"rollouts": self}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the rollouts that are held, after those that are being drawn."""
        found: dict[str, Tensor] = {}
        for step, held in self._held.items():
            held = held.result() if isinstance(held, Future) else held
            saved = _saved(held) if isinstance(held, Rollouts) else held
            found |= {f"{step}.{name}": tensor for name, tensor in saved.items()}
        return found

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Hold saved rollouts."""
        steps: dict[int, dict[str, Tensor]] = {}
        for key, tensor in state.items():
            step, _, name = key.partition(".")
            steps.setdefault(int(step), {})[name] = tensor
        self._held = dict(steps)

    def _drawn(self, batch: PromptBatch) -> Rollouts:
        version = self._load()
        return replace(self._engine.generate(batch), sampled_at=version)

    def _begun(self, batch: PromptBatch) -> Rollouts | Future[Rollouts]:
        if self._beside is None:
            return self._drawn(batch)
        self._beside.poll()  # A run that must stop does not begin with another batch.
        version = self._load()
        return self._beside.start(lambda: replace(self._engine.generate(batch), sampled_at=version))

    def _load(self) -> int:
        if self._weights is None:
            raise BasOpdError("No weights to sample with: call load_weights before generate.")
        self._engine.load_weights(*self._weights)
        return self._weights[1]

    def _whole(self, held: Rollouts | Saved | Future[Rollouts], batch: PromptBatch) -> Rollouts:
        if isinstance(held, Future):
            return held.result()
        if isinstance(held, Rollouts):
            return held
        return _restored(held, batch, self._encode, self._prompt_length)


class Beside:
    """Runs work in a thread, on a GPU in a stream of its own."""

    def __init__(self, device: torch.device, stop: Callable[[], None] = lambda: None) -> None:
        """`stop` raises if the run must stop."""
        self._device, self._stop = device, stop
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def poll(self) -> None:
        """Raise if the work is given up, or if the run must stop.

        A request to stop does not end work in the thread: the step that goes on meanwhile may be
        finished, and then the weights that draw here are gone.
        """
        if self._is_closed:
            raise BasOpdError("Sampling ahead was given up, because the run ends.")
        if threading.current_thread() is not self._thread:
            self._stop()

    def start(self, work: Callable[[], Rollouts]) -> Future[Rollouts]:
        """Start work after what this thread has asked of the GPU so far."""
        future: Future[Rollouts] = Future()
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._thread = threading.Thread(
            target=self._run, args=(work, future), name="rollouts", daemon=True
        )
        self._thread.start()
        return future

    def close(self) -> bool:
        """Give up the work and wait a short time for its end; return whether it has ended."""
        self._is_closed = True
        if self._thread is None:
            return True
        self._thread.join(PATIENCE_SECONDS)
        return not self._thread.is_alive()

    def _run(self, work: Callable[[], Rollouts], future: Future[Rollouts]) -> None:
        context: AbstractContextManager[Any] = nullcontext()
        if self._stream is not None:
            context = torch.cuda.stream(self._stream)
        try:
            with context:
                future.set_result(work())
        except BaseException as error:
            future.set_exception(error)


def _saved(rollouts: Rollouts) -> dict[str, Tensor]:
    found = {
        "sampled_at": torch.tensor(rollouts.sampled_at),
        "prompt_tokens": torch.tensor([prompt.length for prompt in rollouts.prompts]),
        "tokens": rollouts.tokens,
        "lengths": rollouts.lengths,
        "logprobs": rollouts.logprobs,
    }
    if rollouts.entropies is not None:
        found["entropies"] = rollouts.entropies
    if (engine := rollouts.engine) is not None:
        found["engine_rows"] = torch.tensor(engine.rows)
        found["engine_counts"] = torch.tensor([engine.version, engine.tokens])
        found["engine_gap"] = torch.tensor(engine.logprob_gap, dtype=torch.float64)
    return {name: tensor.contiguous() for name, tensor in found.items()}


def _restored(
    saved: Saved,
    batch: PromptBatch,
    encode: Callable[[Example], Prompt],
    prompt_length: Callable[[Example], int],
) -> Rollouts:
    """Return saved rollouts of a batch; prompts are encoded again when they are computed with."""
    lengths, engine = saved["prompt_tokens"].tolist(), None
    if len(lengths) != len(batch.examples):
        raise CheckpointError(
            f"The checkpoint holds rollouts of {len(lengths)} prompts for step {batch.step}, which "
            f"has {len(batch.examples)}. Restore the data of the run."
        )
    for example, length in zip(batch.examples, lengths, strict=True):
        if (now := prompt_length(example)) != length:
            raise CheckpointError(
                f"The checkpoint holds rollouts of example {example.id!r} for step {batch.step}, "
                f"whose prompt had {length:,} tokens, image included, and now has {now:,}. Restore "
                f"{example.image} as it was and resume with --accept-changes once more, or start "
                "over in another run.output."
            )
    if "engine_rows" in saved:
        version, tokens = saved["engine_counts"].tolist()
        engine = EngineReport(
            version=version,
            rows=tuple(saved["engine_rows"].tolist()),
            tokens=tokens,
            logprob_gap=float(saved["engine_gap"]),
        )
    return Rollouts(
        step=batch.step,
        examples=batch.examples,
        prompts=tuple(
            DistantPrompt(length, partial(encode, example))
            for length, example in zip(lengths, batch.examples, strict=True)
        ),
        per_prompt=len(saved["lengths"]) // max(1, len(lengths)),
        tokens=saved["tokens"],
        lengths=saved["lengths"],
        logprobs=saved["logprobs"],
        entropies=saved.get("entropies"),
        engine=engine,
        sampled_at=int(saved["sampled_at"]),
    )
