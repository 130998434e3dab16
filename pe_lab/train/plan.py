"""Makes a plan from a configuration, and finds every error that can be found before any work."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pe_lab.config.schema import Config, to_dict
from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.rng import torch_seed
from pe_lab.core.task import TRAIN, Task
from pe_lab.core.validation import instantiate
from pe_lab.models.base import Model
from pe_lab.models.config import ModelConfig, Vocabulary
from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.functional import refuse_where
from pe_lab.pe.positions import Positions
from pe_lab.store.run_folder import RunFolder, is_run, match_runs
from pe_lab.store.run_id import drop_seed, identity
from pe_lab.train.batches import BATCHES_A_DRAW, check_memory
from pe_lab.train.encodings import (
    initial_encodings,
    reason_to_refuse,
    seed_of_weights,
    use_kernels,
)

RECORDED = re.compile(r"(.+/seed\d+-[0-9a-f]{8})@[0-9a-f]{8}")


def count_sequences(most: int, length: int, train_len: int) -> int:
    """Return how many sequences of a split to measure. Longer sequences are fewer, so that all
    splits read equally many tokens.

    Args:
        most: the number of sequences of the training length.
    """
    return max(1, most * min(length, train_len) // length)


@dataclass(frozen=True)
class Plan:
    """A checked run before its start. Nothing is written and no sequence is drawn yet.

    Args:
        encodings: the encoding of each layer, with its initial weights.
        splits: the splits to measure, in order, without those in ``too_long``.
        too_long: the splits that ``eval.skip_too_long`` leaves out, with the positions they need.
        null_values: the keys that are null and stand for a value, with that value.
        origin: the folder of the run of ``train.from``.
    """

    config: Config
    task: Task
    positions: Positions
    model_config: ModelConfig
    dims: Dims
    encodings: list[PositionalEncoding]
    splits: list[str]
    too_long: dict[str, int]
    null_values: dict[str, Any]
    origin: Path | None

    @cached_property
    def resolved(self) -> dict[str, Any]:
        """The configuration as it is recorded and hashed.

        It holds the ``null_values``, and ``eval.skip_too_long`` only where a split is skipped: the
        key changes nothing in another run.
        """
        values = self.null_values | {"eval.skip_too_long": bool(self.too_long)}
        return replace_keys(to_dict(self.config), values)

    def sequences(self, split: str, most: int) -> int:
        """Return how many sequences of a split to measure, see ``count_sequences``."""
        return count_sequences(most, self.task.split(split).n_tokens, self.dims.train_len)

    def model(self) -> Model:
        """Return the model with its initial weights."""
        words, separator = self.task.vocab, self.task.separator
        place = None if separator is None else words.index(separator)
        vocabulary = Vocabulary(len(words), place)
        # A copy: another model of this plan begins with the same weights.
        encodings = deepcopy(self.encodings)
        with torch.random.fork_rng():
            torch.manual_seed(torch_seed(seed_of_weights(self.config), "weights"))
            model = self.model_config.build(vocabulary, encodings)
        if self.config.train.fast:
            use_kernels(model)
        return model


def make_plan(config: Config) -> Plan:
    """Check everything that can be checked without training.

    Raises:
        UsageError: the settings do not fit one another or this machine.
    """
    config, origin = resolve_origin(config)
    task = build_task(config.task)
    model_config = instantiate(config.model, "model", ModelConfig)
    lengths = {name: task.split(name).n_tokens for name in (TRAIN, *task.evaluated())}
    with usage_errors("positions: "):
        positions = instantiate(config.positions, "positions", Positions).bind(task)
        limits = {n: positions.limit_for(task.split(n), training=n == TRAIN) for n in lengths}
    dims = model_config.dims(len(task.vocab), lengths[TRAIN], max(limits.values()))
    from_file, most = task.contents().keys(), config.eval.sequences
    counts = {name: count_sequences(most, n, dims.train_len) for name, n in lengths.items()}
    counts[TRAIN] = task.train_sequences or BATCHES_A_DRAW * config.train.batch_size
    sets = [(lengths[n], 1 if {n, "text"} & from_file else counts[n]) for n in lengths]
    sizes = "model.*, the lengths of task.*, train.batch_size or eval.sequences"
    check_memory(
        "the run", sets, dims.d_model, f"lower the sizes of {sizes}", 16 * model_config.weights()
    )
    if reason := model_config.refuses_task(task):
        raise UsageError(f"task={config.names.get('task')} {reason}")
    encodings = initial_encodings(config, dims, model_config)
    for encoding in encodings:
        if reason := reason_to_refuse(model_config, encoding, positions):
            raise UsageError(f"pe={config.names.get('pe')} {reason}")
    too_long = find_too_long(config, limits, encodings)
    check_keys(config, task, encodings)
    return Plan(
        config, task, positions, model_config, dims, encodings,
        splits=[name for name in task.evaluated() if name not in too_long],
        too_long=too_long,
        null_values=find_null_values(
            to_dict(config), {"model": [model_config], "positions": [positions], "pe": encodings}
        ),
        origin=origin,
    )  # fmt: skip


def resolve_origin(config: Config) -> tuple[Config, Path | None]:
    """Return the configuration with ``train.from``, the finished run whose weights a run begins
    with, as it is recorded, and the folder of that run.

    Recorded is ``flipflop/rope/seed0-0123abcd@89abcdef``: the run, and the identity that it shares
    with its other seeds.

    Raises:
        UsageError: it names no finished run, or several.
    """
    name = config.train.from_run
    if name is None:
        return config, None
    if recorded := RECORDED.fullmatch(name):
        return config, Path(config.runs_dir) / recorded[1]
    given = Path(name)
    by_path = given.is_dir() and is_run(given)
    paths = [given] if by_path else match_runs(name, Path(config.runs_dir))
    summaries = {path: RunFolder(path).summary() for path in paths if ".replaced-" not in path.name}
    finished = {path: summary for path, summary in summaries.items() if summary}
    # The same command names the same run when the run that it made has that name too.
    names = {"/".join(path.parts[-3:]) for path in finished}
    oldest = [
        path
        for path, summary in finished.items()
        if str(summary["config"]["train"].get("from")).partition("@")[0] not in names
    ]
    if len(oldest) != 1:
        listed = ", ".join("/".join(path.parts[-3:]) for path in paths[:6]) or "none"
        raise UsageError(
            f"train.from={name} names {len(oldest)} finished runs below runs_dir="
            f"{config.runs_dir} ({listed}): give one, pe-lab runs lists them"
        )
    summary = finished[oldest[0]]
    shared = identity(drop_seed(summary["config"]), summary.get("contents"))
    folder = f"{summary['task']}/{summary['pe']}/seed{summary['seed']}-{summary['identity']}"
    train = replace(config.train, from_run=f"{folder}@{shared}")  # type: ignore[type-var]
    return replace(config, train=train), oldest[0]  # type: ignore[type-var]


@contextmanager
def usage_errors(prefix: str = "") -> Iterator[None]:
    """Turns a ValueError of its block into a UsageError."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{prefix}{error}") from None


