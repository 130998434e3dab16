"""The keys of a configuration, with types and limits. Their values are in conf/.

A closed group has a dataclass here. An open group (``task``, ``pe``, ``positions``, ``model``,
``tracker``) names a class in ``_target_``, whose signature is its schema.

``seed`` is one number, or ``{init: .., data: ..}``. ``seed.init`` draws the weights; ``seed.data``
draws the batches, their order, dropout and positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from hydra.utils import get_object
from omegaconf import OmegaConf, __version__
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PlainSerializer,
    PlainValidator,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from pe_lab.core.errors import UsageError
from pe_lab.core.validation import Section, as_yaml, check_section, closed, problem, to_json

OPEN = {
    "task": ("pe_lab.core.task.Task", 0),
    "pe": ("pe_lab.pe.base.PositionalEncoding", 1),
    "positions": ("pe_lab.pe.positions.Positions", 0),
    "model": ("pe_lab.models.config.ModelConfig", 0),
    "tracker": ("pe_lab.core.tracker.Tracker", 0),
}
"""Open group -> what its class derives from, and the number of first arguments it is made with."""


def _check_open(section: Any, info: ValidationInfo) -> Section:
    key = str(info.field_name)
    if isinstance(section, Section):
        return section
    if not isinstance(section, Mapping):
        raise UsageError(f"{key}={as_yaml(section)} is not a mapping: give {key}=NAME")
    base, leading = get_object(OPEN[key][0]), OPEN[key][1]
    checked = check_section(section, key, base, leading)
    for name, changes in checked.get("splits", {}).items() if key == "task" else ():
        whole = check_section({**section, **changes, "splits": {}}, f"task.splits.{name}", base)
        changes |= {k: whole[k] for k in changes}
    for number, part in enumerate(checked.get("parts", ()) if key == "pe" else ()):
        outer = {k: part[k] for k in ("pe", "layers") if k in part}
        inner = {k: v for k, v in part.items() if k not in outer}
        part |= check_section(inner, f"pe.parts.{number}", base, leading)
    return checked


Open = Annotated[dict[str, Any], PlainValidator(_check_open), PlainSerializer(dict)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Name = Annotated[str, Field(min_length=1)]


@closed
class TrainConfig:
    """Optimisation (conf/train/)."""

    steps: PositiveInt
    length: PositiveInt | None
    batch_size: PositiveInt
    accumulate: PositiveInt
    optimizer: Literal["adamw", "adam"]
    betas: tuple[Beta, Beta]
    weight_decay: NonNegativeFloat
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
    from_run: Name | None = None
    """``train.from``, which is no name in Python."""

    @model_validator(mode="after")
    def _fits(self) -> "TrainConfig":
        if self.accumulate > self.batch_size:
            raise ValueError(f"accumulate={self.accumulate} is above batch_size={self.batch_size}")
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


@closed
class Config:
    """The whole configuration of one run, checked.

    Args:
        seed: of batches, their order, dropout and positions.
        seed_init: of the weights; None: ``seed``.
        names: the chosen option of each group, as on the command line: task, pe, positions, ...
    """

    task: Open
    pe: Open
    positions: Open
    model: Open
    train: TrainConfig
    eval: EvalConfig
    tracker: Open
    seed: Seed
    seed_init: Seed | None = None
    runs_dir: Name
    device: Literal["auto", "cpu", "cuda"]
    threads: PositiveInt | Literal["auto"]
    deterministic: bool
    keep_checkpoint: bool = True
    force: bool
    debug: bool
    names: dict[str, str] = field(default_factory=dict)


_CONFIG = TypeAdapter(Config)
CONFIG_KEYS = set(Config.__annotations__) - {"names", "seed_init"}
"""The keys of a run's configuration."""
TRAIN_KEYS = {*TrainConfig.__annotations__, "from"} - {"from_run"}
"""The keys of ``train``."""
_KEYS = [
    *CONFIG_KEYS, *(f"train.{key}" for key in TRAIN_KEYS),
    *(f"eval.{key}" for key in EvalConfig.__annotations__),
]  # fmt: skip


def check(resolved: Mapping[str, Any], names: Mapping[str, str]) -> Config:
    """The resolved configuration as a ``Config``.

    Args:
        names: the chosen option of each group.

    Raises:
        UsageError: an unknown or missing key, a value out of its limits or of another type.
    """
    values = {**split_seed(resolved), "names": dict(names)}
    if isinstance(train := values.get("train"), dict):
        values["train"] = {"from_run" if k == "from" else k: v for k, v in train.items()}
    try:
        return _CONFIG.validate_json(to_json(values), strict=True)
    except ValidationError as error:
        message = problem(error, values, known=_KEYS).replace("from_run=", "from=")
        raise UsageError(message.replace("seed_init=", "seed.init=")) from None


def to_dict(config: Config) -> dict[str, Any]:
    """The configuration as nested mappings, as resolved."""
    resolved: dict[str, Any] = _CONFIG.dump_python(config, mode="json")
    # Left out where it is null: runs from before this key keep their identity.
    if (origin := resolved["train"].pop("from_run")) is not None:
        resolved["train"]["from"] = origin
    if (init := resolved.pop("seed_init")) is not None:
        resolved["seed"] = {"init": init, "data": resolved["seed"]}
    return resolved


def split_seed(section: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with ``seed`` of the data and ``seed_init``; None if both are the same."""
    seed = section.get("seed")
    if not isinstance(seed, Mapping):
        return dict(section)
    if set(seed) != {"init", "data"}:
        raise UsageError(f"seed has the keys {', '.join(seed)}: give seed.init and seed.data")
    same = seed["init"] == seed["data"] and not isinstance(seed["init"], bool)
    return {**section, "seed": seed["data"], "seed_init": None if same else seed["init"]}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def cpus(threads: Any) -> int:
    """The threads of a job of a sweep; 1 for ``auto`` and for invalid values."""
    return threads if type(threads) is int and threads >= 1 else 1


def _cores(threads: Any = 1) -> int:
    """The number of jobs with this many threads on the usable cores, at least 1."""
    from joblib import cpu_count  # type: ignore[import-untyped]

    return max(1, int(cpu_count()) // cpus(threads))


RESOLVERS: dict[str, Callable[..., Any]] = {
    "mul": lambda a, b: int(a * b) if _is_number(a) else a,
    "add": lambda a, b: int(a + b) if _is_number(a) else a,
    "cores": _cores,
    "cpus": cpus,
    "split": lambda words: [word for word in words.split(",") if word],
}
"""Functions of the yamls: ``${mul:a,b}`` and ``${add:a,b}`` for splits relative to the task's
values, ``${cores:threads}`` for the simultaneous jobs of this machine, ``${cpus:threads}`` for the
CPUs of a job, ``${split:a,b}`` for the list of some words. A value that is not a number is left for
the check of its key to refuse."""
# OmegaConf 2.3 has another function of the name that 2.4 chose.
_register = "register_new_resolver" if __version__.startswith("2.3.") else "register_resolver"
for _name, _function in RESOLVERS.items():
    getattr(OmegaConf, _register)(_name, _function, replace=True)
