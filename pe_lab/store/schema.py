"""The files of a run: a schema for each that is read back, their digests, and how they are read.

A value of the wrong kind, a number out of range, deep nesting and an alias in yaml are one sentence
with the file and the remedy, whichever command reads the file. Digests (SHA-256) detect damage: a
flipped bit, a torn copy, an edited digit. They do not stop a forger, who can compute new ones.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NotRequired, TypeVar

import orjson
import yaml
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from pe_lab.core.errors import DamagedError, RunError, reason
from pe_lab.core.files import read_file
from pe_lab.core.metrics import GENERATED, METRICS, implausible

SEAL = b',\n "digest": "'
REMEDY = "put back a copy, or make the run again with force=true, which sets this folder aside"


def digest_of(content: bytes | memoryview) -> str:
    """64 hex digits."""
    return hashlib.sha256(content).hexdigest()


def does_not_fit(what: Path | str, digest: str = "digest", remedy: str = REMEDY) -> str:
    """The message for a file, or a part of it, that its digest does not fit."""
    return (
        f"{what} does not fit its {digest}, it was damaged or edited after it was written: {remedy}"
    )


def sealed(value: dict[str, Any]) -> str:
    """JSON, a key a line, closed by the ``digest`` of all before it."""
    body = json.dumps(value, indent=1, allow_nan=False).removesuffix("\n}")
    return f'{body}{SEAL.decode()}{digest_of(body.encode())}"\n}}\n'


def unsealed(content: bytes, path: Path) -> bytes:
    """The JSON that was ``sealed``, without its digest.

    Raises:
        DamagedError: the digest is that of something else, or is missing.
    """
    body, seal, end = content.rpartition(SEAL)
    if not seal or end != f'{digest_of(body)}"\n}}\n'.encode():
        raise DamagedError(does_not_fit(path))
    return body + b"\n}"


def sealed_lines(lines: bytes) -> bytes:
    """JSON lines, and a last line with their ``digest``."""
    return lines + _last_line(lines)


def unsealed_lines(content: bytes, path: Path, remedy: str) -> bytes:
    """The JSON lines that were ``sealed_lines``, without the last one.

    Raises:
        DamagedError: the last line is missing, or is the digest of other lines.
    """
    lines = content[: content.removesuffix(b"\n").rfind(b"\n") + 1]
    if lines + _last_line(lines) != content:
        raise DamagedError(does_not_fit(path, "digest in its last line", remedy))
    return lines


def _last_line(lines: bytes) -> bytes:
    return json.dumps({"digest": digest_of(lines)}).encode() + b"\n"


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
    as the summary has them, of a run that has none; ``lineage``: the runs whose weights it began
    with (``train.from``), the oldest first, with the digests of their checkpoints."""

    time: NotRequired[float]
    python: NotRequired[str]
    processor: NotRequired[str | None]
    versions: NotRequired[dict[str, str]]
    threads: NotRequired[Annotated[int, Field(ge=1)]]
    git_revision: NotRequired[str | None]
    code: NotRequired[dict[str, str]]
    contents: NotRequired[dict[str, str]]
    null_keys: NotRequired[list[str]]
    lineage: NotRequired[list[dict[str, str]]]


@with_config(STRICT)
class Tracked(TypedDict):
    """tracker.json: ``later`` are numbers that were measured once the run was finished."""

    tracker: str
    sweep: str | None
    overrides: list[str]
    complete: bool
    later: NotRequired[dict[str, float | str]]


@with_config(STRICT)
class Logged(TypedDict):
    """wandb/rows: the random part of the run's id in wandb, how many rows of metrics.jsonl were
    logged, and how many of them sent."""

    id: Annotated[str, Field(pattern="^[0-9a-f]{6}$")]
    logged: NotRequired[Whole]
    sent: Whole


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
TRACKED = TypeAdapter(Tracked)
STARTS = TypeAdapter(list[Start])
FACTS = TypeAdapter(Facts)
SETTING = TypeAdapter(Setting)
SUMMARY = TypeAdapter(with_config(STRICT)(Summary))
ROW = TypeAdapter(Annotated[dict[str, Number], AfterValidator(_row)], config=STRICT)
EVALUATION = TypeAdapter(Annotated[Evaluation, AfterValidator(_measured)])


T = TypeVar("T")


def checked(schema: TypeAdapter[T], value: Any, where: object, remedy: str = REMEDY) -> T:
    """The value, if it is as the schema says; DamagedError with the first key that is not."""
    try:
        return schema.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        found = "" if first["type"] in ("missing", "value_error") else f"={first['input']!r:.60}"
        said = f"{key}{found}: " if key else ""
        said += first["msg"].removeprefix("Value error, ")
        raise DamagedError(f"{where} is not as pe-lab writes it ({said}): {remedy}") from None


def read_json(
    schema: TypeAdapter[T], path: Path, remedy: str = REMEDY, *, seal: bool = False
) -> T | None:
    """A JSON file; None if it is missing, DamagedError if it is damaged.

    Args:
        seal: whether the file closes with its digest (``digests.sealed``).
    """
    try:
        content = read_file(path)
        value = orjson.loads(unsealed(content, path) if seal else content)
        return checked(schema, value, path, remedy)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error}): {remedy}") from None
    except ValueError as error:
        raise DamagedError(f"{path} cannot be read ({error}): {remedy}") from None


def read_config(path: Path) -> dict[str, Any] | None:
    """config.yaml; None if it is missing, DamagedError if it is damaged."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        content = read_file(path)
        depth = 0
        for event in yaml.parse(content, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > DEEPEST:
                raise ValueError(f"an alias, or nested more than {DEEPEST} deep")
        config = yaml.load(content, Loader=loader)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error}): {REMEDY}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise DamagedError(f"{path} cannot be read ({reason(error)}): {REMEDY}") from None
    checked(SETTING, {"config": config}, path)
    return dict(config)


def read_rows(
    schema: TypeAdapter[T], path: Path, remedy: str, content: bytes | None = None
) -> list[T]:
    """The rows of a file of JSON lines; a last line that was cut off is left out.

    Args:
        content: of the file, if it was read already.

    Raises:
        DamagedError: a line is not a row.
    """
    *whole, _torn = (read_file(path) if content is None else content).split(b"\n")
    rows = []
    for number, line in enumerate(whole, start=1):
        try:
            rows.append(checked(schema, orjson.loads(line), f"{path}: line {number}", remedy))
        except DamagedError:
            raise
        except ValueError as error:
            raise DamagedError(f"{path}: line {number} is no JSON ({error}): {remedy}") from error
    return rows
