"""One table or figure, from its name to its files."""

from __future__ import annotations

from pathlib import Path

from bas_opd.errors import ConfigError
from bas_opd.report.figures import save
from bas_opd.reproduce.catalogue import Made, Material, item
from bas_opd.reproduce.material import GivenRuns, KeptResults, SmallScale
from bas_opd.reproduce.paper_scale import instructions
from bas_opd.reproduce.policies import Request
from bas_opd.run.progress import Progress as Board


def make_item(
    name: str,
    request: Request,
    board: Board,
    *,
    runs: tuple[Path, ...] = (),
    results: Path | None = None,
) -> str:
    """Make a table or figure, and return what the user is to read.

    It is made of `runs` or of kept `results` if they are given, else of what is trained for it.
    """
    wanted = item(name)
    if wanted.make is None:
        raise ConfigError(f"{name} ({wanted.shows}) cannot be made: {wanted.absent}.")
    material: Material
    if runs:
        material = GivenRuns(runs)
    elif results is not None:
        material = KeptResults(results)
    elif request.scale == "paper" and wanted.arms:
        return instructions(wanted)
    else:
        material = SmallScale(request=request, board=board)
    return _written(name, wanted.make(material, wanted.arms), request.out)


def _written(name: str, made: Made, out: Path) -> str:
    out.mkdir(parents=True, exist_ok=True)
    if made.text:
        (out / f"{name}.md").write_text(f"{made.text}\n", encoding="utf-8")
        return made.text
    files = [
        file
        for end, figure in (made.figures or {}).items()
        for file in save(figure, out / f"{name}{end}")
    ]
    return "\n".join(str(file) for file in files)
