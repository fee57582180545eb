"""What pydantic finds wrong, in our own words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_EXPECTED = {
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "is_instance_of": "a decimal number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "an object with named fields",
    "model_type": "an object with named fields",
    "model_attributes_type": "an object with named fields",
    "tuple_type": "text or a list of texts",
    "string_too_short": "text that is not empty",
    "too_short": "a list that is not empty",
    "literal_error": "{expected}",
    "greater_than": "a number greater than {gt:g}",
    "greater_than_equal": "a number of at least {ge:g}",
    "less_than": "a number less than {lt:g}",
    "less_than_equal": "a number of at most {le:g}",
}

SET_ALREADY = {
    *("model", "messages", "stream", "n"),
    *("temperature", "seed", "max_tokens", "max_completion_tokens"),
}
"""Fields that every request of a chat has."""


def extra_fields(text: str) -> dict[str, Any]:
    """Read the further fields of a request, or raise a ValueError that says how to write them."""
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(
            f"{text!r} is no JSON object; write it as in "
            '\'{"chat_template_kwargs": {"enable_thinking": false}}\''
        )
    if taken := found.keys() & SET_ALREADY:
        raise ValueError(
            f"cannot set {', '.join(sorted(taken))}, because requests have these already; leave "
            "them out"
        )
    return cast("dict[str, Any]", found)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def expected(detail: ErrorDetails) -> str:
    """Return what a value should have been; without words of our own, pydantic's."""
    template = _EXPECTED.get(detail["type"])
    return template.format(**detail.get("ctx", {})) if template else detail["msg"]


def explain(error: ValidationError, fields: Iterable[str] = ()) -> str:
    """Return all that was found, as sentences; `fields` are the names that a row may have."""
    sentences = []
    for detail in error.errors(include_url=False):
        name = _place(detail)
        sentence = _sentence(detail, f"Field {name!r}" if name else "") + "."
        sentences.append(sentence + _nearest(detail, fields))
    return " ".join(sentences)


def first_problem(error: ValidationError) -> str:
    """Return the first thing that was found, with its place, without a full stop."""
    detail = error.errors(include_url=False)[0]
    return _sentence(detail, _place(detail))


def explain_first(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first thing that was found, as a sentence, with the nearest field of a model."""
    details = error.errors(include_url=False)
    # A field that is not known says more than the one that is missing for it.
    detail = next((each for each in details if each["type"] == "extra_forbidden"), details[0])
    sentence = f"{_sentence(detail, _place(detail))}."
    return sentence + _nearest(detail, _fields(model, detail["loc"][:-1]))


def _nearest(detail: ErrorDetails, fields: Iterable[str]) -> str:
    """Return a question after the nearest field, if the problem is one that is not known."""
    if detail["type"] != "extra_forbidden":
        return ""
    nearest = get_close_matches(str(detail["loc"][-1]), list(fields), n=1, cutoff=0.5)
    return "".join(f" Did you mean {name!r}?" for name in nearest)


def _fields(model: type[BaseModel], place: Sequence[int | str]) -> list[str]:
    """Return the names of the fields that a model has at a place."""
    for name in place:
        for known, field in model.model_fields.items():
            if name in (known, field.alias):
                types = (field.annotation, *get_args(field.annotation))
                model = next(t for t in types if isinstance(t, type) and issubclass(t, BaseModel))
    return [field.alias or name for name, field in model.model_fields.items()]


def _place(detail: ErrorDetails) -> str:
    """Return where in the input it is: `arm 3, seeds`. Members of a list are counted from one."""
    text = ""
    for part in detail["loc"]:
        if isinstance(part, int):
            text += f" {part + 1}"
        else:
            separator = "" if not text else ", " if text[-1].isdigit() else "."
            text += f"{separator}{part}"
    return text.strip()


def _sentence(detail: ErrorDetails, field: str) -> str:
    field_or_all = field or "the content"
    match detail["type"]:
        case "missing":
            return f"{field_or_all} is missing"
        case "extra_forbidden":
            return f"{field_or_all} is not known"
        case "value_error":
            reason = str(detail.get("ctx", {}).get("error", detail["msg"])).rstrip(".")
        case kind if kind in _EXPECTED:
            return f"{field_or_all} must be {expected(detail)}"
        case _:
            reason = detail["msg"]
    return f"{field}: {reason}" if field else reason
