"""What lmms-eval calls: the picture and prompt of a row, its verdict, and a task's number.

A row is what `tasks.write_tasks` wrote. There is no judge here, and lmms-eval does not say whether
an answer was cut at the limit: what the rule leaves to a judge is unscored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from bas_opd.data.images import decode_image
from bas_opd.evaluate.answering import Output
from bas_opd.evaluate.benchmarks import Scored, benchmark
from bas_opd.evaluate.questions import Question
from bas_opd.evaluate.scoring import Sample, by_judge, by_rule


def doc_to_visual(doc: Mapping[str, Any]) -> list[Image.Image]:
    """Return the one full picture, as `bas-opd eval` decodes it."""
    return [decode_image(doc["image"]["bytes"], name=f"of {doc['id']}")]


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """Return the prompt as `bas-opd eval` puts it."""
    return doc["prompt"]


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """Return what the rule makes of an answer, under the names of a task's metrics."""
    question = Question(
        id=doc["id"],
        picture=lambda: doc["image"]["bytes"],
        prompt=doc["prompt"],
        form=doc["form"],
        reference=doc["reference"],
        options=json.loads(doc["options"]),
        groups=json.loads(doc["groups"]),
    )
    sample = Sample(question=question, output=Output(text=results[0], is_cut=False))
    scored = by_rule(benchmark(doc["benchmark"]), sample) or by_judge(question, None)
    return {
        "rule_only": {
            "benchmark": doc["benchmark"],
            "id": scored.id,
            "outcome": scored.outcome,
            "source": scored.source,
            "value": scored.value,
            "groups": dict(scored.groups),
        },
        "deferred": float(scored.source == "judge"),
    }


def rule_only(verdicts: Sequence[Mapping[str, Any]]) -> float:
    """Return the paper's number with what was deferred counted as not correct.

    It is not a number where a part that it needs has no question, as under `--limit`.
    """
    scored = [
        Scored(
            id=each["id"],
            outcome=each["outcome"],
            source=each["source"],
            value=each["value"],
            groups=each["groups"],
        )
        for each in verdicts
    ]
    value = benchmark(verdicts[0]["benchmark"]).summarise(scored).rule_only.value
    return math.nan if value is None else value
