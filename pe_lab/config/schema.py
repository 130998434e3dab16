"""The keys of the closed groups, with types and limits. Their values are in conf/.

The open groups (``task``, ``pe``, ``positions``, ``model``, ``tracker``) name a class in
``_target_``, whose signature is their schema. This module does not import torch.

``seed`` is one number, or ``{init: .., data: ..}``. ``seed.init`` draws the weights; ``seed.data``
draws the batches, their order, dropout and positions.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from typing import Annotated, Any, Literal

from omegaconf import OmegaConf
from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pe_lab.core.errors import UsageError
from pe_lab.core.suggest import did_you_mean
from pe_lab.core.validation import closed

PARTS = ("init", "data")
WORDS = {f"seed.{part}": f"seed_{part}" for part in PARTS}
"""Key of the command line -> key for Hydra, in whose configuration ``seed`` is a number."""


def as_composed(word: str) -> str:
    """A word as Hydra composes it: ``++seed_init=1`` for ``seed.init=1``."""
    key, equals, value = word.partition("=")
    hidden = WORDS.get(key.lstrip("+"))
    return f"++{hidden}{equals}{value}" if hidden else word


def as_typed(word: str) -> str:
    """The inverse."""
    key, equals, value = word.removeprefix("++").partition("=")
    shown = next((shown for shown, hidden in WORDS.items() if hidden == key), None)
    return f"{shown}{equals}{value}" if shown else word


def folded(composed: Mapping[str, Any]) -> dict[str, Any]:
    """A composed configuration with both numbers in ``seed``."""
    hidden = WORDS.values()
    if not any(key in composed for key in hidden):
        return dict(composed)
    rest = {key: value for key, value in composed.items() if key not in hidden}
    seed = rest["seed"]
    both = dict(seed) if isinstance(seed, Mapping) else dict.fromkeys(PARTS, seed)
    both |= {part: composed[f"seed_{part}"] for part in PARTS if f"seed_{part}" in composed}
    return {**rest, "seed": both}


def apart(section: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with ``seed`` of the data and ``seed_init``; None if both are the same.

    Raises:
        UsageError: ``seed`` is a mapping of other keys.
    """
    seed = section.get("seed")
    if not isinstance(seed, Mapping):
        return dict(section)
    for key in seed:
        if key not in PARTS:
            raise UsageError(f"seed.{key} is not a key: {did_you_mean(str(key), PARTS)}")
    for key in PARTS:
        if key not in seed:
            raise UsageError(f"seed.{key} is missing: give seed.init and seed.data, or one number")
    same = seed["init"] == seed["data"] and not isinstance(seed["init"], bool)
    return {**section, "seed": seed["data"], "seed_init": None if same else seed["init"]}


def together(section: dict[str, Any]) -> dict[str, Any]:
    """The inverse of ``apart``."""
    rest = {key: value for key, value in section.items() if key != "seed_init"}
    if section["seed_init"] is None:
        return rest
    return {**rest, "seed": {"init": section["seed_init"], "data": section["seed"]}}


def register_resolvers() -> None:
    """Register the resolvers of the yamls with OmegaConf.

    ``${mul:a,b}`` and ``${add:a,b}``: splits relative to the task's values; ``${cores:threads}``:
    the number of simultaneous jobs on this machine; ``${cpus:threads}``: the CPUs of one job of a
    sweep. A value that is not a number is returned unchanged, for the check of its key to refuse.
    """
    for name, result in (("mul", operator.mul), ("add", operator.add)):
        OmegaConf.register_new_resolver(name, partial(_whole, result), replace=True)
    OmegaConf.register_new_resolver("cores", _cores, replace=True)
    OmegaConf.register_new_resolver("cpus", cpus, replace=True)


