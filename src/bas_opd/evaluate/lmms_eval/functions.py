"""Functions that lmms-eval calls: picture and prompt of a row, its verdict, a task's number.

`tasks.write_tasks` wrote the rows. There is no judge here, so answers that the rule defers are
unscored. lmms-eval does not say whether an answer was cut at the token limit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from PIL import Image

from bas_opd.data.images import decode_image
from bas_opd.evaluate.benchmarks import benchmark
from bas_opd.evaluate.questions import Output, Picture, Question
from bas_opd.evaluate.samples import scored_of
from bas_opd.evaluate.scoring import by_judge, by_rule


def doc_to_visual(doc: Mapping[str, Any]) -> list[Image.Image]:
    """Return the one full picture, as `bas-opd eval` decodes it."""
    return [decode_image(doc["image"]["bytes"], name=f"of {doc['id']}")]


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """Return the prompt that `bas-opd eval` uses."""
    return doc["prompt"]


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """Return the rule's verdict on an answer, under the names of a task's metrics."""
    question = Question(
        id=doc["id"],
        picture=Picture(lambda: doc["image"]["bytes"], name=f"of {doc['id']}"),
        prompt=doc["prompt"],
        form=doc["form"],
        reference=doc["reference"],
        options=json.loads(doc["options"]),
        groups=json.loads(doc["groups"]),
    )
    output = Output(text=results[0], is_cut=None)
    scored = by_rule(benchmark(doc["benchmark"]), question, output) or by_judge(question, None)
    return {
        "rule_only": {"benchmark": doc["benchmark"], **asdict(scored)},
        "deferred": float(scored.source == "judge"),
    }


def rule_only(verdicts: Sequence[Mapping[str, Any]]) -> float:
    """Return the paper's number, with deferred answers counted as not correct.

    It is NaN if a part of the benchmark that it needs has no question, as under `--limit`.
    """
    scored = [scored_of(each) for each in verdicts]
    value = benchmark(verdicts[0]["benchmark"]).summarise(scored).rule_only.value
    return math.nan if value is None else value
