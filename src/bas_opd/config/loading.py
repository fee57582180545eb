"""Load a TOML file and `key=value` overrides into a validated `Config`; compare two of them."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bas_opd.config.schema import Config
from bas_opd.errors import ConfigError
from bas_opd.files import hash_of
from bas_opd.validation import expected

COMMAND_LINE = "On the command line"

NOT_SET = {
    "model.path": "model.path is not set: give a local folder or hub id, such as "
    "model.path=Qwen/Qwen3.5-4B, or model.path=small for the model in this package.",
    "data.path": "data.path is not set: give the folder of a prepared set, such as "
    "data.path=data/pairs, or data.path=finesearch to have one drawn.",
}

FREE = frozenset(
    {
        "data.path",
        "data.workers",
        "rollout.prompts_per_batch",
        "rollout.engine_cache_gib",
        "rollout.logprob_tolerance",
        "rollout.overlap",
        "distill.tokens_per_chunk",
        "teacher.tokens_per_batch",
        "teacher.server",
        "teacher.key_variable",
        "teacher.at_once",
        "teacher.retries",
        "teacher.timeout_seconds",
        "teacher.spend_limit",
        "optim.tokens_per_micro_batch",
        "optim.share_prompts",
        "optim.offload",
        "model.gradient_checkpointing",
        "model.kernels",
        "shard.timeout_minutes",
        "shard.always",
        "shard.reshard",
        "shard.replicas",
        "run.steps",
        "run.epochs",
        "run.output",
        "run.examples_per_step",
        "run.max_bad_steps",
        "run.checkpoint_every",
        "run.keep_checkpoints",
        "run.keep_every",
        "eval.every",
        "eval.data",
        "eval.limit",
    }
)
"""Settings that a resumed run may change: batch sizes, what is recorded or kept, the length of the
run, and where and within which limits a served teacher is asked. They change no number beyond
rounding, except that more retries drop fewer rows. The data may move if its content stays the
same."""


def preset(name: str) -> Path:
    """Return the path of a preset, a config file that comes with the package."""
    return Path(__file__).parent / "presets" / f"{name}.toml"


def presets() -> dict[str, str]:
    """Return the name of every preset with the first sentence of its file."""
    found = {}
    for path in sorted(preset("*").parent.glob("*.toml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = takewhile(lambda line: line.startswith("#"), lines)
        text = " ".join(line.lstrip("# ") for line in comment)
        found[path.stem] = re.split(r"(?<=[a-z\d)])\.(?:\s|$)", text, maxsplit=1)[0] + "."
    return found


def load_config(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    over: str | Path | None = None,
    origin: str = COMMAND_LINE,
) -> Config:
    """Read a config file, apply the overrides in order, and validate the result.

    A name that is no file but a preset's is that preset. A file may extend another one, `extends =
    "learned25.toml"`, relative to itself. `over` names a base file that the file itself does not
    mention. `run.output` defaults to `runs/<name of the file>`. `origin` says in a message where
    the overrides stand.
    """
    path = _file_or_preset(Path(path))
    settings: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, value, place in (
        *(() if over is None else _settings_of_file(Path(over), ())),
        *_settings_of_file(path, ()),
        *(_override(each, origin) for each in overrides),
    ):
        _refuse_unknown(key, place)
        settings[key] = value
        origins[key] = place
    settings.setdefault("run.output", f"runs/{path.stem}")

    sections: dict[str, dict[str, Any]] = {name: {} for name in Config.model_fields}
    for key, value in settings.items():
        section, name = key.split(".")
        sections[section][name] = value
    try:
        config = Config.model_validate(sections)
    except ValidationError as error:
        # A field of several types reports one error for each; the last names them all.
        sentences = {detail["loc"][:2]: _sentence(detail, origins) for detail in error.errors()}
        raise ConfigError("\n".join(sentences.values())) from None
    config.check_limits()
    for text in overrides:
        config.check_typed(_override(text, origin)[0])
    return config


def recorded_config(settings: Mapping[str, Any]) -> Config:
    """Return the settings that a run has on record, or raise ValidationError.

    A run that was started before there were importance weights has none.
    """
    config = Config.model_validate(settings)
    if config.importance_cap is None or "correct" in settings.get("rollout", {}):
        return config
    rollout = config.rollout.model_copy(update={"correct": False})
    return config.model_copy(update={"rollout": rollout})


def dump(config: Config) -> dict[str, Any]:
    """Return all settings as JSON data that `Config` can read; exact decimals are text."""
    return config.model_dump(mode="json")


def config_hash(config: Config) -> str:
    """Return the SHA-256 of all settings; their order does not matter."""
    return hash_of(dump(config))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return `key: was X, is now Y` for every changed setting that forbids resuming."""
    old, new = flat(before), flat(now)
    return [
        f"{key}: was {old.get(key)}, is now {new.get(key)}"
        for key in sorted(old.keys() | new.keys())
        if key not in FREE and old.get(key) != new.get(key)
    ]


def flat(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of all sections keyed by their dotted names."""
    return {
        f"{section}.{name}": value
        for section, settings in config.items()
        for name, value in settings.items()
    }


def _settings_of_file(path: Path, seen: tuple[str, ...]) -> Iterator[tuple[str, Any, str]]:
    # Unlike Path.resolve, it does not fail on a loop of links, which reading the file names.
    place = os.path.realpath(path)
    if place in seen:
        raise ConfigError(
            f"{path} extends itself, directly or through another file. Remove one `extends`."
        )
    content = _read_toml(path, seen)
    base = content.pop("extends", None)
    if base is not None:
        if not isinstance(base, str):
            raise ConfigError(f"In {path}, extends is {base!r}, but a file name is expected.")
        base_file = _file_or_preset(path.parent / base)
        yield from _settings_of_file(base_file, (*seen, place))
    for section, settings in content.items():
        if isinstance(settings, dict):
            for name, value in settings.items():
                yield f"{section}.{name}", value, f"In {path}"
        else:
            yield section, settings, f"In {path}"


def _read_toml(path: Path, seen: Sequence[str]) -> dict[str, Any]:
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(_no_such_file(path, seen)) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigError(
            f"The config file {path} cannot be read: {reason}. Check the path and the file."
        ) from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}. Correct the file.") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML, or raise ValueError; Decimal keeps the digits, a float field converts it."""
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _file_or_preset(path: Path) -> Path:
    known = preset(path.name)
    return path if path.is_file() or not known.is_file() else known


def _no_such_file(path: Path, seen: Sequence[str]) -> str:
    """Return the error for a file that is not there; `seen` are the files that extend it."""
    siblings = {sibling.name: str(sibling) for sibling in sorted(path.parent.glob("*.toml"))}
    names = {name: name for name in presets()} | {
        name: place for name, place in siblings.items() if os.path.realpath(place) not in seen
    }
    nearest = get_close_matches(path.name, names, n=1)
    advice = f"Did you mean {names[nearest[0]]}?" if nearest else "Give the path of a TOML file."
    wanted = f", which {seen[-1]} extends" if seen else ""
    return (
        f"There is no config file {path}{wanted}. {advice} `bas-opd train --list` lists the "
        "presets."
    )


def _override(text: str, origin: str) -> tuple[str, Any, str]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(
            f"{origin}, {text!r} sets nothing. Write key=value without spaces, as in run.steps=3."
        )
    return key, _parse_value(key, value.strip()), origin


def _parse_value(key: str, text: str) -> Any:
    """Parse a value as TOML, else keep the text: on the command line it needs no quotes."""
    try:
        parsed = parse_toml(f"value = {text}")
    except ValueError:
        return text
    value = parsed.pop("value")
    # A text field takes 2026-01-01 as text. Anything left in `parsed` came after a line break.
    wants_text = _keys().get(key) in (str, str | None)
    return text if parsed or (wants_text and not isinstance(value, str)) else value


def _keys() -> dict[str, Any]:
    """Return every dotted key with the type of its field."""
    return {
        f"{section}.{name}": field.annotation
        for section, model in Config.model_fields.items()
        if isinstance(model.annotation, type) and issubclass(model.annotation, BaseModel)
        for name, field in model.annotation.model_fields.items()
    }


def _refuse_unknown(key: str, origin: str) -> None:
    keys = _keys()
    if key in keys:
        return
    if key in Config.model_fields:
        raise ConfigError(
            f"{origin}, {key} is given a value, but it is a section. Set one of its keys, "
            f"as in {next(known for known in keys if known.startswith(key + '.'))}."
        )
    parents = [known for known in keys if key.startswith(f"{known}.")]
    namesakes = [known for known in keys if known.rpartition(".")[2] == key.rpartition(".")[2]]
    nearest = get_close_matches(key, parents or namesakes or keys, n=1, cutoff=0.0)
    raise ConfigError(f"{origin}, {key} is not a setting. Did you mean {nearest[0]}?")


def _sentence(detail: ErrorDetails, origins: dict[str, str]) -> str:
    """Return a pydantic error as a sentence: where, which key, its value, what is expected."""
    key = ".".join(str(part) for part in detail["loc"][:2])
    if detail["type"] == "value_error":
        return str(detail.get("ctx", {})["error"])
    if detail["type"] == "missing":
        return NOT_SET[key]
    value = detail["input"]
    shown = str(value).lower() if isinstance(value, bool | Decimal) else repr(value)
    return f"{origins[key]}, {key} is {shown}, but {expected(detail)} is expected."
