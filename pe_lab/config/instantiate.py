"""The configuration against its schemas, and what ``_target_`` names: the only place that
instantiates.

A closed group is checked against its dataclass in config.py, an open one against the signature
of the class that ``_target_`` names. Whatever is wrong becomes one sentence with the key, the
value, the limit and the remedy.
"""

import functools
import importlib
import inspect
import json
import traceback
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pydantic
from pydantic import ConfigDict, ValidationError
from pydantic_core import to_jsonable_python

from pe_lab.common.errors import UsageError
from pe_lab.common.limits import remedy
from pe_lab.common.suggest import did_you_mean
from pe_lab.common.task import Task
from pe_lab.config.schema import Config, plain, validated
from pe_lab.models.base import ModelConfig
from pe_lab.pe.base import PositionalEncoding
from pe_lab.pe.positions import Positions

LARGE = 2**16
"""A size from here on may be what does not fit into memory."""


def check(resolved: dict[str, Any], names: dict[str, str]) -> Config:
    """The resolved configuration as a ``Config``; UsageError where a closed group is wrong."""
    try:
        config = validated({**resolved, "names": names})
    except ValidationError as error:
        raise UsageError(_sentence(error, resolved, "")) from None
    _refuse_turned(resolved, plain(config), "")
    open_groups = {
        "task": _checked_task(config.task),
        "pe": _checked_encoding(config.pe, "pe"),
        "positions": _settled(config.positions, "positions", Positions),
        "model": _settled(config.model, "model", ModelConfig),
    }
    return validated({**plain(config), **open_groups})


def _checked_encoding(
    section: dict[str, Any], key: str, also: Sequence[str] = ()
) -> dict[str, Any]:
    """Settled, and what its keys hold of other encodings (the parts of a combination) too."""
    settled = _settled(section, key, PositionalEncoding, given=1, also=also)
    for name, value in settled.items():
        if isinstance(value, list) and all(isinstance(v, dict) and "_target_" in v for v in value):
            settled[name] = [
                _checked_part(part, f"{key}.{name}.{n}") for n, part in enumerate(value)
            ]
    return settled


def _checked_part(part: dict[str, Any], key: str) -> dict[str, Any]:
    # Where and by what name a part serves is the combination's to check.
    apart = ("pe", "layers")
    own = {k: v for k, v in part.items() if k not in apart}
    kept = {k: v for k, v in part.items() if k in apart}
    return kept | _checked_encoding(own, key, also=("layers",))


def _checked_task(section: dict[str, Any]) -> dict[str, Any]:
    settled = _settled(section, "task", Task)
    for name, changes in settled.get("splits", {}).items():
        key = f"task.splits.{name}"
        for changed in changes.keys() - section.keys():
            raise UsageError(
                f"{key}.{changed} is no key of the task: " + did_you_mean(changed, section)
            )
        whole = _settled({**section, **changes, "splits": {}}, key, Task)
        # What no split can change is left for the task to refuse.
        settled["splits"][name] = {k: whole[k] if k != "splits" else changes[k] for k in changes}
    return settled


def _settled(
    section: dict[str, Any], key: str, kind: type, given: int = 0, also: Sequence[str] = ()
) -> dict[str, Any]:
    """The section with its values as its class takes them: 10000 and 1e4 are one number."""
    values = _values(_find(section, key, kind), section, key, given, also)
    plain_values = to_jsonable_python(values, fallback=str)
    return {k: v if k == "_target_" else plain_values[k] for k, v in section.items()}


def _too_large(key: str, values: dict[str, Any]) -> str:
    large = [
        f"{key}.{name}={as_yaml(value)}"
        for name, value in values.items()
        if isinstance(value, (int, float)) and abs(value) >= LARGE
    ]
    if large:
        return f"{' '.join(large)} is too large: there is not enough memory; set a smaller size"
    return (
        f"{key} does not fit into memory with these sizes: lower those it is made for (the task's "
        "length, positions.max, model.d_model)"
    )


def instantiate(
    section: dict[str, Any], key: str, kind: type, *given: Any, also: Sequence[str] = ()
) -> Any:
    """The object that ``section`` describes; ``given`` are arguments that no yaml holds.

    Args:
        section: ``_target_`` and the keyword arguments of that class.
        key: what the user calls the section, for messages.
        kind: what that class must derive from.
        also: keys that the section may hold besides, for messages.

    Raises:
        UsageError: no such class, a key it does not take or lacks, a value out of its limits.
    """
    target = _find(section, key, kind)
    values = _values(target, section, key, len(given), also)
    try:
        return target(*given, **values)
    except UsageError:
        # From a part of it, told as its own.
        raise
    except ValueError as error:
        raise UsageError(f"{key}: {error}") from None
    except (Exception, SystemExit) as error:
        if isinstance(error, (MemoryError, OverflowError)) or "memory" in str(error):
            raise UsageError(_too_large(key, values)) from None
        raise UsageError(f"{_told(section, key, error)}; correct it there") from None


