"""From a checked configuration to a plan: every error that can be found before any work."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from pe_lab.config.choices import choices
from pe_lab.config.schema import Config, plain, validated
from pe_lab.core.errors import UsageError
from pe_lab.core.instantiate import instantiate
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.rng import torch_seed
from pe_lab.core.task import TRAIN, Task
from pe_lab.models.base import Model
from pe_lab.models.config import ModelConfig, Vocabulary
from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.positions import Positions
from pe_lab.train.encodings import build_encodings, refuse_encoding, refused, refused_positions
from pe_lab.train.kernels import use_kernels
from pe_lab.train.memory import check_sizes, sequences_of
from pe_lab.train.origin import with_origin


@dataclass(frozen=True)
class Plan:
    """A checked run before its start: nothing is written, no sequence is drawn."""

    config: Config
    task: Task
    positions: Positions
    model_config: ModelConfig
    dims: Dims
    splits: list[str]
    """The splits to measure, in order; ``too_long`` are not among them."""
    too_long: dict[str, int]
    """Splits left out under ``eval.skip_too_long``, with the positions they would need."""
    null_values: dict[str, Any] = field(default_factory=dict)
    """The keys that are null and stand for a value, with that value."""
    reads_positions: bool = True
    """Whether any layer's encoding reads them."""
    at_test_time: bool = False
    """Whether the encoding is made for a trained one, at test time."""
    origin: Path | None = None
    """The run of ``train.from``."""

    @property
    def resolved(self) -> Config:
        """The configuration as it is recorded and hashed.

        It holds the ``null_values``, and ``eval.skip_too_long`` only where a split is skipped: the
        key changes nothing in another run.
        """
        values = self.null_values | {"eval.skip_too_long": bool(self.too_long)}
        return validated(replaced(plain(self.config), values))

    def sequences(self, split: str, most: int) -> int:
        """How many sequences of a split to measure, where ``most`` of the training length are:
        fewer of longer ones, so that all splits read equally many tokens."""
        return sequences_of(most, self.task.split(split).n_tokens, self.dims.train_len)

    def model(self) -> Model:
        """The model with its initial weights. The trunk and the encodings are drawn from
        separate random streams: with one seed, every encoding starts from the same trunk."""
        config, separator = self.config, self.task.separator
        seed = config.seed if config.seed_init is None else config.seed_init
        words, lengths = self.task.vocab, (TRAIN, *self.splits)
        longest = max(self.task.split(name).n_tokens for name in lengths)
        place = None if separator is None else words.index(separator)
        vocabulary = Vocabulary(len(words), place, self.dims.train_len, longest)
        with torch.random.fork_rng():
            torch.manual_seed(torch_seed(seed, "encoding"))
            encodings = build_encodings(self.config.pe, self.dims, self.model_config.without())
            torch.manual_seed(torch_seed(seed, "weights"))
            model = self.model_config.build(vocabulary, encodings)
        if self.config.train.fast:
            use_kernels(model)
        return model


def plan(config: Config) -> Plan:
    """Check everything that can be checked without training.

    Raises:
        UsageError: the settings do not fit one another or this machine.
    """
    config, origin = with_origin(config)
    task = build_task(config.task)
    _check_length(config, task)
    model_config = instantiate(config.model, "model", ModelConfig)
    if refusal := model_config.refuses_task(task):
        raise UsageError(f"task={config.names.get('task', '')} {refusal}")
    positions = _bound_positions(config, task, model_config)
    needed = {name: task.split(name).n_tokens for name in (TRAIN, *task.evaluated())}
    limits = dict.fromkeys(needed, 0)
    try:
        # The longest first: its message is enough for all.
        for name in sorted(needed, key=lambda name: -needed[name]):
            limits[name] = positions.limit_for(task.split(name), training=name == TRAIN)
    except ValueError as error:
        raise UsageError(f"positions: {error}") from None
    train_len = task.split(TRAIN).n_tokens
    dims = model_config.dims(len(task.vocab), train_len, max(limits.values()))
    check_sizes(config, task, model_config, dims, needed)
    refuse_encoding(model_config, config.pe, config.names.get("pe", ""))
    encodings = build_encodings(config.pe, dims, model_config.without())
    _check_left_alone(config, dims, model_config.without())
    for encoding in encodings:
        source, refusal = config.names.get("positions", ""), refused(model_config, encoding)
        if refusal := refusal or refused_positions(model_config, encoding, positions, source):
            raise UsageError(f"pe={config.names.get('pe', '')} {refusal}")
    too_long = _too_long(config, limits, encodings)
    _check_generation(config, task, encodings)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device=cuda is not allowed: there is no GPU here; set device=auto")
    splits = [name for name in task.evaluated() if name not in too_long]
    parts: dict[str, list[Any]] = {"model": [model_config], "positions": [positions]}
    made = Plan(
        config, task, positions, model_config, dims, splits, too_long,
        null_values(plain(config), {**parts, "pe": encodings}),
        reads_positions=any(encoding.reads_positions for encoding in encodings),
        at_test_time=any(encoding.at_test_time for encoding in encodings),
        origin=origin,
    )  # fmt: skip
    return made if (label := model_config.entry()) is None else _labelled(made, label)


def _labelled(planned: Plan, label: str) -> Plan:
    """The plan of a model from outside: its runs have its label in place of an encoding's name."""
    if label in choices("pe"):
        raise UsageError(f"model.label={label} is the name of an encoding: set it to another name")
    planned.model()  # Its errors come before any work.
    names = {**planned.config.names, "pe": label}
    return replace(planned, config=replace(planned.config, names=names))  # type: ignore[type-var]


