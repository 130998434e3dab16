"""From a resolved configuration to checked objects: the only place that instantiates.

A closed group is checked against its dataclass in config.py, an open one against the signature
of the class that ``_target_`` names. Whatever is wrong becomes one sentence with the key, the
value, the limit and the remedy.
"""

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import pydantic
import torch
from pydantic import ConfigDict, ValidationError

from pe_lab.config import Config, validated
from pe_lab.errors import UsageError
from pe_lab.model import Transformer
from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.none import NoPE
from pe_lab.positions import Positions
from pe_lab.streams import torch_seed
from pe_lab.suggest import did_you_mean
from pe_lab.task import TRAIN, Task


@dataclass(frozen=True)
class Plan:
    """A run, checked as a whole and not begun: nothing is written, no sequence is drawn."""

    config: Config
    task: Task
    positions: Positions
    dims: Dims
    splits: list[str]
    """The splits to measure, in order; ``too_long`` are not among them."""
    too_long: dict[str, int]
    """Splits left out under ``eval.skip_too_long``, with the positions they would need."""

    def sequences(self, split: str, most: int) -> int:
        """How many sequences of a split to measure, where ``most`` of the training length are:
        fewer of longer ones, so that all splits read equally many tokens."""
        length = self.task.split(split).n_tokens
        return max(1, most * min(length, self.dims.train_len) // length)

    def model(self) -> Transformer:
        """The model with its initial weights. The trunk and the encodings are drawn from
        streams of their own: with one seed, every encoding starts from the same trunk."""
        seed = self.config.seed
        with torch.random.fork_rng():
            torch.manual_seed(torch_seed(seed, "encoding"))
            encodings = build_encodings(self.config.pe, self.dims)
            torch.manual_seed(torch_seed(seed, "weights"))
            return Transformer(self.config.model, self.dims.vocab_size, encodings)


def plan(config: Config) -> Plan:
    """Everything that can be checked without training; UsageError says what is wrong."""
    task = build_task(config.task)
    positions: Positions = instantiate(config.positions, "positions", Positions)
    try:
        limits = {
            name: positions.limit(task.split(name).n_tokens, training=name == TRAIN)
            for name in (TRAIN, *task.evaluated())
        }
    except ValueError as error:
        raise UsageError(f"positions: {error}") from None
    dims = Dims(
        d_model=config.model.d_model,
        n_heads=config.model.n_heads,
        n_layers=config.model.n_layers,
        vocab_size=len(task.vocab),
        train_len=task.split(TRAIN).n_tokens,
        max_len=max(limits.values()),
    )
    encodings = build_encodings(config.pe, dims)
    longest = min((e.max_len for e in encodings if e.max_len is not None), default=None)
    too_long = {k: v for k, v in limits.items() if longest is not None and v > longest}
    if TRAIN in too_long or (too_long and not config.eval.skip_too_long):
        name, need = next(iter(too_long.items()))
        remedy = f"raise pe.max_len to {max(too_long.values())}"
        if TRAIN not in too_long:
            remedy += " or set eval.skip_too_long=true to report such splits as not applicable"
        raise UsageError(
            f"pe.max_len={longest} is too short: {name} needs {need} positions; {remedy}"
        )
    if config.eval.generate and not task.generates:
        raise UsageError(
            "eval.generate=true is not allowed: this task's answers are not one run at the "
            "end of the sequence; set eval.generate=false"
        )
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device=cuda is not allowed: there is no GPU here; set device=auto")
    splits = [name for name in task.evaluated() if name not in too_long]
    return Plan(config, task, positions, dims, splits, too_long)


def build_task(section: dict[str, Any]) -> Task:
    """The task, with every split's changed keys checked too."""
    task: Task = instantiate(section, "task", Task)
    for name, changes in task.splits.items():
        key = f"task.splits.{name}"
        for changed in changes.keys() - section.keys():
            raise UsageError(
                f"{key}.{changed} is no key of the task: " + did_you_mean(changed, section)
            )
        kept = {k: v for k, v in {**section, **changes}.items() if k not in task.fixed}
        changed_task = instantiate({**kept, "splits": {}}, key, Task)
        if changed_task.vocab != task.vocab:
            raise UsageError(
                f"{key} changes the vocabulary ({', '.join(changes)}), which one model cannot "
                "follow: leave these keys to the task itself"
            )
    return task


def build_encodings(section: dict[str, Any], dims: Dims) -> list[PositionalEncoding]:
    """One encoding for each layer; NoPE where an encoding leaves a layer alone."""

    def serves(encoding: PositionalEncoding, layer: int) -> bool:
        hooks = ("enter", "rotate", "bias", "logits", "weights", "values", "carry")
        return encoding.active and (layer == 0 or encoding.overrides(*hooks))

    made = [
        instantiate(section, "pe", PositionalEncoding, dims.at_layer(layer))
        for layer in range(dims.n_layers)
    ]
    serving = [layer for layer in range(dims.n_layers) if serves(made[layer], layer)]
    if not serving:
        return [NoPE(dims.at_layer(layer)) for layer in range(dims.n_layers)]
    if made[0].share_layers:
        made = [made[serving[0]]] * dims.n_layers
    return [
        made[layer] if layer in serving else NoPE(dims.at_layer(layer))
        for layer in range(dims.n_layers)
    ]


def check(resolved: dict[str, Any], names: dict[str, str]) -> Config:
    """The resolved configuration as a ``Config``; UsageError where a closed group is wrong."""
    try:
        return validated({**resolved, "names": names})
    except ValidationError as error:
        raise UsageError(_sentence(error, resolved, "")) from None


def instantiate(section: dict[str, Any], key: str, kind: type, *given: Any) -> Any:
    """The object that ``section`` describes; ``given`` are arguments that no yaml holds.

    Args:
        section: ``_target_`` and the keyword arguments of that class.
        key: what the user calls the section, for messages.
        kind: what that class must derive from.

    Raises:
        UsageError: no such class, a key it does not take or lacks, a value out of its limits.
    """
    target = _find(section, key)
    if not (inspect.isclass(target) and issubclass(target, kind)):
        raise UsageError(
            f"{key}._target_={section['_target_']} is no {kind.__name__}: "
            f"name a class that derives from {kind.__module__}.{kind.__name__}"
        )
    values = {k: v for k, v in section.items() if k != "_target_"}
    signature = inspect.signature(target)
    names = list(signature.parameters)[len(given) :]
    hints = get_type_hints(target.__init__, include_extras=True)
    fields: dict[str, Any] = {}
    for name in names:
        default = signature.parameters[name].default
        required = default is inspect.Parameter.empty
        # The prefix keeps clear of the names that pydantic has taken for itself.
        field = pydantic.Field(... if required else default, alias=name)
        fields[f"field_{name}"] = (hints.get(name, Any), field)
    config = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
    schema = pydantic.create_model(target.__name__, __config__=config, **fields)
    try:
        checked = schema.model_validate(values)
        return target(*given, **{name: getattr(checked, f"field_{name}") for name in names})
    except ValidationError as error:
        raise UsageError(_sentence(error, {key: values}, key, names)) from None
    except ValueError as error:
        raise UsageError(f"{key}: {error}") from None


def _find(section: dict[str, Any], key: str) -> Any:
    path = section.get("_target_")
    if not isinstance(path, str) or "." not in path:
        raise UsageError(
            f"{key}._target_={path} names no class: give its dotted path, package.module.Class"
        )
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"{key}._target_={path} cannot be imported ({error}): "
            "put its folder on PYTHONPATH or install it"
        ) from None
    if not hasattr(module, name):
        raise UsageError(
            f"{key}._target_={path}: {module_name} has no {name}; "
            + did_you_mean(name, (n for n in vars(module) if not n.startswith("_")))
        )
    return getattr(module, name)


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
        remedy = did_you_mean(str(path[-1]), known)
        return f"{key}={first['input']} is no key of {parent}: {remedy}"
    if kind in ("missing", "missing_argument"):
        return f"{key} is missing: set it"
    if kind == "value_error":
        return f"{key}: {context['error']}" if key else str(context["error"])
    wanted = {
        "greater_than": "a value greater than {gt}",
        "greater_than_equal": "a value of at least {ge}",
        "less_than": "a value less than {lt}",
        "less_than_equal": "a value of at most {le}",
        "int_parsing": "a whole number",
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_parsing": "a number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "bool_parsing": "true or false",
        "bool_type": "true or false",
        "literal_error": "{expected}",
        "string_type": "a text",
    }
    limit = wanted[kind].format(**context) if kind in wanted else None
    # A choice of types (an optional number) adds the type's name to the path.
    while path and isinstance(_at_or_none(values, path[:-1]), (int, float, str)):
        path.pop()
    key = ".".join(str(part) for part in path)
    return f"{key}={first['input']} is not allowed: " + (
        f"set it to {limit}" if limit else first["msg"]
    )


def _at_or_none(values: Any, path: Sequence[int | str]) -> Any:
    try:
        return _at(values, path)
    except (AttributeError, KeyError, IndexError, TypeError):
        return None


def _known(path: Sequence[int | str]) -> list[str]:
    """Keys of the closed group at this path."""
    schema: Any = Config
    for part in path:
        schema = get_type_hints(schema)[str(part)]
    return [name for name in get_type_hints(schema) if name != "names"]