def _values(
    target: Any, section: dict[str, Any], key: str, given: int, also: Sequence[str] = ()
) -> dict[str, Any]:
    """The arguments, checked against the signature less the first ``given``."""
    values = {k: v for k, v in section.items() if k != "_target_"}
    try:
        schema, names = _schema(target, given)
    except Exception as error:
        raise UsageError(f"{_told(section, key, error)}; correct its annotations") from None
    try:
        checked = schema.model_validate(values)
    except ValidationError as error:
        at = error.errors()[0]["loc"][:-1]
        known = _keys_below(target, at) if at else [*names, *also]
        raise UsageError(_sentence(error, {key: values}, key, known)) from None
    arguments = {name: getattr(checked, f"field_{name}") for name in names}
    _refuse_turned(values, arguments, key)
    return arguments


@functools.cache
def _schema(target: Any, given: int) -> tuple[type[pydantic.BaseModel], list[str]]:
    """What the arguments of a class must be, and their names; made once, not for every job."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = list(inspect.signature(target).parameters.values())[given:]
    taken = {p.name: p.default for p in parameters if p.kind not in several}
    hints = get_type_hints(target.__init__, include_extras=True)
    fields: dict[str, Any] = {}
    for name, default in taken.items():
        required = default is inspect.Parameter.empty
        # The prefix keeps clear of the names that pydantic has taken for itself.
        field = pydantic.Field(... if required else default, alias=name)
        fields[f"field_{name}"] = (hints.get(name, Any), field)
    config = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
    return pydantic.create_model(target.__name__, __config__=config, **fields), list(taken)


def _refuse_turned(before: Any, after: Any, key: str) -> None:
    """Refuse true and false where pydantic has made a number of them."""
    if isinstance(before, bool) and not isinstance(after, bool) and isinstance(after, (int, float)):
        wanted = "a whole number" if isinstance(after, int) else "a number"
        raise UsageError(f"{key}={as_yaml(before)} is not allowed: set it to {wanted}")
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
        _refuse_turned(old, new, f"{key}.{name}" if key else str(name))


def _told(section: dict[str, Any], key: str, error: BaseException) -> str:
    """What went wrong in somebody's class, and where."""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}"
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.filename}, line {frame.lineno}"
    what = " ".join(str(getattr(error, "msg", error)).split())
    return f"{key}._target_={section['_target_']} fails at {where}: {type(error).__name__}: {what}"


def as_yaml(value: Any) -> str:
    """A value as yaml has it."""
    if value is None or isinstance(value, (bool, list, dict)):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)


def _find(section: dict[str, Any], key: str, kind: type) -> Any:
    """The class that ``_target_`` names, of this kind."""
    path = section.get("_target_")
    if not isinstance(path, str) or "." not in path:
        raise UsageError(
            f"{key}._target_={as_yaml(path)} names no class: "
            "give its dotted path, package.module.Class"
        )
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"{key}._target_={path} cannot be imported ({error}): "
            "put its folder on PYTHONPATH or install it"
        ) from None
    except Exception as error:
        raise UsageError(f"{_told(section, key, error)}; correct that file") from None
    if not hasattr(module, name):
        raise UsageError(
            f"{key}._target_={path}: {module_name} has no {name}; "
            + did_you_mean(name, (n for n in vars(module) if not n.startswith("_")))
        )
    target = getattr(module, name)
    if not (inspect.isclass(target) and issubclass(target, kind)):
        raise UsageError(
            f"{key}._target_={path} is no {kind.__name__}: "
            f"name a class that derives from {kind.__module__}.{kind.__name__}"
        )
    return target


def _at(values: Any, path: Sequence[int | str]) -> Any:
    for part in path:
        values = values[int(part)] if isinstance(values, list) else values.get(part)
    return values


def _sentence(
    error: ValidationError, values: dict[str, Any], prefix: str, names: Sequence[str] | None = None
) -> str:
    first = error.errors()[0]
    path = [prefix, *first["loc"]] if prefix else list(first["loc"])
    key = ".".join(str(part) for part in path)
    kind, context = first["type"], first.get("ctx", {})
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _known(path[:-1]) if names is None else names
        parent = ".".join(map(str, path[:-1])) or "the configuration"
        choices = did_you_mean(str(path[-1]), known)
        return f"{key}={as_yaml(first['input'])} is no key of {parent}: {choices}"
    if kind in ("missing", "missing_argument"):
        return f"{key} is missing: set it"
    if kind == "value_error":
        return f"{key}: {context['error']}" if key else str(context["error"])
    # A choice of types (an optional number) adds the type's name to the path.
    while path and isinstance(_at_or_none(values, path[:-1]), (int, float, str)):
        path.pop()
    key = ".".join(str(part) for part in path)
    return f"{key}={as_yaml(first['input'])} is not allowed: {remedy(first)}"


def _at_or_none(values: Any, path: Sequence[int | str]) -> Any:
    try:
        return _at(values, path)
    except (AttributeError, KeyError, IndexError, TypeError):
        return None


def _keys_below(target: Any, path: Sequence[int | str]) -> list[str]:
    """The keys of what an argument holds at this path: a mapping's values are of one kind."""
    hint: Any = get_type_hints(target.__init__)[str(path[0])]
    for _ in path[1:]:
        hint = (get_args(hint) or (hint,))[-1]
    return [field.name for field in fields(hint)] if is_dataclass(hint) else []


def _known(path: Sequence[int | str]) -> list[str]:
    """Keys of the closed group at this path."""
    schema: Any = Config
    for part in path:
        schema = get_type_hints(schema)[str(part)]
    return [name for name in get_type_hints(schema) if name != "names"]
