"""Loading a checkpoint, with or without LoRA adapters: fp32 parameters on one device."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForImageTextToText

from bas_opd.compute.compiling import Kernels, choose_kernels
from bas_opd.compute.memory import ran_out
from bas_opd.errors import ConfigError, ModelError
from bas_opd.model.attention import register_grouped_attention
from bas_opd.model.base import model_folder
from bas_opd.model.family import checkpoint_config
from bas_opd.model.folder import check_adapter, check_folder, local_folder, no_weights
from bas_opd.model.processing import Processor
from bas_opd.model.recompute import recompute_layers
from bas_opd.model.vlm import VisionLanguageModel

Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """Low-rank adapters, trained in place of the network's own parameters."""

    rank: int = 16
    alpha: int = 32
    targets: str | tuple[str, ...] = "language"
    """`language` adapts every linear layer of the language model, `all-linear` the vision tower's
    too. Else as in peft: endings of module names, or one pattern for whole names."""
    seed: int = 0


def load_model(
    path: str | Path,
    *,
    device: torch.device,
    gradient_checkpointing: bool = False,
    lora: LoraSettings | None = None,
    adapter: Path | None = None,
) -> nn.Module:
    """Load a folder or hub id with fp32 parameters, safetensors only and no code of its own.

    `lora` adds new adapters to train. `adapter` is a folder of trained ones, which are merged into
    the weights. The network comes in evaluation mode.
    """
    # Reading weights draws random numbers too: transformers initialises some before it fills them.
    with torch.random.fork_rng(devices=[]):
        network = _read_network(path)
        if adapter is not None:
            network = _merged(network, adapter)
        if lora is not None:
            torch.default_generator.manual_seed(lora.seed)
            network = with_adapters(network, lora)
    if gradient_checkpointing:
        recompute_layers(network)
    return network.to(device).eval()


def open_model(
    path: str | Path,
    *,
    device: str = "auto",
    precision: Precision = "auto",
    thinking: bool = False,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    lora: LoraSettings | None = None,
    adapter: Path | None = None,
    gradient_checkpointing: bool = False,
    frozen: bool = False,
    on_host: bool = False,
    kernels: Kernels | None = None,
) -> VisionLanguageModel:
    """Load a network and its processor; `auto` precision is bf16 on a GPU and fp32 on the CPU.

    A frozen network has nothing to train, and stores its linear layers in that precision; with
    `on_host` it is loaded into host memory, for `VisionLanguageModel.shard`. `kernels` are chosen
    for all models of the process; unset: as chosen before.
    """
    place = resolve_device(device)
    if kernels is not None:
        choose_kernels(kernels)
    checkpoint_config(path)
    # The small files come first: a damaged one is named before weights of many gigabytes are read.
    processor = Processor.load(
        path, thinking=thinking, min_pixels=min_pixels, max_pixels=max_pixels
    )
    network = load_model(
        path,
        device=torch.device("cpu") if on_host else place,
        gradient_checkpointing=gradient_checkpointing,
        lora=lora,
        adapter=adapter,
    )
    if frozen:
        network.requires_grad_(False)
    if precision == "auto":
        precision = "bfloat16" if place.type == "cuda" else "float32"
    return VisionLanguageModel(
        network, processor, precision=getattr(torch, precision), device=place if on_host else None
    )


def resolve_device(name: str) -> torch.device:
    """Return the named device; `auto` is the first GPU where there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"There is no device named {name!r}. Use auto, cpu, cuda or cuda:0."
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"A run needs a CPU or a CUDA GPU; {name} is neither. Use auto or cpu.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"The device {name} was asked for, but torch sees no GPU. Use auto or cpu, or install "
            "a CUDA build of torch."
        )
    return device


def _read_network(path: str | Path) -> Any:
    folder = local_folder(path)
    check_folder(folder)
    if name := getattr(checkpoint_config(folder), "transformers_weights", None):
        raise ModelError(
            f"The config.json of {path} names the weights {name!r} (transformers_weights), which "
            "is not supported. Remove that setting."
        )
    try:
        loaded: Any = AutoModelForImageTextToText.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation=register_grouped_attention(),
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, SafetensorError) as error:
        raise no_weights(path) from error
    except ImportError as error:
        raise ModelError(
            f"A package that the model at {path} needs cannot be imported: {error} Install it, or "
            "repair its installation."
        ) from error
    except Exception as error:  # As with settings that no network can be built from.
        if ran_out(error):
            raise
        raise ModelError(
            f"The weights at {path} do not fit its config.json ({type(error).__name__}: {error}). "
            "Use the config.json that the weights were saved with."
        ) from error
    network, report = loaded
    # Adapters are saved with the name of their base: a hub id, not a folder of its cache.
    network.name_or_path = network.config.name_or_path = str(model_folder(path))
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"The weights at {path} lack {len(missing)} parameters, the first being {missing[0]}. "
            "They would be random: check that all weight files were downloaded or saved."
        )
    return network


def with_adapters(network: Any, lora: LoraSettings) -> Any:
    """Return the network with adapters to train and everything else frozen."""
    peft = _peft()
    language_only = lora.targets == "language"
    targets = list(lora.targets) if isinstance(lora.targets, tuple) else lora.targets
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules="all-linear" if language_only else targets,
        exclude_modules=r".*\bvisual\..*" if language_only else None,
    )
    try:
        return peft.get_peft_model(network, config)
    except ValueError as error:
        raise ModelError(
            f"LoRA found nothing to adapt for the targets {lora.targets}: {error}"
        ) from error


def _merged(network: Any, adapter: Path) -> Any:
    """Return the network with trained adapters added to its weights."""
    check_adapter(adapter)
    try:
        return _peft().PeftModel.from_pretrained(network, str(adapter)).merge_and_unload()
    except (OSError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
        raise ModelError(
            f"The adapters in {adapter} cannot be loaded into this model: {error} Use the base "
            "model that they were trained from."
        ) from error


def _peft() -> Any:
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise ModelError(
            "LoRA needs the peft library, which is not installed. Run `pip install peft`."
        ) from error
