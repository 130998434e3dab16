"""What pydantic checks: closed dataclasses, yaml files, and its errors as one sentence."""

import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from pe_lab.core.errors import UsageError, reason
from pe_lab.core.suggest import did_you_mean, similar

T = TypeVar("T")
SHOWN = 60
"""The most characters of a value in a message."""
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""The kinds of pydantic's error for an unknown key."""

closed = dataclass(
    frozen=True, kw_only=True, config=ConfigDict(extra="forbid", allow_inf_nan=False)
)
"""A class decorator: a frozen dataclass that refuses unknown keys and values of other types."""

_ALLOWED = {
    "greater_than": "a value greater than {gt}",
    "greater_than_equal": "a value of at least {ge}",
    "less_than": "a value less than {lt}",
    "less_than_equal": "a value of at most {le}",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "a text, in quotes where YAML would read something else",
    "string_too_short": "a text of {min_length} characters or more",
    "tuple_type": "a list: [A,B]",
    "list_type": "a list: [A,B]",
    "too_short": "{min_length} values or more",
    "too_long": "{max_length} values",
    "dict_type": "a mapping: {{KEY: VALUE}}",
    "dataclass_type": "a mapping: {{KEY: VALUE}}",
}


def first_error(error: ValidationError) -> ErrorDetails:
    """The error to report: an unknown key first, as it may be another one misspelt."""
    return min(error.errors(), key=lambda one: one["type"] not in UNKNOWN)


def problem(
    error: ValidationError,
    values: Any,
    prefix: str = "",
    known: Collection[str] = (),
    whole: str = "the configuration",
    add: str = "set it",
) -> str:
    """The error to report as one sentence with key, value, limit and remedy.

    Args:
        values: what was validated.
        prefix: the key that holds the values.
        known: the keys to choose from, where one is unknown.
        whole: what the values are, where no key holds them.
        add: what to do about a missing key.
    """
    first = first_error(error)
    path = [part for part in first["loc"] if part != "[key]"]
    # A union (an optional number) adds the type's name to the path.
    while path and not isinstance(at(values, path[:-1]), (dict, list)):
        path.pop()
    parts = [*([prefix] if prefix else []), *map(str, path)]
    key, value = ".".join(parts), as_yaml(first["input"])
    assignment = f"{key}={value}" if key else f"{whole}: {value}"
    if first["type"] in UNKNOWN:
        parent = ".".join(parts[:-1]) or whole
        return f"{assignment} is not a key of {parent}: {did_you_mean(parts[-1], known)}"
    if first["type"] in ("missing", "missing_argument"):
        return f"{key} is missing: {add}"
    if first["type"] == "value_error":
        return f"{key}: {first['ctx']['error']}" if key else str(first["ctx"]["error"])
    below = [f"{prefix}.{name}" for name in known] if first["type"] == "dict_type" else []
    meant = similar(key, (), below)
    other = f", or give {meant[0]}={value}" if meant else ""
    if first["type"] == "literal_error":
        # A union of choices and a number has an error of each.
        same = (one for one in error.errors() if list(one["loc"][: len(path)]) == path)
        other += "".join(f", or {remedy(one)}" for one in same if one["type"] in _ALLOWED)
    return f"{assignment} is not allowed: {remedy(first)}{other}"


def remedy(error: ErrorDetails) -> str:
    """``set it to a whole number``, or ``did you mean cosine?`` where there is a list of choices;
    pydantic's own message for a kind of error not listed here."""
    if error["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'|(\d+)", error["ctx"]["expected"])
        return did_you_mean(str(error["input"]), [word or number for word, number in choices])
    allowed = _ALLOWED.get(error["type"])
    return f"set it to {allowed.format(**error.get('ctx', {}))}" if allowed else error["msg"]


def as_yaml(value: Any) -> str:
    """A value as YAML writes it, a long one shortened."""
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of more than 64 bits"
    if isinstance(value, (dict, list, set)):
        # Aliases of aliases have millions of values.
        held = value.values() if isinstance(value, dict) else value
        if isinstance(value, set) or any(isinstance(one, (dict, list)) for one in held):
            return f"a {type(value).__name__} of {len(value)}"
    if value is None or isinstance(value, (bool, list, dict)):
        value = json.dumps(value, default=str, ensure_ascii=False)
    text = str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}.."


def at(values: Any, path: Sequence[int | str]) -> Any:
    """The value at a path, or None where the path leads nowhere."""
    try:
        for part in path:
            values = values[int(part)] if isinstance(values, list) else values.get(part)
    except (AttributeError, IndexError, TypeError, ValueError):
        return None
    return values


class _Loader(yaml.SafeLoader):
    """Refuses a key that a mapping has twice, of which PyYAML takes the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        assert node is not None
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, times in keys.items():
            # All mappings that are merged by << count.
            if times > 1 and key != "<<":
                said = f'"{key}" is there {times} times, keep one'
                raise yaml.constructor.ConstructorError(None, None, said, node.start_mark)
        return node


def read_checked(file: Path, kind: type[T], keys: Collection[str], see: str) -> tuple[T, Any]:
    """What a file holds as an instance of ``kind``, and as plain values that JSON has too.

    Args:
        keys: those of all levels, to choose from in place of an unknown one.
        see: an example of such a file.

    Raises:
        UsageError: the file cannot be read, is no YAML, or has a wrong key or value.
    """
    content: Any = None
    try:
        content = yaml.load(file.read_bytes(), Loader=_Loader)
        checked = TypeAdapter(kind).validate_python(content)
        json.dumps(content, sort_keys=True)
    except ValidationError as error:
        said = problem(error, content, "", keys, "the file", f"add it as in {see}")
        raise UsageError(f"{file}: {said}") from None
    # A tag whose value does not fit it (`!!bool 3`) raises errors of any kind.
    except Exception as error:
        raise UsageError(
            f"{file} cannot be read as YAML: {reason(error)}: write it as in {see}"
        ) from None
    return checked, content
