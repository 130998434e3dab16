"""The key=value options of a command, checked against one pydantic model per command."""

import argparse
import os
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pe_lab.core.config_dir import VARIABLE, use_config_dir
from pe_lab.core.errors import UsageError
from pe_lab.core.suggest import did_you_mean
from pe_lab.core.validation import problem


class Options(BaseModel):
    """Base class of a command's options: fields are keys, types are limits.

    The ``description`` of a required field says what the command needs. A subclass with
    ``extra="allow"`` keeps unknown keys in ``others``.
    """

    command: ClassVar[str]
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @property
    def others(self) -> dict[str, str]:
        """The keys that are not fields and their values, as written."""
        return dict(self.model_extra or {})


T = TypeVar("T", bound=Options)


def _split(value: object) -> object:
    if not isinstance(value, str):
        return value
    return list(dict.fromkeys(entry.strip() for entry in value.split(",") if entry.strip()))


E = TypeVar("E")
CommaSeparated = Annotated[list[E], BeforeValidator(_split), Field(min_length=1)]
"""Values separated by commas, each kept once."""
ALIKE = {"split": "splits", "splits": "split"}
"""A command has one of the two, and takes the other for it."""
AtLeastOne = Annotated[int, Field(ge=1)]
Flag = bool
"""``true`` or ``false``, in any case."""


def parse(model: type[T], words: Sequence[str]) -> T:
    """The options in ``words``, except ``debug``, which ``cli.main`` reads.

    Raises:
        UsageError: a word is not key=value, its key is unknown or repeated, or its value is not
            allowed.
    """
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key.startswith("-"):
            meant = did_you_mean(key.lstrip("-"), model.model_fields)
            raise UsageError(f"{model.command} {word}: give key=value; {meant}")
        if key not in model.model_fields and ALIKE.get(key) in model.model_fields:
            key = ALIKE[key]
        if key in values:
            raise UsageError(f"{model.command} {word}: {key} is given twice, keep one")
        values[key] = value
    values.pop("debug", None)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first: Any = error.errors()[0]
        field = model.model_fields.get(str(first["loc"][0])) if first["loc"] else None
        if field and field.is_required() and first["type"] in ("missing", "string_too_short"):
            raise UsageError(f"{model.command} needs {field.description}") from None
        message = problem(error, values, known=model.model_fields)
        raise UsageError(f"{model.command} {message}") from None


def without_config_dir(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The folder of ``--config-dir``, None without it, and the other words.

    Raises:
        UsageError: it is not a folder.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config-dir", "-cd", default=os.environ.get(VARIABLE))
    try:
        flags, rest = parser.parse_known_args(words)
    except argparse.ArgumentError:
        raise UsageError("--config-dir names no folder: give --config-dir FOLDER") from None
    if flags.config_dir is not None:
        use_config_dir(flags.config_dir)
    return flags.config_dir, rest
