"""What the files of a run hold: a schema for every file that is read back."""

from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from pe_lab.core.metrics import GENERATED, METRICS, implausible

DEEPEST = 32
"""How many mappings and lists a configuration may hold within one another."""

STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")
Whole = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
Number = int | float | None
MEASURED = ("k", "seconds", *(metric.name for metric in METRICS), *GENERATED)
"""The numbers of a row of evaluations.jsonl."""


def _plausible(metrics: dict[str, Number]) -> dict[str, Number]:
    if wrong := implausible(metrics):
        raise ValueError(wrong)
    return metrics


def _row(row: dict[str, Number]) -> dict[str, Number]:
    if type(row.get("step")) is not int:
        raise ValueError("it has no step")
    return _plausible(row)


def _shallow(config: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [config]
    for _ in range(DEEPEST):
        level = [part for value in level for part in _parts(value)]
    if level:
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    return config


def _parts(value: Any) -> Iterator[Any]:
    parts = value.values() if isinstance(value, dict) else value
    return (part for part in parts if isinstance(part, (dict, list)))


Metrics = Annotated[dict[str, Number], AfterValidator(_plausible)]


@with_config(STRICT)
class Status(TypedDict):
    """status.json; ``run``: the identity; ``by_machine``: it failed for want of room or memory, not
    by its numbers."""

    run: str
    state: Literal["running", "interrupted", "failed", "finished"]
    step: Whole
    steps: Whole
    error: NotRequired[str | None]
    by_machine: NotRequired[bool]
    pid: NotRequired[int]
    host: NotRequired[str]
    time: NotRequired[float]


@with_config(STRICT)
class Start(TypedDict):
    """An entry of environment.json; ``time``: when the start was, in seconds since 1970;
    ``processor``: its model name, None where not known, absent in earlier versions; ``code``: class
    outside of pe_lab -> the start of the SHA-256 of its file; ``contents`` and ``null_keys``:
    as the summary has them, of a run that has none."""

    time: NotRequired[float]
    python: NotRequired[str]
    processor: NotRequired[str | None]
    versions: NotRequired[dict[str, str]]
    threads: NotRequired[Annotated[int, Field(ge=1)]]
    git_revision: NotRequired[str | None]
    code: NotRequired[dict[str, str]]
    contents: NotRequired[dict[str, str]]
    null_keys: NotRequired[list[str]]


@with_config(STRICT)
class Tracked(TypedDict):
    """tracker.json."""

    tracker: str
    sweep: str | None
    overrides: list[str]
    complete: bool


@with_config(STRICT)
class Logged(TypedDict):
    """wandb/rows: how many rows of metrics.jsonl were logged, and how many of them sent."""

    logged: NotRequired[Whole]
    sent: NotRequired[Whole]


@with_config(STRICT)
class Train(TypedDict):
    """The keys of ``train`` that tables are made with."""

    steps: Whole
    stop_below: float | None


@with_config(STRICT)
class Seeds(TypedDict):
    """The seed of the weights and that of all else, where they differ."""

    init: Whole
    data: Whole


@with_config(STRICT)
class Config(TypedDict):
    """A resolved configuration."""

    task: dict[str, Any]
    pe: dict[str, Any]
    model: dict[str, Any]
    train: Train
    seed: Whole | Seeds


@with_config(STRICT)
class Setting(TypedDict):
    """What seeds have in common: of summary.json, and of config.yaml as ``config``."""

    config: Annotated[Config, AfterValidator(_shallow)]
    null_keys: NotRequired[list[str]]
    contents: NotRequired[dict[str, str]]


@with_config(STRICT)
class Facts(TypedDict):
    """The keys of summary.json before ``by``."""

    task: str
    pe: str
    seed: Whole
    run_id: str
    identity: str
    digests: dict[str, str]
    steps: Whole
    names: dict[str, str]
    overrides: NotRequired[list[str]]
    splits: dict[str, str | None]
    too_long: NotRequired[dict[str, Whole]]
    metrics: Metrics


@with_config(STRICT)
class Answers(TypedDict):
    """The answers with one property, such as a length."""

    error: Share
    loss: NotRequired[float | None]
    n: Whole


class Summary(Facts, Setting):
    """summary.json."""

    by: dict[str, dict[str, dict[str, Answers]]]


@with_config(STRICT)
class Evaluation(TypedDict):
    """The keys of a row of evaluations.jsonl that identify it; ``run``: the run's identity."""

    run: str
    trained: bool
    pe: Annotated[dict[str, Any], AfterValidator(_shallow)]
    max_len: Whole
    split: str
    tokens: Whole
    sequences: Whole
    encoding: str
    generated: NotRequired[bool]


def _measured(row: Evaluation) -> Evaluation:
    numbers: dict[str, Any] = {name: row.get(name) for name in MEASURED}
    for name, value in numbers.items():
        if type(value) not in (int, float, NoneType):
            raise ValueError(f"{name}={value!r:.60} is not a number")
    _plausible(numbers)
    return row


STATUS = TypeAdapter(Status)
LOGGED = TypeAdapter(Logged)
WANDB_ID = TypeAdapter(Annotated[str, Field(pattern="^[0-9a-f]{6}$")])
"""wandb/id: the random part of the run's id."""
TRACKED = TypeAdapter(Tracked)
STARTS = TypeAdapter(list[Start])
FACTS = TypeAdapter(Facts)
SETTING = TypeAdapter(Setting)
SUMMARY = TypeAdapter(with_config(STRICT)(Summary))
ROW = TypeAdapter(Annotated[dict[str, Number], AfterValidator(_row)], config=STRICT)
EVALUATION = TypeAdapter(Annotated[Evaluation, AfterValidator(_measured)])
