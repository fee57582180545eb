"""What pydantic finds wrong, in our own words."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import ValidationError
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
        if detail["type"] == "extra_forbidden":
            for nearest in get_close_matches(name, list(fields), n=1, cutoff=0.5):
                sentence += f" Did you mean {nearest!r}?"
        sentences.append(sentence)
    return " ".join(sentences)


def first_problem(error: ValidationError) -> str:
    """Return the first thing that was found, with its place, without a full stop."""
    detail = error.errors(include_url=False)[0]
    return _sentence(detail, _place(detail))


def _place(detail: ErrorDetails) -> str:
    return ".".join(map(str, detail["loc"]))


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
