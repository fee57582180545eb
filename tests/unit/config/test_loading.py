from __future__ import annotations

import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from bas_opd.config import Config, config_hash, dump, load_config
from bas_opd.errors import ConfigError

PATHS = ["model.path=m", "data.path=d"]


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text('[model]\npath = "m"\n[data]\npath = "d"\n')
    return path


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


def test_an_override_beats_the_file_and_the_last_one_wins(config_file: Path) -> None:
    config_file.write_text(config_file.read_text() + "[distill]\nk = 7\n")
    assert load_config(config_file).distill.k == 7
    assert load_config(config_file, ["distill.k=8", "distill.k=9"]).distill.k == 9


@pytest.mark.parametrize("ratio", ["0.29", "0.07", "0.2500000000000000000001"])
def test_a_ratio_stays_the_decimal_that_was_written(config_file: Path, ratio: str) -> None:
    override = load_config(config_file, [f"select.query_ratio={ratio}"])
    config_file.write_text(config_file.read_text() + f"[select]\nquery_ratio = {ratio}\n")
    file = load_config(config_file)
    assert override.select.query_ratio == file.select.query_ratio == Decimal(ratio)


def test_a_float_given_in_code_is_the_decimal_it_shows() -> None:
    config = Config.model_validate(
        {"model": {"path": "m"}, "data": {"path": "d"}, "select": {"query_ratio": 0.29}}
    )
    assert config.select.query_ratio == Decimal("0.29")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("model.path=Qwen/Qwen3.5-4B", "Qwen/Qwen3.5-4B"),
        ("model.path=2026", "2026"),
        ("model.path=1e5", "1e5"),
        ("model.path=2026-01-01", "2026-01-01"),
        ("model.path=true", "true"),
        ("model.path=a=b", "a=b"),
        ('model.path="two words"', "two words"),
        ("model.path=x\nrun.seed = 1", "x\nrun.seed = 1"),
        ("model.path='a'\nb = 1", "'a'\nb = 1"),
    ],
)
def test_text_needs_no_quotes_and_is_never_read_as_a_number(
    config_file: Path, override: str, value: str
) -> None:
    assert load_config(config_file, [override]).model.path == value


def test_a_list_is_read_as_a_list(config_file: Path) -> None:
    config = load_config(config_file, ['lora.targets=["q_proj", "v_proj"]'])
    assert config.lora.targets == ("q_proj", "v_proj")


