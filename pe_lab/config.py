"""The keys of the closed groups: their types and limits. Their values stand in conf/.

The open groups (``task``, ``pe``, ``positions``) name their class in ``_target_``; the
signature of that class is their schema (see schema.py). This module does not import torch:
tab completion and every check of a command line go through it.
"""

import operator
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Annotated, Any, Literal

from omegaconf import OmegaConf
from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    model_validator,
)
from pydantic.dataclasses import dataclass

closed = dataclass(
    frozen=True, kw_only=True, config=ConfigDict(extra="forbid", allow_inf_nan=False)
)


def register_resolvers() -> None:
    """``${mul:a,b}`` and ``${add:a,b}``, for splits that are measured by the baseline;
    ``${cores:threads}``, for the jobs that this machine does at once.

    What is no number comes back as it is: the key it was taken from is refused by its own name.
    """
    for name, result in (("mul", operator.mul), ("add", operator.add)):
        OmegaConf.register_new_resolver(name, partial(_whole, result), replace=True)
    OmegaConf.register_new_resolver("cores", _cores, replace=True)


def _whole(result: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    plain = isinstance(a, (int, float)) and not isinstance(a, bool)
    return int(result(a, b)) if plain else a


def _cores(threads: int = 1) -> int:
    """How many times ``threads`` go into the cores that this process may use; at least 1."""
    from joblib import cpu_count  # type: ignore[import-untyped]

    return max(1, int(cpu_count()) // threads)


@closed
class ModelConfig:
    """The transformer (conf/model/)."""

    n_layers: PositiveInt
    n_heads: PositiveInt
    d_model: PositiveInt
    d_ff: PositiveInt | None
    dropout: Annotated[float, Field(ge=0, lt=1)]
    norm: Literal["layernorm", "rmsnorm"]
    norm_position: Literal["pre", "post"]
    activation: Literal["relu", "gelu", "swiglu"]
    tied_embeddings: bool

    @model_validator(mode="after")
    def _fits(self) -> "ModelConfig":
        if self.d_model % self.n_heads:
            raise ValueError(
                f"d_model={self.d_model} is not divisible by n_heads={self.n_heads}: "
                "choose a multiple"
            )
        return self

    @property
    def ff_width(self) -> int:
        """Width of the feed-forward layer: d_ff, or 4 d_model (8/3 d_model for SwiGLU)."""
        if self.d_ff is not None:
            return self.d_ff
        return round(8 * self.d_model / 3) if self.activation == "swiglu" else 4 * self.d_model


@closed
class TrainConfig:
    """Optimisation (conf/train/)."""

    steps: PositiveInt
    batch_size: PositiveInt
    accumulate: PositiveInt
    optimizer: Literal["adamw", "adam"]
    lr: PositiveFloat
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]
    weight_decay: NonNegativeFloat
    warmup: NonNegativeInt
    schedule: Literal["constant", "linear", "cosine"]
    clip: PositiveFloat | None
    precision: Literal["float32", "bfloat16"]
    fast: bool
    stop_below: Annotated[float, Field(ge=0, le=1)] | None
    patience: PositiveInt
    checkpoint_every: PositiveInt
    log_every: PositiveInt

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
    """Measuring (key ``eval`` of conf/config.yaml)."""

    every: PositiveInt
    sequences: PositiveInt
    quick_sequences: PositiveInt
    batch_tokens: PositiveInt
    skip_too_long: bool
    generate: bool


@closed
class WandbConfig:
    """wandb (conf/tracker/)."""

    mode: Literal["online", "offline", "disabled"]
    project: str
    entity: str | None
    tags: list[str]
    pictures: bool
    init_timeout: PositiveFloat


@closed
class TrackerConfig:
    """Where a run is recorded besides its own folder (conf/tracker/)."""

    wandb: WandbConfig


@closed
class Config:
    """The whole configuration of one run, checked. The open groups stay plain mappings."""

    task: dict[str, Any]
    pe: dict[str, Any]
    positions: dict[str, Any]
    model: ModelConfig
    train: TrainConfig
    eval: EvalConfig
    tracker: TrackerConfig
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    runs_dir: Annotated[str, Field(min_length=1)]
    device: Literal["auto", "cpu", "cuda"]
    threads: PositiveInt
    deterministic: bool
    force: bool
    debug: bool
    names: dict[str, str] = field(default_factory=dict)
    """The chosen option of each group, as on the command line: task, pe, positions, ..."""


_CONFIG = TypeAdapter(Config)


def validated(resolved: dict[str, Any]) -> Config:
    """The resolved configuration, checked; raises pydantic's ValidationError."""
    return _CONFIG.validate_python(resolved)


def plain(config: Config) -> dict[str, Any]:
    """The configuration as nested mappings, as resolved, types settled."""
    resolved: dict[str, Any] = _CONFIG.dump_python(config)
    return resolved
