"""Finish the longer study of Table 2: the last learning rates, the runs, the tables of its page.

    PYTHONPATH=src python -m recipes.table2.finish --out runs/table2-long --jobs 16

Rerun to resume; run it from the root of the repository. If it ran on another machine, bring
OUT/sweep and OUT/results back and run it here: it then only writes. The rates are in the study's
file before its runs start, and every result has the hash of that file. The sentences of
docs/table2-long.md and docs/table2.md are then still to be written;
tests/paper/test_table2.py names them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bas_opd.files import write_bytes, write_text
from bas_opd.report.charts.printed import save
from bas_opd.reproduce.catalogue import cost_figure
from bas_opd.reproduce.policies import best_rates, sweep_table
from bas_opd.reproduce.results import RunResult, read_results
from bas_opd.reproduce.study import read_study
from bas_opd.reproduce.table import folder_table, write_table

DOCS = Path("docs")
ARMS, RATES, SEED = ("grpo-released", "opsd", "opsd-frozen"), (1e-6, 3e-6, 1e-5), 25
LEFT = (
    *("--lr-sweep", ",".join(map(str, RATES))),
    *("--seeds", str(SEED), "--arms", ",".join(ARMS)),
)
"""The trials that the draft still lacks."""


def main(arguments: list[str] | None = None) -> None:
    """Do what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for data, runs and results")
    parser.add_argument("--jobs", type=int, default=16, help="runs in parallel")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--docs", type=Path, default=DOCS, help="folder of the page and its records"
    )
    given = parser.parse_args(arguments)
    page, folder = given.docs / "table2-long.md", given.docs / "results/table2-long"
    study = folder / "study.toml"
    options = ("--out", str(given.out), "--jobs", str(given.jobs), "--device", given.device)
    if read_study(study).declared.draft:
        if lacks(given.out / "sweep", [f"{a}-{SEED}-lr{rate:g}" for a in ARMS for rate in RATES]):
            reproduce(study, *options, *LEFT)
        keep(given.out / "sweep", folder / "sweep")
        chosen = best_rates(read_results(folder / "sweep"))
        write_text(study, declare(study.read_text("utf-8"), chosen))
    write_rates(page, sweep_table(in_order(study, read_results(folder / "sweep"))))
    arms = read_study(study).arms.items()
    if lacks(given.out / "results", ["base", *(f"{a.name}-{s}" for a, own in arms for s in own)]):
        reproduce(study, *options)
    keep(given.out / "results", folder, study=read_study(study).hash)
    write_table(page, folder_table(folder))
    for file in save(cost_figure(folder), given.docs / "figures/table2-long"):
        print(file)


def reproduce(study: Path, *options: str) -> None:
    """Make the runs that are missing."""
    command = [sys.executable, "-m", "bas_opd", "reproduce", "study", str(study), "--yes"]
    if code := subprocess.run([*command, *options], check=False).returncode:
        raise SystemExit(code)  # It has said why.


def lacks(folder: Path, names: list[str]) -> bool:
    """Return whether a result is missing."""
    return not all((folder / f"{name}.json").exists() for name in names)


def keep(made: Path, kept: Path, *, study: str | None = None) -> None:
    """Copy results and questions to the published ones, which are never replaced.

    First all are compared: what is not of the study, the data and the base is not published.
    """
    results = read_results(made) + (read_results(kept) if any(kept.glob("*.json")) else [])
    if len({(each.train, each.questions, each.base) for each in results}) > 1:
        raise SystemExit(f"The results in {made} and {kept} differ in data or base model.")
    if other := [each for each in results if each.study != study]:
        raise SystemExit(
            f"{len(other)} of the results in {made} and {kept} are of another study or of an older "
            "version of its file. Remove them, and run this again."
        )
    kept.mkdir(parents=True, exist_ok=True)
    for file in [*made.glob("*.json"), *made.glob("*.csv")]:
        if not (kept / file.name).exists():
            write_bytes(kept / file.name, file.read_bytes())


def declare(text: str, rates: Mapping[str, float]) -> str:
    """Write the rates into the file of a study, which is no draft any more."""
    for arm, rate in rates.items():
        pattern = rf'(name = "{re.escape(arm)}"\n(?:settings = .*\n)?learning_rate = )(\S+)'
        found = re.search(pattern, text)
        if found is None:
            raise SystemExit(f"The study has no arm {arm} with a learning rate below its name.")
        if float(found[2]) != rate:
            text = text[: found.start(2)] + f"{rate:g}" + text[found.end(2) :]
    return text.replace("draft = true\n", "")


def in_order(study: Path, results: list[RunResult]) -> list[RunResult]:
    """Order results by the arms of the study."""
    order = [arm.name for arm in read_study(study).arms]
    return sorted(results, key=lambda result: order.index(result.arm))


def write_rates(page: Path, table: str) -> None:
    """Replace the table of learning rates of the page."""
    text = page.read_text("utf-8")
    start, end = (
        re.search(r"^\| learning rate \|", text, re.M),
        re.search(r"^The mean of.*\n", text, re.M),
    )
    if start is None or end is None:
        raise SystemExit(f"{page} has no table of learning rates.")
    write_text(page, text[: start.start()] + table + text[end.end() :])


if __name__ == "__main__":
    main()
