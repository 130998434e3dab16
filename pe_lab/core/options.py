"""The key=value options of a command, checked against one pydantic model per command."""

import argparse
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticKnownError

from pe_lab.core.config_dir import check_config_dir
from pe_lab.core.errors import UsageError
from pe_lab.core.suggest import did_you_mean, similar
from pe_lab.core.validation import problem


class Options(BaseModel):
    """Base class of a command's options: fields are keys, types are limits.

    A field's ``description`` is used in messages: the allowed values, or for a required field what
    the command needs. A ValueError of a validator is a message, too. A subclass with
    ``extra="allow"`` keeps unknown keys in ``others``.
    """

    command: ClassVar[str]
    hints: ClassVar[Mapping[str, str]] = {}
    """Keys of other commands -> what to give instead; ``{value}`` is replaced."""
    of_run: ClassVar[bool] = False
    """Whether every other key is one of a run."""
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @property
    def others(self) -> dict[str, str]:
        """The keys that are not fields and their values, as written."""
        return dict(self.model_extra or {})


T = TypeVar("T", bound=Options)


def _entries(value: object) -> object:
    if not isinstance(value, str):
        return value
    found = [entry.strip() for entry in value.split(",")]
    if not all(found):
        raise ValueError("an entry is empty; give values separated by commas")
    return list(dict.fromkeys(found))


def _flag(value: object) -> object:
    if isinstance(value, str) and value.lower() not in ("false", "true"):
        raise PydanticKnownError("bool_parsing")
    return value


E = TypeVar("E")
CommaSeparated = Annotated[list[E], BeforeValidator(_entries)]
"""Values separated by commas, each kept once."""
AtLeastOne = Annotated[int, Field(ge=1, description="a whole number of at least 1")]
Flag = Annotated[bool, BeforeValidator(_flag)]
"""``true`` or ``false``, in any case."""


def parse(model: type[T], words: Sequence[str]) -> T:
    """The options in ``words``, except ``debug``, which ``cli.main`` reads.

    Raises:
        UsageError: a word is not key=value, its key is unknown or repeated, or its value is not
            allowed.
    """
    closed = model.model_config["extra"] == "forbid"
    values: dict[str, str] = {}
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        key, equals, value = word.partition("=")
        if key == "debug":
            continue
        if key in model.hints and key not in model.model_fields:
            raise UsageError(f"{model.command} {word}: {model.hints[key].format(value=value)}")
        if not equals or word.startswith("-") or (closed and key not in model.model_fields):
            raise UsageError(f"{model.command} {word}: {_hint(model, word, after)}give key=value")
        if key in values:
            raise UsageError(f"{model.command} {word}: {key} is given twice, keep one")
        values[key] = value
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UsageError(_message(model, values, error)) from None


def without_config_dir(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The folder of ``--config-dir``, None without it, and the other words.

    Raises:
        UsageError: it is not a folder.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config-dir", "-cd")
    try:
        flags, rest = parser.parse_known_args(words)
    except argparse.ArgumentError:
        raise UsageError("--config-dir names no folder: give --config-dir FOLDER") from None
    if flags.config_dir is not None:
        check_config_dir(flags.config_dir)
    return flags.config_dir, rest


def _hint(model: type[Options], word: str, after: str) -> str:
    """What the user may have meant by a word that is not an option."""
    key, equals, value = word.partition("=")
    if name := key.lstrip("-") if key.startswith("-") else "":
        known = ([] if name in model.model_fields else similar(name, model.model_fields)) or [name]
        return f"keys have no dashes, {known[0]}={value or after or '..'}; "
    if not equals and "run" in model.model_fields and ("/" in key or Path(key).is_dir()):
        return f"did you mean run={key}? "
    if not equals and "runs_dir" in model.model_fields and Path(key).is_dir():
        return f"did you mean runs_dir={key}? "
    closed = model.model_config["extra"] == "forbid"
    return did_you_mean(key, model.model_fields) + "; " if closed else ""


def _message(model: type[Options], values: Mapping[str, str], error: ValidationError) -> str:
    """The first error as one sentence with key, value, limit and remedy."""
    first = error.errors()[0]
    if not first["loc"] or first["type"] == "literal_error":
        return problem(error, values)
    key = str(first["loc"][0])
    field, assignment = model.model_fields[key], f"{key}={first['input']}"
    description = field.description or _description(field.annotation)
    if field.is_required() and first["type"] in ("missing", "string_too_short"):
        return f"{model.command} needs {description}"
    if first["type"] == "value_error":
        return f"{assignment}: {first['ctx']['error']}"
    if description is None:
        return problem(error, values)
    return f"{assignment} is not allowed: set it to {description}"


def _description(annotation: Any) -> str | None:
    """The description within an annotation such as ``AtLeastOne | None``."""
    for part in get_args(annotation):
        found = part.description if isinstance(part, FieldInfo) else _description(part)
        if found:
            return found
    return None


def choices_of(annotation: Any) -> list[str]:
    """The values of a type that has few: ``true`` and ``false``, those of a Literal."""
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [choice for part in get_args(annotation) for choice in choices_of(part)]
