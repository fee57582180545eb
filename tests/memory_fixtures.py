"""How much memory tensors take, and the peak of an update beside what a plan counts."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from run_fixtures import tiny
from stage_fixtures import crop_teacher, make_examples, make_model
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bas_opd.commands.fitting import fit
from bas_opd.data.views import full_view
from bas_opd.distill.loss import DistillSettings
from bas_opd.learn import Distillation, Learner, OptimizerSettings
from bas_opd.model.activations import Batch, activations
from bas_opd.model.delta import Way, computing
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.run.footprint import measure
from bas_opd.types import PromptBatch


def size_of(tensors: Iterable[Tensor | None]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors if each is not None)


class Live(TorchDispatchMode):
    """Adds up the memory of all tensors that exist while passes run."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        self.most, self._now = 0, 0
        self._parameters = parameters
        self._own = {p.untyped_storage()._cdata for p in parameters}
        self._known: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor):
                self._see(tensor.untyped_storage())
        # Those of the network change without an operation.
        whole = sum(p.untyped_storage().nbytes() for p in self._parameters)
        self.most = max(self.most, self._now + whole)
        return found

    def _see(self, storage: Any) -> None:
        place = storage._cdata
        if place not in self._own and place not in self._known:
            self._known[place] = storage.nbytes()
            self._now += storage.nbytes()
            weakref.finalize(storage, self._forget, place)

    def _forget(self, place: int) -> None:
        self._now -= self._known.pop(place)


def peak_of_an_update(
    folder: Path, place: Path, *, checkpointing: bool, prompts: int = 4, way: Way = "reference"
) -> tuple[int, int]:
    """Return the most bytes of an update, and what a plan counts."""
    model = make_model(folder, gradient_checkpointing=checkpointing)
    model.processor = replace(model.processor, eos_ids=())
    first, *_ = make_examples(place, n=2)
    config = tiny(
        folder,
        place,
        place / "run",
        "model.precision=float32",
        f"model.kernels={'reference' if way == 'reference' else 'auto'}",
        f"model.gradient_checkpointing={str(checkpointing).lower()}",
        f"rollout.prompts_per_step={prompts}",
        "rollout.per_prompt=4",
        "rollout.max_response_tokens=65",
        "select.policy=full",
        "select.query_ratio=1",
        "optim.tokens_per_micro_batch=1",
    )
    sampling = SamplingSettings(per_prompt=4, max_response_tokens=65)
    rollouts = Sampler(model, full_view, sampling).generate(
        PromptBatch(step=3, examples=tuple(replace(first, id=f"e{i}") for i in range(prompts)))
    )
    rows = rollouts.candidates()
    (length,) = {prompt.length for prompt in rollouts.prompts}
    tokens = prompts * (length + 4 * 65)
    learner = Learner(model, OptimizerSettings(tokens_per_micro_batch=tokens))
    scores = crop_teacher(model).score(rollouts, rows)
    objective = Distillation(scores, head=model.logits, settings=DistillSettings(k=20))
    weights = list(model.network.parameters())
    with computing(way), Live(weights) as live:
        learner.accumulate(rollouts, rows, objective)

    images = sum(int(cast("Any", prompt).grid.prod()) for prompt in rollouts.prompts) // 4
    batch = Batch(tokens=tokens, images=images, rows=4 * prompts, prompt=length)
    kept = activations(folder, way=way).kept(batch, checkpointing=checkpointing)
    # A plan does not know which tokens are of pictures.
    chosen = config.model_copy(
        update={"optim": config.optim.model_copy(update={"tokens_per_micro_batch": tokens})}
    )
    planned = fit(chosen, gpus=1, lengths=[length] * prompts).forms[0]
    assert planned.checkpointing == checkpointing
    assert planned.micro_batch >= kept
    return live.most - size_of(weights), measure(config, is_gpu=True).gradients + kept
