"""The checks of values that users write: closed dataclasses, sections of the configuration and yaml
files, and pydantic's errors as one sentence.

In a section ``_target_`` names a class, whose signature is the schema of the other keys.
"""

import functools
import inspect
import json
import re
from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NotRequired, TypeVar, get_type_hints

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from pe_lab.core.errors import UsageError, did_you_mean, reason
from pe_lab.core.files import read_yaml

T = TypeVar("T")
# The kinds of pydantic's error for an unknown key.
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
# Unknown keys and numbers that are not finite are refused.
CLOSED = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)

closed = dataclass(frozen=True, kw_only=True, config=CLOSED)
"""A class decorator: a frozen dataclass that refuses unknown keys and values of other types."""
# The recorded ``_target_`` -> today's. The identity of a run has the recorded one.
MOVED = {
    f"pe_lab.{old}": f"pe_lab.{new}"
    for old, new in {
        "pe.pi.PI": "pe.rope_scaling.PI",
        "pe.ntk_old.NTKOld": "pe.rope_scaling.NTKOld",
        "pe.ntk_fixed.NTKFixed": "pe.rope_scaling.NTKFixed",
        "pe.ntk_mixed.NTKMixed": "pe.rope_scaling.NTKMixed",
        "pe.yarn.YaRN": "pe.rope_scaling.YaRN",
        "pe.dynamic_ntk.DynamicNTK": "pe.rope_scaling.DynamicNTK",
        "pe.longrope.LongRoPE": "pe.rope_scaling.LongRoPE",
        "pe.leaky_rerope.LeakyReRoPE": "pe.rerope.LeakyReRoPE",
        "pe.self_extend.SelfExtend": "pe.rerope.SelfExtend",
        "pe.grape_a.GRAPEA": "pe.grape.GRAPEA",
        "pe.grape_ap.GRAPEAP": "pe.grape.GRAPEAP",
        "pe.grape_m.GRAPEM": "pe.grape.GRAPEM",
        "models.gated_deltanet.GatedDeltaNetConfig": "models.linear_recurrent.GatedDeltaNetConfig",
        "models.mamba2.Mamba2Config": "models.linear_recurrent.Mamba2Config",
    }.items()
}
RECORDED = {new: old for old, new in MOVED.items()}


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


def as_yaml(value: Any) -> str:
    """A value as YAML writes it, a long one shortened."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}.."


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
        content = read_yaml(file)
        return TypeAdapter(kind).validate_python(content), content
    except ValidationError as error:
        raise UsageError(f"{file}: {problem(error, content, '', keys)}, as in {see}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{file} cannot be read ({reason(error)}): write it as {see}") from None


class Section(dict[str, Any]):
    """A checked section. As a mapping it holds the values that a run records.

    Attributes:
        key: where the section is in the configuration.
        target: the class.
        arguments: its keyword arguments.
    """

    key: str
    target: Any
    arguments: dict[str, Any]

    def make(self, *leading: Any) -> Any:
        """The object that the section describes; ``leading`` are its first arguments.

        Raises:
            UsageError: the class refuses the values, or memory is not enough for them.
        """
        try:
            return self.target(*leading, **self.arguments)
        except ValueError as error:
            raise UsageError(f"{self.key}: {error}") from None
        except (MemoryError, OverflowError, RuntimeError) as error:
            raise UsageError(
                f"{self.key} cannot be made with these sizes ({reason(error)}): set smaller ones"
            ) from None


def check_section(section: Mapping[str, Any], key: str, base: type, leading: int = 0) -> Section:
    """The section, checked against the signature of its class; a checked one is returned as it is.

    Args:
        section: ``_target_`` is the dotted path of a class, or the class.
        key: the section's key, for messages.
        base: what the class must derive from.
        leading: the number of first arguments, which no section holds.

    Raises:
        UsageError: no such class, an unknown or missing key, a value of another type.
    """
    if isinstance(section, Section):
        return section
    path: Any = section.get("_target_")
    target = find_class(MOVED.get(path, path), f"{key}._target_={as_yaml(str(path))}", base)
    schema, names = _schema(target, leading)
    values = {name: value for name, value in section.items() if name != "_target_"}
    try:
        arguments = schema.validate_json(to_json(values), strict=True)
    except ValidationError as error:
        raise UsageError(problem(error, values, key, [f"{key}.{name}" for name in names])) from None
    recorded = {"_target_": path} | to_jsonable_python(arguments, fallback=str)
    checked = Section({name: recorded[name] for name in section})
    checked.key, checked.target, checked.arguments = key, target, arguments
    return checked


def instantiate(section: Mapping[str, Any], key: str, base: type[T], *leading: Any) -> T:
    """The object that a section describes, checked before it is made."""
    made: T = check_section(section, key, base, len(leading)).make(*leading)
    return made


def find_class(path: Any, word: str, base: type) -> Any:
    """The class with a dotted path, derived from ``base``.

    Args:
        path: the class itself is returned.
        word: key and value that name it, for messages.
    """
    module, _, name = str(path).rpartition(".")
    try:
        target = path if inspect.isclass(path) else getattr(import_module(module), name)
    except Exception as error:
        raise UsageError(
            f"{word} cannot be imported ({type(error).__name__}: {reason(error)}): install what it "
            "needs, or give the path of a class that is installed, on PYTHONPATH or in --config-dir"
        ) from None
    if not (inspect.isclass(target) and issubclass(target, base)):
        raise UsageError(f"{word} is no {base.__name__}: name a class that derives from it")
    return target


@functools.cache
def _schema(target: Any, leading: int) -> tuple[TypeAdapter[dict[str, Any]], list[str]]:
    """The schema of the arguments of a class without the first ``leading``, and their names."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    hints = get_type_hints(target.__init__, include_extras=True)
    keys: dict[str, Any] = {}
    for parameter in list(inspect.signature(target).parameters.values())[leading:]:
        if parameter.kind not in variadic:
            hint = hints.get(parameter.name, Any)
            required = parameter.default is inspect.Parameter.empty
            keys[parameter.name] = hint if required else NotRequired[hint]
    make: Any = TypedDict
    schema = make(target.__name__, keys)
    schema.__pydantic_config__ = CLOSED
    return TypeAdapter(schema), list(keys)