def build_task(section: Mapping[str, Any]) -> Task:
    """Return the task. Its splits and files are checked, too."""
    task = instantiate(section, "task", Task)
    for name in task.splits:
        with usage_errors(f"task.splits.{name}: "):
            vocab = task.split(name).vocab
        if vocab != task.vocab:
            raise UsageError(
                f"task.splits.{name} changes the vocabulary, which one model cannot follow: change "
                "these keys for the whole task"
            )
    with usage_errors():
        task.contents()
    return task


def check_keys(config: Config, task: Task, encodings: list[PositionalEncoding]) -> None:
    """Refuses a length that the task does not follow, answers that cannot be generated, and a GPU
    that is not there."""
    length, n_tokens = config.train.length, task.split(TRAIN).n_tokens
    refuse_where(
        (
            length not in (None, n_tokens),
            f"train.length={length} does not set the length of this task, whose training "
            f"sequences have {n_tokens} tokens: leave it null, and set task.*",
        ),
        (
            config.eval.generate and not task.generates,
            "eval.generate=true is not possible, this task's answers are not one run at the end: "
            "set it to false",
        ),
        (
            config.eval.generate and any(encoding.whole_sequence for encoding in encodings),
            "eval.generate=true is not possible, the encoding reads the length of the whole "
            "sequence: set it to false",
        ),
        (
            config.device == "cuda" and not torch.cuda.is_available(),
            "device=cuda is not allowed: there is no GPU here; set device=auto",
        ),
        error=UsageError,
    )


def find_too_long(
    config: Config, limits: Mapping[str, int], encodings: list[PositionalEncoding]
) -> dict[str, int]:
    """Return the splits with more positions than the encoding has. They are an error unless
    ``eval.skip_too_long`` is true."""
    shortest = min((e.max_len for e in encodings if e.max_len is not None), default=None)
    if shortest is None:
        return {}
    too_long = {name: limit for name, limit in limits.items() if limit > shortest}
    never = {TRAIN, IN_DOMAIN} & too_long.keys()
    if never or (too_long and not config.eval.skip_too_long):
        name, need = next(iter(too_long.items()))
        skip = "" if never else ", or set eval.skip_too_long=true to leave such splits out"
        raise UsageError(
            f"pe={config.names.get('pe')} has {shortest} positions, and {name} needs {need}: raise "
            f"the key of pe.* that limits it{skip}"
        )
    return too_long


def find_null_values(
    config: Mapping[str, Any], groups: Mapping[str, Iterable[Any]]
) -> dict[str, Any]:
    """Return the keys of a configuration that are null and stand for a value, with that value:
    ``pe.npos`` -> 65. A key that stands for different values in different layers is left out.

    Args:
        groups: the objects that were built from each group of the configuration.
    """
    values: dict[str, set[Any]] = {}
    for group, objects in groups.items():
        for key, value in (item for built in objects for item in built.null_values().items()):
            section, name = find_section(config, f"{group}.{key}")
            if value is not None and section.get(name, 0) is None:
                values.setdefault(f"{group}.{key}", set()).add(value)
    return {key: value for key, (value, *others) in values.items() if not others}


def replace_keys(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the configuration with these values of dotted keys."""
    changed: Any = deepcopy(dict(config))
    for key, value in values.items():
        section, name = find_section(changed, key)
        section[name] = value
    return dict(changed)


def find_section(config: Any, key: str) -> tuple[Any, str]:
    """Return the mapping that holds a dotted key, and its name there."""
    *path, name = key.split(".")
    for part in path:
        config = config[int(part)] if isinstance(config, list) else config[part]
    return config, name
