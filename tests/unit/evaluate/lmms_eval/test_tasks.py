"""Task files for lmms-eval: read as it reads them, scored as `bas-opd eval` scores."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from benchmark_files import png, stored, write_file, write_lines, write_parquet
from progress_fixtures import Quiet
from typer.testing import CliRunner

from bas_opd.cli.main import app
from bas_opd.data.finesearch import make_finesearch
from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import NAMES, SEVEN, LoadedSet, benchmark
from bas_opd.evaluate.lmms_eval.functions import process_results, rule_only
from bas_opd.evaluate.lmms_eval.tasks import ROWS_AT_ONCE, write_tasks
from bas_opd.evaluate.questions import Output
from bas_opd.evaluate.scoring import by_judge, by_rule

SAID = ["A", "The answer is (B).", "I cannot tell.", "one or two, perhaps", "", "Yes", "red"]


def v_star(folder: Path, rows: int = 4) -> Path:
    names = [f"p/{n}.png" for n in range(rows)]
    for n, name in enumerate(names):
        write_file(folder / name, png(size=(n + 1, 2)))
    text, category = 'Which "one"?\n(A) one: 1\n(B) two', "direct_attributes"
    write_lines(
        folder / "test_questions.jsonl",
        [{"image": name, "text": text, "category": category, "label": "A"} for name in names],
    )
    return folder


def cv_bench(folder: Path, kinds: tuple[str, ...] = ("2D", "3D")) -> Path:
    for kind in kinds:
        row = {"type": kind, "task": "Count", "source": "COCO", "question": "How many?"}
        row |= {"choices": ["1", "2", "3"], "answer": "(B)", "image": stored(png())}
        held = [row | {"idx": n} for n in range(3 if kind == "2D" else 4)]
        write_parquet(folder / f"test_{kind.lower()}.parquet", held)
    return folder


def pope(folder: Path) -> Path:
    row = {"question": "Is there a cat?", "answer": "yes", "image": stored(png())}
    held = [row | {"category": "random", "question_id": str(n)} for n in range(5)]
    write_parquet(folder / "data/test.parquet", held)
    return folder


def finesearch(folder: Path) -> Path:
    make_finesearch(folder, split="val", size="small", n=3, seed=1)
    return folder


def task_config(path: Path) -> dict[str, Any]:
    """Read a task file; functions are looked for in files beside it, as lmms-eval does."""

    class Loader(yaml.SafeLoader):
        pass

    def function(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
        name, wanted = str(loader.construct_scalar(node)).split(".")
        spec = importlib.util.spec_from_file_location(name, path.parent / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, wanted)

    Loader.add_constructor("!function", function)
    with path.open("rb") as stream:
        return yaml.load(stream, Loader)


def written(out: Path, *sets: LoadedSet) -> list[str]:
    return write_tasks(sets, out, max_response_tokens=64, progress=Quiet())


@pytest.mark.parametrize(
    ("name", "make"),
    [("vstar", v_star), ("cvbench", cv_bench), ("pope", pope), ("finesearch", finesearch)],
)
def test_a_task_asks_and_scores_as_the_evaluation_does(
    name: str, make: Any, tmp_path: Path
) -> None:
    loaded = benchmark(name).load(make(tmp_path / "set"), partial=True)
    assert written(tmp_path / "out", loaded) == [f"bas_opd_{name}", "bas_opd"]
    config = task_config(tmp_path / f"out/bas_opd_{name}.yaml")
    docs = pq.read_table(config["dataset_kwargs"]["data_files"][config["test_split"]]).to_pylist()
    assert [config["doc_to_text"](doc) for doc in docs] == [q.prompt for q in loaded.questions]
    assert [doc[config["doc_to_target"]] for doc in docs] == [q.reference for q in loaded.questions]
    assert [doc["image"]["bytes"] for doc in docs] == [q.picture() for q in loaded.questions]
    results, expected = [], []
    for place, (doc, question) in enumerate(zip(docs, loaded.questions, strict=True)):
        said = SAID[place % len(SAID)] if place else question.reference
        del doc["image"]  # lmms-eval drops it before it scores
        results.append(config["process_results"](doc, [said]))
        output = Output(text=said, is_cut=False)
        expected.append(by_rule(benchmark(name), question, output) or by_judge(question, None))
    summary = benchmark(name).summarise(expected)
    number, deferred = config["metric_list"]
    assert number["metric"] == "rule_only"
    assert number["aggregation"]([each["rule_only"] for each in results]) == summary.rule_only.value
    assert 0 < (summary.rule_only.value or 0) < 1
    assert (deferred["metric"], deferred["aggregation"]) == ("deferred", "mean")
    assert [each["deferred"] for each in results] == [each.source == "judge" for each in expected]


def test_what_only_a_judge_can_read_is_deferred_and_not_correct(tmp_path: Path) -> None:
    loaded = benchmark("vstar").load(v_star(tmp_path / "set"), partial=True)
    written(tmp_path / "out", loaded)
    doc = pq.read_table(tmp_path / "out/vstar.parquet").to_pylist()[0]
    result = process_results(doc, ["perhaps one, perhaps the other"])
    assert (result["rule_only"]["outcome"], result["deferred"]) == ("unscored", 1.0)
    assert rule_only([result["rule_only"]]) == 0.0


def test_a_number_that_lacks_one_of_its_parts_is_none(tmp_path: Path) -> None:
    loaded = benchmark("cvbench").load(cv_bench(tmp_path / "set", kinds=("2D",)), partial=True)
    written(tmp_path / "out", loaded)
    docs = pq.read_table(tmp_path / "out/cvbench.parquet").to_pylist()
    assert math.isnan(rule_only([process_results(doc, ["(B)"])["rule_only"] for doc in docs]))


def test_a_picture_is_known_as_one_and_decoded_here(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    loaded = benchmark("vstar").load(v_star(tmp_path / "set", rows=ROWS_AT_ONCE + 1), partial=True)
    written(tmp_path / "out", loaded)
    table = pq.read_table(tmp_path / "out/vstar.parquet")
    assert len(table) == ROWS_AT_ONCE + 1
    features = datasets.Features.from_arrow_schema(table.schema)
    assert features["image"] == datasets.Image(decode=False)
    assert features["prompt"] == datasets.Value("string")
    config = task_config(tmp_path / "out/bas_opd_vstar.yaml")
    (picture,) = config["doc_to_visual"](table.slice(2, 1).to_pylist()[0])
    assert (picture.mode, picture.size) == ("RGB", (3, 2))


def test_answers_are_greedy_and_end_at_no_blank_line(tmp_path: Path) -> None:
    loaded = benchmark("vstar").load(v_star(tmp_path / "set"), partial=True)
    written(tmp_path / 'a "quoted": place', loaded)
    config = task_config(tmp_path / 'a "quoted": place/bas_opd_vstar.yaml')
    assert config["generation_kwargs"] == {
        "until": [],
        "max_new_tokens": 64,
        "temperature": 0,
        "do_sample": False,
    }
    assert Path(config["dataset_kwargs"]["data_files"]["test"]).is_file()
    assert config["metadata"] == {"fingerprint": loaded.fingerprint, "is_partial": True}


def test_only_the_seven_have_an_average(tmp_path: Path) -> None:
    one = benchmark("vstar").load(v_star(tmp_path / "set", rows=1), partial=True)
    seven = [
        LoadedSet(
            benchmark=name,
            folder=one.folder,
            questions=one.questions,
            fingerprint=one.fingerprint,
            is_partial=True,
        )
        for name in SEVEN
    ]
    written(tmp_path / "seven", *seven)
    group = task_config(tmp_path / "seven/bas_opd.yaml")
    assert group["task"] == [f"bas_opd_{name}" for name in SEVEN]
    average = {"metric": "rule_only", "aggregation": "mean", "weight_by_size": False}
    assert group["aggregate_metric_list"] == [average]
    written(tmp_path / "six", *seven[1:])
    assert "aggregate_metric_list" not in task_config(tmp_path / "six/bas_opd.yaml")


def test_a_folder_that_holds_something_is_left_as_it_is(tmp_path: Path) -> None:
    loaded = benchmark("vstar").load(v_star(tmp_path / "set"), partial=True)
    with pytest.raises(DataError, match="not an empty folder"):
        written(tmp_path / "set", loaded)


def test_the_command_writes_the_tasks_and_says_how_to_use_them(tmp_path: Path) -> None:
    v_star(tmp_path / "sets/vstar")
    typed = ["data", "lmms-eval", str(tmp_path / "out"), "--bench", "vstar", "--data"]
    refused = CliRunner().invoke(app, [*typed, str(tmp_path / "sets")])
    assert refused.exit_code != 0
    assert "--partial" in refused.output
    assert not (tmp_path / "out").exists()
    done = CliRunner().invoke(app, [*typed, str(tmp_path / "sets"), "--partial"])
    assert done.exit_code == 0, done.output
    assert f"--include_path {tmp_path / 'out'} --tasks bas_opd" in done.output
    assert (tmp_path / "out/bas_opd_vstar.yaml").is_file()


@pytest.mark.parametrize("command", [["eval"], ["data", "lmms-eval"]])
def test_the_help_names_every_benchmark(command: list[str]) -> None:
    shown = CliRunner().invoke(app, [*command, "--help"]).output
    assert set(NAMES) <= set(re.findall(r"\w+", shown))