def _whole(result: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    plain = isinstance(a, (int, float)) and not isinstance(a, bool)
    return int(result(a, b)) if plain else a


def _threads(value: Any) -> Any:
    """A whole number from 1, or ``auto``."""
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise PydanticCustomError("threads", "set it to a whole number from 1, or to auto")


def cpus(threads: Any) -> int:
    """The threads of a job of a sweep; 1 for ``auto`` and for invalid values."""
    return threads if type(threads) is int and threads >= 1 else 1


def _cores(threads: Any = 1) -> int:
    """The number of jobs with this many threads on the usable cores, at least 1."""
    from joblib import cpu_count  # type: ignore[import-untyped]

    return max(1, int(cpu_count()) // cpus(threads))


@closed
class TrainConfig:
    """Optimisation (conf/train/)."""

    steps: PositiveInt
    length: PositiveInt | None
    batch_size: PositiveInt
    accumulate: PositiveInt
    optimizer: str
    optimizer_keys: dict[str, Any]
    """The other keys of ``train``: arguments of the optimizer's class."""
    lr: PositiveFloat
    warmup: NonNegativeInt
    schedule: Literal["constant", "linear", "cosine"]
    clip: PositiveFloat | None
    precision: Literal["float32", "bfloat16"]
    fast: bool
    stop_below: Annotated[float, Field(ge=0, le=1)] | None
    patience: PositiveInt
    checkpoint_every: PositiveInt
    log_every: PositiveInt
    from_run: Annotated[str, Field(min_length=1)] | None = None
    """``train.from``, which is no name in Python."""

    @model_validator(mode="after")
    def _fits(self) -> "TrainConfig":
        if self.accumulate > self.batch_size:
            raise ValueError(
                f"accumulate={self.accumulate} parts of batch_size={self.batch_size} would be "
                "empty: lower accumulate"
            )
        return self


@closed
class EvalConfig:
    """Evaluation (key ``eval`` of conf/config.yaml)."""

    every: PositiveInt
    sequences: PositiveInt
    quick_sequences: PositiveInt
    batch_tokens: PositiveInt
    skip_too_long: bool
    generate: bool


Seed = Annotated[int, Field(ge=0, lt=2**63)]


@closed
class Config:
    """The whole configuration of one run, checked. The open groups stay plain mappings."""

    task: dict[str, Any]
    pe: dict[str, Any]
    positions: dict[str, Any]
    model: dict[str, Any]
    train: TrainConfig
    eval: EvalConfig
    tracker: dict[str, Any]
    seed: Seed
    """Of batches, their order, dropout and positions."""
    seed_init: Seed | None = None
    """Of the weights; None: ``seed``."""
    runs_dir: Annotated[str, Field(min_length=1)]
    device: Literal["auto", "cpu", "cuda"]
    threads: Annotated[int | Literal["auto"], BeforeValidator(_threads)]
    deterministic: bool
    force: bool
    debug: bool
    names: dict[str, str] = field(default_factory=dict)
    """The chosen option of each group, as on the command line: task, pe, positions, ..."""


_CONFIG = TypeAdapter(Config)
CONFIG_KEYS = set(Config.__annotations__) - {"names"}
"""The keys of a run's configuration."""
TRAIN_KEYS = {*TrainConfig.__annotations__, "from"} - {"optimizer_keys", "from_run"}
"""The keys of ``train`` without the optimizer's arguments."""


def validated(resolved: dict[str, Any]) -> Config:
    """The resolved configuration, checked; raises pydantic's ValidationError."""
    train = resolved.get("train")
    if isinstance(train, dict):
        ours = {key: train[key] for key in TRAIN_KEYS & train.keys()}
        others = {key: value for key, value in train.items() if key not in TRAIN_KEYS}
        ours["from_run"] = ours.pop("from", None)
        resolved = {**resolved, "train": {**ours, "optimizer_keys": others}}
    return _CONFIG.validate_python(apart(resolved))


def plain(config: Config) -> dict[str, Any]:
    """The configuration as nested mappings, as resolved, types settled."""
    resolved: dict[str, Any] = _CONFIG.dump_python(config)
    train = resolved["train"]
    train |= train.pop("optimizer_keys")
    # Left out where it is null: runs from before this key keep their identity.
    if (origin := train.pop("from_run")) is not None:
        train["from"] = origin
    return together(resolved)
