"""What pydantic checks: closed dataclasses, yaml files, and its errors as one sentence."""

import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from pe_lab.core.errors import UsageError, reason
from pe_lab.core.suggest import did_you_mean

T = TypeVar("T")
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""The kinds of pydantic's error for an unknown key."""
CLOSED = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
"""Unknown keys and numbers that are not finite are refused."""

closed = dataclass(frozen=True, kw_only=True, config=CLOSED)
"""A class decorator: a frozen dataclass that refuses unknown keys and values of other types."""


def problem(
    error: ValidationError, values: Any, prefix: str = "", known: Iterable[str] = ()
) -> str:
    """The first error as one sentence with key and value; an unknown key comes first, as it may
    be a required one misspelt.

    Args:
        values: what was validated.
        prefix: the key that holds the values.
        known: the dotted keys to choose from, where one is unknown.
    """
    first = min(error.errors(), key=lambda one: one["type"] not in UNKNOWN)
    path, inner = [], values
    for part in first["loc"]:
        # Pydantic adds "[key]", and of a union the name of each type.
        if part != "[key]" and isinstance(inner, (dict, list)):
            path.append(part)
            inner = dict(enumerate(inner) if isinstance(inner, list) else inner).get(part)
    key = ".".join(map(str, [prefix, *path] if prefix else path))
    assignment = f"{key}={as_yaml(first['input'])}" if key else as_yaml(first["input"])
    if first["type"] in UNKNOWN:
        return f"{assignment} is not a key: {did_you_mean(key, known)}"
    if first["type"] in ("missing", "missing_argument"):
        return f"{key} is missing: set it"
    if first["type"] == "value_error":
        return f"{key}: {first['ctx']['error']}" if key else str(first["ctx"]["error"])
    if first["type"] == "literal_error":
        choices = re.findall(r"[\w.+-]+", first["ctx"]["expected"].replace(" or ", " "))
        return f"{assignment} is not allowed: {did_you_mean(str(first['input']), choices)}"
    # Of JSON, in which the values were checked.
    allowed = first["msg"].replace("an object", "a mapping").replace("valid array", "list")
    return f"{assignment} is not allowed: {allowed.replace('Input should', 'it should')}"


def to_json(values: Any) -> str:
    """JSON for strict validation: true is no number there, and a list may be a tuple. Whole floats
    are integers, so that 1e4 may be a number of steps."""

    def settle(number: str) -> float:
        value = float(number)
        return int(value) if value.is_integer() else value

    return json.dumps(json.loads(json.dumps(values), parse_float=settle))


def as_yaml(value: Any, longest: int = 60) -> str:
    """A value as YAML writes it, a long one shortened."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= longest else f"{text[:longest]}.."


def read_checked(file: Path, kind: type[T], keys: Collection[str], see: str) -> tuple[T, Any]:
    """What a yaml file holds as an instance of ``kind``, and as plain values.

    Args:
        keys: those of all levels, to choose from in place of an unknown one.
        see: an example of such a file.

    Raises:
        UsageError: the file cannot be read, is no YAML, or has a wrong key or value.
    """
    content: Any = None
    try:
        content = yaml.safe_load(file.read_bytes())
        return TypeAdapter(kind).validate_python(content), content
    except ValidationError as error:
        raise UsageError(f"{file}: {problem(error, content, '', keys)}, as in {see}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{file} cannot be read ({reason(error)}): write it as {see}") from None
