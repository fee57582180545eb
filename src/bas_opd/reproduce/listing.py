"""The list of the paper's tables and figures, as `bas-opd reproduce --list` prints it."""

from __future__ import annotations

from bas_opd.reproduce.catalogue import ITEMS


def listing() -> str:
    """Return one line for each, and how to make them."""
    lines = [
        f"{each.name:<9}{each.shows}" + (f" - not here: {each.absent}" if each.absent else "")
        for each in ITEMS
    ]
    return "\n".join(
        (
            *lines,
            "",
            "bas-opd reproduce NAME --out DIR                FineSearch, small model; trains "
            "what is missing",
            "bas-opd reproduce NAME --out DIR --run RUN ...  of runs of your own",
            "bas-opd reproduce NAME --out DIR --scale paper  what Qwen3.5-4B would take",
            "bas-opd reproduce policies --out DIR            every policy and ablation in a table",
        )
    )