def _too_long(
    config: Config, limits: Mapping[str, int], encodings: Sequence[PositionalEncoding]
) -> dict[str, int]:
    """The splits with more positions than the encoding has; refused unless they are skipped."""
    limited = {e.max_len: e for e in encodings if e.max_len is not None}
    longest = min(limited, default=None)
    too_long = {k: v for k, v in limits.items() if longest is not None and v > longest}
    never = {TRAIN, IN_DOMAIN} & too_long.keys()
    if never or (too_long and not config.eval.skip_too_long):
        assert longest is not None
        name, need = next(iter(too_long.items()))
        remedy = f"raise the key of pe that limits it until it reaches {max(too_long.values())}"
        if not never:
            remedy += " or set eval.skip_too_long=true to report such splits as not applicable"
        raise UsageError(
            f"pe has {longest} positions, which is too short: {name} needs {need}; {remedy}"
        )
    return too_long


def _check_generation(config: Config, task: Task, encodings: Sequence[PositionalEncoding]) -> None:
    """Refuse ``eval.generate`` where the answers cannot be generated."""
    if config.eval.generate and not task.generates:
        raise UsageError(
            "eval.generate=true is not allowed: this task's answers are not one run at the "
            "end of the sequence; set eval.generate=false"
        )
    if config.eval.generate and any(encoding.whole_sequence for encoding in encodings):
        raise UsageError(
            "eval.generate=true is not allowed with this encoding, which reads the length of the "
            "whole sequence, not known while it is written: set eval.generate=false"
        )


def _bound_positions(config: Config, task: Task, model_config: ModelConfig) -> Positions:
    """The source of positions for this task."""
    source = instantiate(config.positions, "positions", Positions)
    try:
        bound = source.bound(task)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if model_config.restarts_positions and not bound.increasing:
        raise UsageError(
            f"positions={config.names.get('positions', '')} is not allowed with "
            f"model={config.names.get('model', '')}, which restarts positions at the separator: "
            "choose model=transformer or another decoder, or other positions"
        )
    return bound


def _check_left_alone(config: Config, dims: Dims, without: frozenset[int]) -> None:
    """Refuse layers without the encoding where it changes nothing in them, or in no other."""
    if not without:
        return
    whole, name = build_encodings(config.pe, dims), config.names.get("pe", "")
    encoded = {layer for layer, encoding in enumerate(whole) if encoding.hooks()}
    for layer in sorted(without - encoded):
        raise UsageError(
            f"model.layers.{layer}.encoded=false has no effect, pe={name} changes nothing in that "
            "layer: leave it true"
        )
    if encoded <= without:
        raise UsageError(
            f"model.layers.<i>.encoded=false leaves no layer with pe={name}: give pe=none, or "
            "leave it true in one"
        )


def _check_length(config: Config, task: Task) -> None:
    """Refuse a length that the task does not follow."""
    length, n_tokens = config.train.length, task.split(TRAIN).n_tokens
    if length is not None and n_tokens != length:
        if config.task.get("length") == n_tokens:
            raise UsageError(
                f"task.length={n_tokens} differs from train.length={length}, which sets the length "
                f"of this task: set train.length={n_tokens} in its place"
            )
        raise UsageError(
            f"train.length={length} changes nothing in this task, whose training sequences have "
            f"{n_tokens} tokens, set by task.* (pe-lab --cfg job shows them): leave it null"
        )


def build_task(section: dict[str, Any]) -> Task:
    """The task, with every split's changed keys checked too."""
    task = instantiate(section, "task", Task)
    for name, changes in task.splits.items():
        key = f"task.splits.{name}"
        kept = {k: v for k, v in {**section, **changes}.items() if k not in task.fixed}
        changed_task = instantiate({**kept, "splits": {}}, key, Task)
        if changed_task.vocab != task.vocab:
            raise UsageError(
                f"{key} changes the vocabulary ({', '.join(changes)}), which one model cannot "
                "follow: leave these keys to the task itself"
            )
    try:
        task.contents()
    except ValueError as error:
        raise UsageError(str(error)) from None
    return task


def null_values(config: Mapping[str, Any], groups: Mapping[str, Iterable[Any]]) -> dict[str, Any]:
    """The keys of a configuration that are null and stand for a value, with that value:
    ``pe.npos`` -> 65. One that stands for different values in different layers is left out."""
    found: dict[str, list[Any]] = {}
    for group, made in groups.items():
        for one in made:
            for key, value in one.null_values().items():
                if value is not None:
                    found.setdefault(f"{group}.{key}", []).append(value)
    single = {key: values[0] for key, values in found.items() if len(set(values)) == 1}
    places = {key: _section(config, key) for key in single}
    return {k: single[k] for k, (part, name) in places.items() if part.get(name, 0) is None}


def replaced(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with these values of dotted keys."""
    changed: Any = deepcopy(dict(config))
    for key, value in values.items():
        section, name = _section(changed, key)
        section[name] = value
    return dict(changed)


def _section(config: Any, key: str) -> tuple[Any, str]:
    """The mapping that holds a dotted key, and its name there."""
    *path, name = key.split(".")
    for part in path:
        config = config[int(part)] if isinstance(config, list) else config[part]
    return config, name
