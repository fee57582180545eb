"""Write requirements.hashes.lock: the pins of requirements.lock with the hashes of their files.

torch is left out: builds for a CPU and for CUDA have the same version and other hashes, so each
index would need a lock of its own. Run `make hashes` after a change of requirements.lock.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
INDEX = "https://pypi.org/simple"
WITHOUT_HASH = ("torch",)
HEAD = """\
# Written by `make hashes`: the pins of requirements.lock, and the SHA-256 of every file that PyPI
# offers for them. torch is not here, since its builds share a version and differ in their hashes.
#   pip install --require-hashes --no-deps -r requirements.hashes.lock
#   pip install torch==TORCH
"""
_FILE = re.compile(r'href="[^"#]*/([^"/#]+)#sha256=([0-9a-f]{64})"')


def main() -> None:
    """Look up every pin."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    hashed = {name: version for name, version in pins.items() if name not in WITHOUT_HASH}
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(_hashes, hashed, hashed.values()))
    entries = [
        " \\\n    ".join((f"{name}=={version}", *(f"--hash=sha256:{each}" for each in hashes)))
        for (name, version), hashes in zip(hashed.items(), found, strict=True)
    ]
    text = HEAD.replace("TORCH", pins["torch"]) + "\n".join(entries) + "\n"
    (ROOT / "requirements.hashes.lock").write_text(text, encoding="utf-8")


def _hashes(name: str, version: str) -> list[str]:
    with urlopen(f"{INDEX}/{canonicalize_name(name)}/", timeout=60) as reply:
        page = reply.read().decode()
    files = _FILE.findall(page)
    hashes = sorted({digest for file, digest in files if _version(file) == Version(version)})
    if not hashes:
        raise SystemExit(f"{INDEX} has no file of {name} {version}. Correct requirements.lock.")
    return hashes


def _version(file: str) -> Version | None:
    try:
        parse = parse_wheel_filename if file.endswith(".whl") else parse_sdist_filename
        return parse(file)[1]
    except ValueError:  # An old format, or an old version that is none.
        return None


if __name__ == "__main__":
    main()
