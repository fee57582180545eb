"""vLLM's server with its second model runner on a CPU: its Triton kernels are interpreted.

vLLM runs that runner where Triton can compile, which Triton from PyPI cannot do for a CPU. Triton's
own interpreter computes the same kernels with CPU tensors, so all that is missing is a backend of
the name that vLLM looks for.
"""

from __future__ import annotations

import os
import runpy
from importlib import import_module
from typing import Any

os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}

triton: Any = import_module("triton.backends")
base: Any = import_module("triton.backends.driver").DriverBase
target: Any = import_module("triton.backends.compiler").GPUTarget


class Interpreted(base):
    """A backend that compiles nothing."""

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> Any:
        return target("cpu", 0, 0)


# The interpreter calls none of the methods that a compiler needs.
Interpreted.__abstractmethods__ = frozenset()
triton.backends["cpu"] = triton.Backend(compiler=None, driver=Interpreted)

if __name__ == "__main__":  # The processes that it starts import this file too.
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
