"""Budget-aware selective on-policy self-distillation for vision-language models."""

__version__ = "0.1.0"
