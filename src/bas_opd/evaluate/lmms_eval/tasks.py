"""Task files for lmms-eval's `--include_path`, and tables of their questions."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bas_opd import disk
from bas_opd.data.writing import staged_set
from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import SEVEN, LoadedSet
from bas_opd.evaluate.questions import Question
from bas_opd.run.progress import Progress

PREFIX = "bas_opd"
"""Prefix of task names, because lmms-eval has its own tasks called pope or mmstar."""
ROWS_AT_ONCE = 32
"""The number of pictures in memory at a time, here and when the rows are read."""

_TEXTS = ("benchmark", "id", "prompt", "form", "reference", "options", "groups")

# `until` is empty, because by default a blank line would end an answer.
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
"""Functions of the task files beside this one: the scoring of the installed bas-opd."""

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
    progress: Progress,
) -> list[str]:
    """Write a task for each set and a group of all of them; return their names, the group last."""
    tasks = [f"{PREFIX}_{loaded.benchmark}" for loaded in sets]
    progress.start(sum(map(len, sets)), "writing")
    with staged_set(out) as staged:
        for task, loaded in zip(tasks, sets, strict=True):
            table = f"{loaded.benchmark}.parquet"
            _write_questions(loaded, staged.folder / table, progress)
            text = _TASK.format(
                task=task,
                # Older releases of lmms-eval resolve relative paths against the working directory.
                table=json.dumps(str(staged.place / table)),
                max_response_tokens=max_response_tokens,
                fingerprint=loaded.fingerprint,
                is_partial=json.dumps(loaded.is_partial),
            )
            disk.write_file(staged.folder / f"{task}.yaml", text)
        disk.write_file(staged.folder / f"{PREFIX}.yaml", _group(sets, tasks))
        disk.write_file(staged.folder / "functions.py", _FUNCTIONS)
    return [*tasks, PREFIX]


def _group(sets: Sequence[LoadedSet], tasks: Sequence[str]) -> str:
    """Return the group's file; it has an average only for the paper's seven benchmarks."""
    lines = [f"group: {PREFIX}", "task:", *(f"  - {task}" for task in tasks)]
    if {loaded.benchmark for loaded in sets} == set(SEVEN):
        lines += ["aggregate_metric_list:", "  - metric: rule_only", "    aggregation: mean"]
        lines += ["    weight_by_size: false"]
    return "\n".join(lines) + "\n"


def _write_questions(loaded: LoadedSet, table: Path, progress: Progress) -> None:
    try:
        arrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
    except ImportError as error:
        raise DataError(
            "Task files for lmms-eval need a library that is not installed. Run `pip install "
            "pyarrow`."
        ) from error
    schema = _schema(arrow)
    with parquet.ParquetWriter(table, schema) as writer:
        for start in range(0, len(loaded), ROWS_AT_ONCE):
            rows = []
            for question in loaded.questions[start : start + ROWS_AT_ONCE]:
                rows.append(_row(loaded.benchmark, question))
                progress.advance()
            writer.write_table(arrow.Table.from_pylist(rows, schema))


def _schema(arrow: Any) -> Any:
    """Return the columns, with metadata that marks one as a picture for the library `datasets`.

    lmms-eval uses it to drop pictures where they are not needed. They stay bytes, so that this
    package decodes them in one way everywhere.
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
