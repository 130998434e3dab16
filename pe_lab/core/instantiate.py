"""Objects from sections of the configuration: ``_target_`` names the class, whose signature is
the schema of the other keys.

Every error is one sentence with the key, the value, the limit and the remedy.
"""

import functools
import importlib
import inspect
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

import pydantic
from pydantic import ConfigDict, ValidationError
from pydantic_core import to_jsonable_python

from pe_lab.core.errors import UsageError
from pe_lab.core.moved import MOVED
from pe_lab.core.suggest import did_you_mean
from pe_lab.core.validation import as_yaml, first_error, problem

T = TypeVar("T")
LARGE = 2**16
"""Sizes from here on are named when memory is not enough."""


def instantiate(
    section: Mapping[str, Any], key: str, base: type[T], *leading: Any, also: Sequence[str] = ()
) -> T:
    """The object that a section describes.

    Args:
        section: ``_target_`` and the keyword arguments of that class.
        key: the section's key, for messages.
        base: what the class must derive from.
        leading: the first arguments, which no section holds.
        also: keys that the section may hold besides, for messages.

    Raises:
        UsageError: no such class, an unknown or missing key, a value out of its limits.
    """
    target = _find(section, key, base)
    arguments = _arguments(target, section, key, len(leading), also)
    try:
        made: T = target(*leading, **arguments)
        return made
    except UsageError:
        # Raised by a nested section, whose key it names.
        raise
    except ValueError as error:
        raise UsageError(f"{key}: {error}") from None
    except (Exception, SystemExit) as error:
        if isinstance(error, (MemoryError, OverflowError)) or "memory" in str(error):
            raise UsageError(_too_large(key, arguments)) from None
        raise UsageError(f"{failure(_word(section, key), error)}; correct it there") from None


def normalize(
    section: Mapping[str, Any], key: str, base: type, leading: int = 0, also: Sequence[str] = ()
) -> dict[str, Any]:
    """The section with its values as the class takes them: 10000 and 1e4 become the same number.

    Args:
        leading: the number of first arguments that no section holds.
    """
    arguments = _arguments(_find(section, key, base), section, key, leading, also)
    values = to_jsonable_python(arguments, fallback=str)
    return {k: v if k == "_target_" else values[k] for k, v in section.items()}


def _arguments(
    target: Any, section: Mapping[str, Any], key: str, leading: int, also: Sequence[str]
) -> dict[str, Any]:
    """The keyword arguments, checked against the signature without its first ``leading``."""
    values = {k: v for k, v in section.items() if k != "_target_"}
    try:
        schema, names = _schema(target, leading)
    except Exception as error:
        raise UsageError(
            f"{failure(_word(section, key), error)}; correct its annotations"
        ) from None
    try:
        checked = schema.model_validate(values)
    except ValidationError as error:
        at = first_error(error)["loc"][:-1]
        known = _keys_below(target, at) if at else [*names, *also]
        raise UsageError(problem(error, values, key, known)) from None
    arguments = {name: getattr(checked, f"field_{name}") for name in names}
    refuse_booleans(values, arguments, key)
    return arguments


@functools.cache
def _schema(target: Any, leading: int) -> tuple[type[pydantic.BaseModel], list[str]]:
    """A pydantic model of the class's signature, and the names of its arguments."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = list(inspect.signature(target).parameters.values())[leading:]
    defaults = {p.name: p.default for p in parameters if p.kind not in variadic}
    hints = get_type_hints(target.__init__, include_extras=True)
    model_fields: dict[str, Any] = {}
    for name, default in defaults.items():
        required = default is inspect.Parameter.empty
        # The prefix avoids the names that pydantic reserves.
        field = pydantic.Field(... if required else default, alias=name)
        model_fields[f"field_{name}"] = (hints.get(name, Any), field)
    config = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
    model = pydantic.create_model(target.__name__, __config__=config, **model_fields)
    return model, list(defaults)


def _find(section: Mapping[str, Any], key: str, base: type) -> Any:
    """The class that ``_target_`` names, derived from ``base``."""
    path = section.get("_target_")
    if not isinstance(path, str) or "." not in path:
        raise UsageError(
            f"{key}._target_={as_yaml(path)} names no class: "
            "give its dotted path, package.module.Class"
        )
    path = MOVED.get(path, path)
    target = imported(path, f"{key}._target_={path}")
    if not (inspect.isclass(target) and issubclass(target, base)):
        raise UsageError(
            f"{key}._target_={path} is no {base.__name__}: "
            f"name a class that derives from {base.__module__}.{base.__name__}"
        )
    return target


def imported(path: str, word: str) -> Any:
    """The class or function with a dotted path.

    Args:
        word: key and value that name it, for messages.

    Raises:
        UsageError: it cannot be imported.
    """
    module_name, _, name = path.rpartition(".")
    if "__main__" in path.split("."):
        raise UsageError(f"{word} would run a program: name a class of a module")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"{word} cannot be imported ({error}): "
            "put its file beside pe/ or task/ in the folder of --config-dir, put its folder on "
            "PYTHONPATH, or install it"
        ) from None
    except (Exception, SystemExit) as error:
        raise UsageError(f"{failure(word, error)}; correct that file") from None
    if not hasattr(module, name):
        raise UsageError(
            f"{word}: {module_name} has no {name}; "
            + did_you_mean(name, (n for n in vars(module) if not n.startswith("_")))
        )
    return getattr(module, name)


def refuse_booleans(before: Any, after: Any, key: str) -> None:
    """Refuse true and false where pydantic made numbers of them."""
    if isinstance(before, bool) and not isinstance(after, bool) and isinstance(after, (int, float)):
        kind = "a whole number" if isinstance(after, int) else "a number"
        raise UsageError(f"{key}={as_yaml(before)} is not allowed: set it to {kind}")
    if is_dataclass(after):
        after = vars(after)
    if isinstance(before, dict) and isinstance(after, dict):
        # A mapping may have numbers for keys, which were text.
        named = {str(name): value for name, value in after.items()}
        pairs = [(name, before[name], named.get(str(name))) for name in before]
    elif isinstance(before, list) and isinstance(after, (list, tuple)):
        pairs = [(index, *pair) for index, pair in enumerate(zip(before, after, strict=False))]
    else:
        return
    for name, old, new in pairs:
        refuse_booleans(old, new, f"{key}.{name}" if key else str(name))


def _too_large(key: str, arguments: Mapping[str, Any]) -> str:
    large = [
        f"{key}.{name}={as_yaml(value)}"
        for name, value in arguments.items()
        if isinstance(value, (int, float)) and abs(value) >= LARGE
    ]
    if large:
        return f"{' '.join(large)} is too large: there is not enough memory; set a smaller size"
    return (
        f"{key} does not fit into memory with these sizes: lower those it is made for (the task's "
        "length, positions.max, model.d_model)"
    )


def _word(section: Mapping[str, Any], key: str) -> str:
    return f"{key}._target_={section['_target_']}"


def failure(word: str, error: BaseException) -> str:
    """What failed in the class or function that ``word`` names, and where."""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}"
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.filename}, line {frame.lineno}"
    what = " ".join(str(getattr(error, "msg", error)).split())
    return f"{word} fails at {where}: {type(error).__name__}: {what}"


def _keys_below(target: Any, path: Sequence[int | str]) -> list[str]:
    """The keys that an argument's value has at this path; all values of a mapping are alike."""
    hint: Any = get_type_hints(target.__init__)[str(path[0])]
    for _ in path[1:]:
        hint = (get_args(hint) or (hint,))[-1]
    return [field.name for field in fields(hint)] if is_dataclass(hint) else []
