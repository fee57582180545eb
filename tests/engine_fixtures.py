"""A small model with vLLM beside it, for tests that compare the two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bas_opd.data.views import full_view
from bas_opd.model.encoding import ViewEncoder
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler, SamplingSettings, vllm_engine
from bas_opd.rollout.vllm_engine import VllmEngine, VllmSettings

SETTINGS = SamplingSettings(per_prompt=4, max_response_tokens=24)


class Beside:
    """A small model, and vLLM beside it."""

    def __init__(
        self,
        model: VisionLanguageModel,
        folder: Path,
        settings: SamplingSettings,
        *,
        cache_gib: float = 0.25,
    ) -> None:
        vllm = VllmSettings(folder=str(folder), context=512, cache_gib=cache_gib)
        self.model = model
        self.sampler = Sampler(model, full_view, settings)
        self.engine = VllmEngine(model, ViewEncoder(model.processor, full_view), settings, vllm)
        self.version = 0
        self.before = dict[str, Tensor]()
        """The weights before they were last changed."""

    def sync(self) -> None:
        self.version += 1
        self.engine.load_weights(self.model.trainable(), self.version)

    @torch.no_grad()
    def train(self) -> None:
        """Change every weight, as an update does, but more."""
        generator = torch.Generator().manual_seed(self.version)
        for name, weight in self.model.trainable().items():
            self.before[name] = weight.detach().clone()
            noise = torch.randn(weight.shape, generator=generator)
            weight += 0.1 * (weight.std() if weight.numel() > 1 else 1.0) * noise

    @contextmanager
    def loading(self, change: Callable[[str, Tensor], Tensor | None]) -> Iterator[None]:
        """Let vLLM load other weights than it is sent; none where there is None."""
        call = self.engine.engine.collective_rpc

        def changed(method: Any, *arguments: Any, **named: Any) -> Any:
            if method == "reload_weights":
                sent = named["kwargs"]["weights_iterator"]
                loaded = ((name, change(name, weight)) for name, weight in sent)
                left = ((name, weight) for name, weight in loaded if weight is not None)
                named["kwargs"] = {"weights_iterator": left}
            return call(method, *arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.engine.engine, "collective_rpc", changed)
            yield

    def losing(self, lost: str) -> AbstractContextManager[None]:
        """Let vLLM load no weights whose names have some part."""
        return self.loading(lambda name, weight: None if lost in name else weight)

    def keeping(self, old: str) -> AbstractContextManager[None]:
        """Let vLLM keep the weights before whose names have some part."""
        return self.loading(lambda name, weight: self.before[name] if old in name else weight)

    def sync_unchecked(self) -> None:
        """Load the weights, and compare nothing."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(vllm_engine, "wrong_weights", lambda *_: [])
            self.sync()
