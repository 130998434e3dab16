"""From a checked configuration to a plan: what can be known to be wrong before any work."""

import os
from dataclasses import dataclass
from typing import Any

import torch

from pe_lab.config import Config
from pe_lab.errors import UsageError
from pe_lab.model import Transformer
from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.none import NoPE
from pe_lab.positions import Positions
from pe_lab.schema import instantiate
from pe_lab.streams import torch_seed
from pe_lab.task import IN_DOMAIN, TRAIN, Task


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
            vocab_size, fast = self.dims.vocab_size, self.config.train.fast
            return Transformer(self.config.model, vocab_size, encodings, fast)


def plan(config: Config) -> Plan:
    """Everything that can be checked without training; UsageError says what is wrong."""
    task = build_task(config.task)
    positions: Positions = instantiate(config.positions, "positions", Positions)
    needed = {name: task.split(name).n_tokens for name in (TRAIN, *task.evaluated())}
    limits = dict.fromkeys(needed, 0)
    try:
        # The longest first: what is told is enough for all.
        for name in sorted(needed, key=lambda name: -needed[name]):
            limits[name] = positions.limit(needed[name], training=name == TRAIN)
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
    _check_memory(config, dims, needed)
    encodings = build_encodings(config.pe, dims)
    limited = {e.max_len: e for e in encodings if e.max_len is not None}
    longest = min(limited, default=None)
    too_long = {k: v for k, v in limits.items() if longest is not None and v > longest}
    never = {TRAIN, IN_DOMAIN} & too_long.keys()
    if never or (too_long and not config.eval.skip_too_long):
        assert longest is not None
        name, need = next(iter(too_long.items()))
        key, size = limited[longest].size_for(longest)
        remedy = f"raise pe.{key} to {limited[longest].size_for(max(too_long.values()))[1]}"
        if not never:
            remedy += " or set eval.skip_too_long=true to report such splits as not applicable"
        raise UsageError(f"pe.{key}={size} is too short: {name} needs {need} positions; {remedy}")
    if config.eval.generate and not task.generates:
        raise UsageError(
            "eval.generate=true is not allowed: this task's answers are not one run at the "
            "end of the sequence; set eval.generate=false"
        )
    whole = next((e.whole_sequence for e in encodings if e.whole_sequence), None)
    if config.eval.generate and whole is not None:
        raise UsageError(
            f"eval.generate=true is not allowed with pe.{whole}, which reads the length of the "
            "whole sequence, not known while it is written: set eval.generate=false or change "
            f"pe.{whole.partition('=')[0]}"
        )
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device=cuda is not allowed: there is no GPU here; set device=auto")
    splits = [name for name in task.evaluated() if name not in too_long]
    return Plan(config, task, positions, dims, splits, too_long)


def _check_memory(config: Config, dims: Dims, needed: dict[str, int]) -> None:
    """Refuse what no machine of this size can hold; no exact account."""
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    model = config.model
    weights = model.n_layers * (4 * model.d_model**2 + 2 * model.d_model * model.ff_width)
    # Weights, gradients and the optimiser's two moments; tokens and targets as int64.
    sizes = {f"model.d_model={model.d_model}": 16 * weights}
    for name, length in needed.items():
        sequences = config.train.batch_size if name == TRAIN else 1
        sizes[f"{name} with {length} tokens"] = 16 * sequences * length
    # A training batch draws among all of its positions.
    sizes[f"a range of {dims.max_len} positions (positions.max, the task's lengths)"] = (
        16 * config.train.batch_size * dims.max_len
    )
    for name, size in sizes.items():
        if size > here:
            raise UsageError(
                f"{name} is too large: it needs {size / 2**30:.3g} GiB, this machine has "
                f"{here / 2**30:.3g}; set a smaller size"
            )


def build_task(section: dict[str, Any]) -> Task:
    """The task, with every split's changed keys checked too."""
    task: Task = instantiate(section, "task", Task)
    for name, changes in task.splits.items():
        key = f"task.splits.{name}"
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
        return encoding.active and (layer == 0 or bool(encoding.hooks() - {"embed"}))

    made = [
        instantiate(section, "pe", PositionalEncoding, dims.at_layer(layer))
        for layer in range(dims.n_layers)
    ]
    serving = [layer for layer in range(dims.n_layers) if serves(made[layer], layer)]
    if not serving:
        return [NoPE(dims.at_layer(layer)) for layer in range(dims.n_layers)]
    first = made[serving[0]]
    if first.share_layers:
        made = [first] * dims.n_layers
    for layer in serving:
        for lower in serving[: serving.index(layer)]:
            if made[layer] is not made[lower]:
                made[layer].share(made[lower])
    return [
        made[layer] if layer in serving else NoPE(dims.at_layer(layer))
        for layer in range(dims.n_layers)
    ]
