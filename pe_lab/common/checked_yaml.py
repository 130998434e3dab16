"""A yaml file checked by a pydantic model, refused in one sentence."""

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from pe_lab.common.errors import UsageError, reason
from pe_lab.common.files import read_file
from pe_lab.common.suggest import did_you_mean
from pe_lab.common.validation import remedy

T = TypeVar("T")
UNKNOWN = "unexpected_keyword_argument"
"""The kind of pydantic's error for an unknown key."""
SHOWN = 60
"""The most characters of a value in a message."""


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
    try:
        content = yaml.load(read_file(file), Loader=_Loader)
        checked = TypeAdapter(kind).validate_python(content)
        json.dumps(content, sort_keys=True)
    except ValidationError as error:
        unknown_first = sorted(error.errors(), key=lambda one: one["type"] != UNKNOWN)
        raise UsageError(f"{file}: {_problem(unknown_first[0], keys, see)}") from None
    # A tag whose value does not fit it (`!!bool 3`) raises errors of any kind.
    except Exception as error:
        raise UsageError(
            f"{file} cannot be read as YAML: {reason(error)}: write it as in {see}"
        ) from None
    return checked, content


def _problem(error: ErrorDetails, keys: Collection[str], see: str) -> str:
    """An error of pydantic as a sentence with key, value, limit and remedy."""
    loc = [str(part) for part in error["loc"] if part != "[key]"]
    key, value = ".".join(loc), error["input"]
    if error["type"] == "missing":
        return f"{key} is missing: add it as in {see}"
    if error["type"] == UNKNOWN:
        return f"{key} is no key here: {did_you_mean(loc[-1], keys)}"
    if error["type"] == "value_error":
        said = str(error["ctx"]["error"])
        return f"{key}: {said}" if key else said
    text = _text(value)
    said = f"{key or 'the file'}: {text} is not allowed: {remedy(error)}"
    if error["type"] != "string_type" or isinstance(value, (dict, list)):
        return said
    # A digest 12345678, an entry no.
    return f"{said}, and YAML reads this one as {text}: write it in quotes"


def _text(value: object) -> str:
    # Aliases of aliases have millions of values, and a hexadecimal number thousands of digits.
    if isinstance(value, dict | list | set) and value:
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of more than 64 bits"
    return json.dumps(value, ensure_ascii=False, default=str)[:SHOWN]
