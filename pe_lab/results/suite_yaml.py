"""The yaml of a suite as it is written, and what is wrong with one in words."""

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import ErrorDetails

from pe_lab.common.errors import UsageError, reason
from pe_lab.common.limits import remedy
from pe_lab.common.suggest import did_you_mean
from pe_lab.results.suite_parts import Protocol, SuiteTask

EXAMPLE = "conf/suite/v1.yaml"
BITS = 64
MERGE = "tag:yaml.org,2002:merge"
"""Of the key `<<`, which may be there twice: all of its mappings are merged."""
MOST = 100_000
"""Values of a suite; v1 has 229."""
SHOWN = 60
"""The most characters of a value in a message."""


def written(file: Path) -> dict[str, Any]:
    """What a file holds: texts, numbers, lists and mappings from texts.

    Raises:
        UsageError: it cannot be read, is no YAML, or holds something else.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = file.read_bytes()
        _check_once(file, yaml.compose(text, Loader=loader), set())
        content = yaml.load(text, Loader=loader)
        _check_plain(file, content)
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read ({error.strerror}): make it a file that you may read, or "
            "remove it"
        ) from None
    except RecursionError:
        raise UsageError(
            f"{file} is nested too deep or contains itself (an alias, *name): write it as in "
            f"{EXAMPLE}"
        ) from None
    # A tag whose value does not fit it (`!!bool 3`, a date 2026-13-01) raises errors of any kind.
    except Exception as error:
        unreadable = isinstance(error, yaml.reader.ReaderError)
        cure = "remove it, and save as UTF-8" if unreadable else "correct it, or put it in quotes"
        raise UsageError(f"{file} is not valid YAML{_where(error)}: {cure}") from None
    if not isinstance(content, dict):
        found = "empty" if content is None else f"a {type(content).__name__}"
        raise UsageError(f"{file} is {found}, and a suite is a mapping: write it as in {EXAMPLE}")
    return content


def _check_once(file: Path, node: yaml.Node | None, seen: set[int]) -> None:
    """UsageError for a key that a mapping has twice, of which PyYAML takes the last."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for one in node.value:
            _check_once(file, one, seen)
    elif isinstance(node, yaml.MappingNode):
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
                continue
            if (key.tag, key.value) in keys:
                line = node.start_mark.line + 1
                raise UsageError(
                    f"{file}: {_text(key.value)} is there twice in the mapping that begins at line "
                    f"{line}: keep one"
                )
            keys.add((key.tag, key.value))
        for _, value in node.value:
            _check_once(file, value, seen)


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    place = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
    said = getattr(error, "problem", None)
    if said is None and isinstance(error, yaml.reader.ReaderError):
        said = error.reason
        character = error.character
        code = character if isinstance(character, int) else ord(character[:1] or b"\0")
        place = f" (the character #x{code:02x} at position {error.position})"
    return f"{place}: {said or reason(error)}"


def _check_plain(file: Path, content: object) -> None:
    """UsageError for what JSON does not have, as the digest of a suite is of JSON, and for more
    values than anybody writes, which aliases of aliases make in a few lines."""
    for number, (key, value) in enumerate(_values(content, ""), 1):
        if number > MOST:
            raise UsageError(
                f"{file} has more than {MOST:,} values, those of aliases counted each time: write "
                f"it as in {EXAMPLE}"
            )
        if isinstance(value, dict):
            for name in value:
                if not isinstance(name, str):
                    raise UsageError(
                        f"{file}: {_inner(key, name)}: a key is a text, and YAML reads this one as "
                        f"{_text(name)}: write it in quotes"
                    )
        elif isinstance(value, int) and value.bit_length() > BITS:
            raise UsageError(
                f"{file}: {key}: a number of more than {BITS} bits: write a smaller one"
            )
        elif not (value is None or isinstance(value, str | int | float | list)):
            raise UsageError(
                f"{file}: {key}: {_text(value)} is not allowed: YAML reads this one as a "
                f"{type(value).__name__}; write a text in quotes, or a number"
            )


def _values(value: object, key: str) -> Iterator[tuple[str, object]]:
    """A value and all within it, each with its key, outer ones first."""
    yield key, value
    inner = value.items() if isinstance(value, dict) else ()
    for name, one in enumerate(value) if isinstance(value, list) else inner:
        yield from _values(one, _inner(key, name))


def _inner(key: str, name: object) -> str:
    return f"{key}.{name}" if key else f"{name}"


def problem(error: ErrorDetails, suite: type) -> str:
    """An error of pydantic about what a yaml holds: key, value, limit and remedy.

    Args:
        suite: the class of the whole.
    """
    loc = [str(part) for part in error["loc"]]
    key = ".".join(loc)
    if error["type"] in ("missing", "missing_argument"):
        return f"{key} is missing: add it as in {EXAMPLE}"
    if error["type"] == "unexpected_keyword_argument":
        owner = suite if len(loc) == 1 else Protocol if loc[0] == "protocol" else SuiteTask
        set_here = ("name", "digest", "times") if owner is suite else ()
        known = [field.name for field in fields(owner) if field.name not in set_here]
        return f"{key} is not a key of a suite: {did_you_mean(loc[-1], known)}"
    value = error["input"]
    if error["type"] == "too_short":
        limits = error["ctx"]
        least, found = limits["min_length"], limits["actual_length"]
        return f"{key}: {_text(value)} is not allowed: it has {found} and needs {least} or more"
    said = f"{key}: {_text(value)} is not allowed: {remedy(error)}"
    if error["type"] != "string_type" or isinstance(value, (dict, list)):
        return said
    # A digest 12345678, an entry no.
    return f"{said}, and YAML reads this one as {json.dumps(value)}: write it in quotes"


def _text(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
