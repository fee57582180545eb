"""Task files for lmms-eval's `--include_path`, with the questions that they ask."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bas_opd.data.writing import staged_set
from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import SEVEN, LoadedSet
from bas_opd.evaluate.questions import Question

PREFIX = "bas_opd"
"""Of names of tasks, since lmms-eval has tasks of its own called pope or mmstar."""
ROWS_AT_ONCE = 32
"""As many pictures are in memory, here and later where rows are read again."""

_TEXTS = ("benchmark", "id", "prompt", "form", "reference", "options", "groups")

# A blank line ends no answer, though it would if `until` were left out.
_TASK = """\
task: {task}
dataset_path: parquet
dataset_kwargs:
  data_files:
    test: {table}
test_split: test
output_type: generate_until
doc_to_visual: !function functions.doc_to_visual
doc_to_text: !function functions.doc_to_text
doc_to_target: reference
process_results: !function functions.process_results
generation_kwargs:
  until: []
  max_new_tokens: {max_response_tokens}
  temperature: 0
  do_sample: false
metric_list:
  - metric: rule_only
    aggregation: !function functions.rule_only
    higher_is_better: true
  - metric: deferred
    aggregation: mean
    higher_is_better: false
metadata:
  fingerprint: {fingerprint}
  is_partial: {is_partial}
"""

_FUNCTIONS = '''\
"""What the task files beside this one call: the scoring is that of the installed bas-opd."""

from bas_opd.evaluate.lmms_eval.functions import (
    doc_to_text,
    doc_to_visual,
    process_results,
    rule_only,
)

__all__ = ["doc_to_text", "doc_to_visual", "process_results", "rule_only"]
'''


def write_tasks(
    sets: Sequence[LoadedSet],
    out: Path,
    *,
    max_response_tokens: int,
    on_row: Callable[[], None] = lambda: None,
) -> list[str]:
    """Write a task for each set and a group of all of them; return their names, the group last."""
    tasks = [f"{PREFIX}_{loaded.benchmark}" for loaded in sets]
    with staged_set(out) as staged:
        for task, loaded in zip(tasks, sets, strict=True):
            table = f"{loaded.benchmark}.parquet"
            _write_questions(loaded, staged.folder / table, on_row)
            text = _TASK.format(
                task=task,
                # Older releases of lmms-eval look for a relative path where they were started.
                table=json.dumps(str(staged.place / table)),
                max_response_tokens=max_response_tokens,
                fingerprint=loaded.fingerprint,
                is_partial=json.dumps(loaded.is_partial),
            )
            (staged.folder / f"{task}.yaml").write_text(text, "utf-8")
        (staged.folder / f"{PREFIX}.yaml").write_text(_group(sets, tasks), "utf-8")
        (staged.folder / "functions.py").write_text(_FUNCTIONS, "utf-8")
    return [*tasks, PREFIX]


def _group(sets: Sequence[LoadedSet], tasks: Sequence[str]) -> str:
    """Return the group's file; only of the paper's seven is there an average."""
    lines = [f"group: {PREFIX}", "task:", *(f"  - {task}" for task in tasks)]
    if {loaded.benchmark for loaded in sets} == set(SEVEN):
        lines += ["aggregate_metric_list:", "  - metric: rule_only", "    aggregation: mean"]
        lines += ["    weight_by_size: false"]
    return "\n".join(lines) + "\n"


def _write_questions(loaded: LoadedSet, table: Path, on_row: Callable[[], None]) -> None:
    try:
        arrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
    except ImportError as error:
        raise DataError(
            "Task files for lmms-eval need a library that is not installed. Run `pip install "
            "'bas-opd[parquet]'`."
        ) from error
    schema = _schema(arrow)
    with parquet.ParquetWriter(table, schema) as writer:
        for start in range(0, len(loaded), ROWS_AT_ONCE):
            rows = []
            for question in loaded.questions[start : start + ROWS_AT_ONCE]:
                rows.append(_row(loaded.benchmark, question))
                on_row()
            writer.write_table(arrow.Table.from_pylist(rows, schema))


def _schema(arrow: Any) -> Any:
    """Return the columns, and what tells the library `datasets` that one of them is a picture.

    lmms-eval drops pictures by it where they are not needed. They stay bytes, so that they are
    decoded as everywhere else in this package.
    """
    picture = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    features = {name: {"dtype": "string", "_type": "Value"} for name in _TEXTS}
    known = {"info": {"features": features | {"image": {"decode": False, "_type": "Image"}}}}
    columns = [*((name, arrow.string()) for name in _TEXTS), ("image", picture)]
    return arrow.schema(columns, metadata={"huggingface": json.dumps(known)})


def _row(name: str, question: Question) -> dict[str, Any]:
    return {
        "benchmark": name,
        "id": question.id,
        "prompt": question.prompt,
        "form": question.form,
        "reference": question.reference,
        "options": json.dumps(dict(question.options)),
        "groups": json.dumps(dict(question.groups)),
        "image": {"bytes": question.picture(), "path": None},
    }