def test_a_file_that_extends_another_keeps_what_it_does_not_name(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("[distill]\nk = 7\nalpha = 0.25\n")
    child = tmp_path / "sub" / "child.toml"
    child.parent.mkdir()
    child.write_text('extends = "../base.toml"\n[distill]\nk = 8\n')
    config = load_config(child, PATHS)
    assert (config.distill.k, config.distill.alpha) == (8, 0.25)


def test_files_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b.toml"\n')
    (tmp_path / "b.toml").write_text('extends = "a.toml"\n')
    assert "extends itself" in refusal(tmp_path / "a.toml")


def test_the_output_folder_is_named_after_the_config_file(config_file: Path) -> None:
    assert load_config(config_file).run.output == "runs/mine"
    assert load_config(config_file, ["run.output=elsewhere"]).run.output == "elsewhere"


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("select.query_ration", "select.query_ratio"),
        ("selct.policy", "select.policy"),
        ("rollout.tau", "teacher.tau"),
        ("tau", "teacher.tau"),
        ("select.policy.name", "select.policy"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(
    config_file: Path, key: str, nearest: str
) -> None:
    message = refusal(config_file, f"{key}=1")
    assert message == f"On the command line, {key} is not a setting. Did you mean {nearest}?"


def test_an_unknown_key_of_a_file_names_the_file(config_file: Path) -> None:
    config_file.write_text(config_file.read_text() + "[select]\nquery_ration = 0.1\n")
    message = refusal(config_file)
    assert message.startswith(f"In {config_file}, select.query_ration is not a setting.")


def test_an_unknown_key_of_an_extended_file_names_that_file(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("[selct]\nseed = 1\n")
    (tmp_path / "child.toml").write_text('extends = "base.toml"\n')
    assert refusal(tmp_path / "child.toml").startswith(f"In {tmp_path / 'base.toml'}, selct.seed")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rollout.per_prompt=8.5", "rollout.per_prompt is 8.5, but an integer is"),
        ('rollout.per_prompt="8"', "rollout.per_prompt is '8', but an integer is"),
        ("rollout.per_prompt=true", "rollout.per_prompt is true, but an integer is"),
        ("rollout.per_prompt=0", "rollout.per_prompt is 0, but a number greater than 0 is"),
        ("distill.alpha=1.5", "distill.alpha is 1.5, but a number of at most 1 is"),
        ("select.momentum=1", "select.momentum is 1, but a number less than 1 is"),
        ("select.seed=-1", "select.seed is -1, but a number of at least 0 is"),
        ("optim.learning_rate=fast", "optim.learning_rate is 'fast', but a number is"),
        ("optim.learning_rate=nan", "optim.learning_rate is nan, but a finite number is"),
        ("select.query_ratio=some", "select.query_ratio is 'some', but a decimal number is"),
        ("select.query_ratio=0", "select.query_ratio is 0, but a number greater than 0 is"),
        ("select.query_ratio=inf", "select.query_ratio is infinity, but a finite number is"),
        ("distill.use_overlap=1", "distill.use_overlap is 1, but true or false is"),
        ("distill.support=none", "distill.support is 'none', but 'tail' or 'renormalise' is"),
        ("lora.targets=3", "lora.targets is 3, but text or a list of texts is"),
        ("lora.targets=[]", "lora.targets is (), but a list that is not empty is"),
        ("model.path=", "model.path is '', but text that is not empty is"),
    ],
)
def test_a_wrong_value_is_explained_in_a_sentence(
    config_file: Path, override: str, expected: str
) -> None:
    assert refusal(config_file, override) == f"On the command line, {expected} expected."


def test_a_wrong_value_of_a_file_names_the_file(config_file: Path) -> None:
    config_file.write_text(config_file.read_text() + '[distill]\nk = "all"\n')
    expected = f"In {config_file}, distill.k is 'all', but an integer is expected."
    assert refusal(config_file) == expected


def test_all_wrong_values_are_named_at_once(config_file: Path) -> None:
    assert len(refusal(config_file, "distill.k=0", "teacher.tau=2").splitlines()) == 2


def test_a_missing_model_or_dataset_says_what_to_give(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("")
    model, data = refusal(path).splitlines()
    assert model.startswith("model.path is not set: give a local folder or hub id")
    assert data.startswith("data.path is not set: give the folder of a prepared set")


@pytest.mark.parametrize("override", ["distill.k", "=3", ""])
def test_an_override_without_key_or_value_is_refused(config_file: Path, override: str) -> None:
    assert "Write key=value" in refusal(config_file, override)


def test_a_section_cannot_be_given_a_value(config_file: Path) -> None:
    assert "it is a section" in refusal(config_file, "select=3")


def test_a_missing_file_suggests_its_neighbour(config_file: Path) -> None:
    message = refusal(config_file.with_name("mien.toml"))
    assert f"Did you mean {config_file}?" in message
    assert "There is no config file" in refusal(config_file.parent / "nowhere" / "x.toml")


def test_invalid_toml_names_file_and_line(config_file: Path) -> None:
    config_file.write_text("[model]\npath = \n")
    assert re.search(rf"{re.escape(str(config_file))}.*line 2", refusal(config_file))


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_what_is_no_text_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "odd.toml"
    path.mkdir() if content is None else path.write_bytes(content)
    assert f"The config file {path} cannot be read" in refusal(path)


def test_extends_must_be_the_name_of_a_file(config_file: Path) -> None:
    config_file.write_text("extends = 3\n")
    assert "extends is 3" in refusal(config_file)


def test_a_dumped_config_reads_back_equal(config_file: Path) -> None:
    config = load_config(config_file, ['lora.targets=["a"]', "select.query_ratio=0.290"])
    assert Config.model_validate(dump(config)) == config


def test_the_hash_follows_the_settings_and_nothing_else(config_file: Path) -> None:
    config = load_config(config_file)
    same = load_config(config_file, ["select.exploration=0.10", "select.half_life=10"])
    other = load_config(config_file, ["select.exploration=0.11"])
    assert config_hash(config) == config_hash(same) != config_hash(other)


def test_the_config_needs_no_torch() -> None:
    code = "import sys, bas_opd.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_file_is_never_taken_for_the_one_that_it_extends(config_file: Path) -> None:
    config_file.write_text("extends = 'mien'\n")
    message = refusal(config_file)
    assert f"mien, which {config_file} extends. Give the path of a TOML file." in message
    config_file.write_text("extends = 'lerned25'\n")
    assert "Did you mean learned25?" in refusal(config_file)
