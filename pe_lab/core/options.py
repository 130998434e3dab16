"""A command is a function: its keyword parameters are its keys, and their types the limits.

    def show(line: Line, *names: str, n: PositiveInt = 3, **others: str) -> None:

``names`` takes the words without ``=``, and ``others`` the keys that are not parameters; a command
without them refuses such words.
"""

import argparse
import inspect
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from pe_lab.core.config_dir import VARIABLE, use_config_dir
from pe_lab.core.errors import UsageError, did_you_mean
from pe_lab.core.validation import problem

E = TypeVar("E")


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(entry.strip() for entry in text.split(",") if entry.strip()))


CommaSeparated = Annotated[list[E], BeforeValidator(_split), Field(min_length=1)]
"""Values separated by commas, each kept once."""
# A command has one of the two, and takes the other for it.
ALIKE = {"split": "splits", "splits": "split"}


@dataclass(frozen=True)
class Line:
    """The command line of a command.

    Args:
        words: after the command, without ``--config-dir``.
        filters: those of ``where`` and of keys that are not the command's own.
        config_dir: the folder of ``--config-dir``.
        keys: the command's own.
    """

    command: str
    words: Sequence[str]
    filters: Sequence[str]
    config_dir: Path | None
    keys: Sequence[str]

    def __str__(self) -> str:
        """The line as it is typed."""
        return shlex.join(["pe-lab", self.command, *self.flags, *self.words])

    @property
    def flags(self) -> list[str]:
        """``--config-dir`` and its folder, or nothing."""
        return [] if self.config_dir is None else ["--config-dir", str(self.config_dir)]


def call(name: str, command: Callable[..., None], words: Sequence[str]) -> None:
    """Call a command with the words of its line. ``cli.main`` reads ``debug``, which any may have.

    Raises:
        UsageError: a word is not key=value, its key is unknown or repeated, or its value is not
            allowed.
    """
    config_dir, rest = _without_config_dir(words)
    model, takes_names = _model(name, command)
    keys, names, values = list(model.model_fields), list[str](), dict[str, str]()
    for word in rest:
        key, equals, value = word.partition("=")
        if key not in keys and ALIKE.get(key) in keys:
            key = ALIKE[key]
        if key in values:
            raise UsageError(f"{name} {word}: {key} is given twice, keep one")
        if equals and not key.startswith("-"):
            values[key] = value
        elif takes_names and not equals and not key.startswith("-"):
            names.append(word)
        else:
            raise UsageError(
                f"{name} {word}: give key=value; {did_you_mean(key.lstrip('-'), keys)}"
            )
    values.pop("debug", None)
    filters = [f"{k}={value}" for k, value in values.items() if k == "where" or k not in keys]
    try:
        checked = dict(model.model_validate(values))
    except ValidationError as error:
        raise UsageError(f"{name} {problem(error, values, known=keys)}") from None
    command(Line(name, rest, filters, config_dir, keys), *names, **checked)


def _model(name: str, command: Callable[..., None]) -> tuple[type[BaseModel], bool]:
    """The keys of a command as a model of pydantic, and whether it takes words without ``=``."""
    parameters = inspect.signature(command).parameters.values()
    hints, kinds = get_type_hints(command, include_extras=True), {one.kind for one in parameters}
    own = [one for one in parameters if one.kind is one.KEYWORD_ONLY]
    fields: Any = {
        one.name: (hints[one.name], ... if one.default is one.empty else one.default) for one in own
    }
    others = "allow" if inspect.Parameter.VAR_KEYWORD in kinds else "forbid"
    config = ConfigDict(extra=others, allow_inf_nan=False)  # type: ignore[typeddict-item]
    model = create_model(name, __config__=config, **fields)
    return model, inspect.Parameter.VAR_POSITIONAL in kinds


def _without_config_dir(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The folder of ``--config-dir``, None without it, and the other words."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config-dir", "-cd", type=Path, default=os.environ.get(VARIABLE) or None)
    try:
        flags, rest = parser.parse_known_args(words)
    except argparse.ArgumentError:
        raise UsageError("--config-dir names no folder: give --config-dir FOLDER") from None
    if flags.config_dir is not None:
        use_config_dir(flags.config_dir)
    return flags.config_dir, rest
