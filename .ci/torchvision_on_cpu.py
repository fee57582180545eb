"""Let torchvision be imported beside a torch for CPUs.

vLLM needs it for its transforms, and transformers' own processors for videos. PyPI has only its
build for CUDA, whose operators do not load there, and importing it fails since it describes them
all the same. The index of PyTorch has builds for CPUs, of which nothing is changed here.
"""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

path = Path(sysconfig.get_path("purelib")) / "torchvision" / "_meta_registrations.py"
text = path.read_text(encoding="utf-8")
described = re.compile(r'^@(torch\.library\.register_fake\("torchvision::\w+"\))$', re.MULTILINE)
loaded = r"@(\1 if torchvision.extension._has_ops() else lambda described: described)"
path.write_text(described.sub(loaded, text), encoding="utf-8")
