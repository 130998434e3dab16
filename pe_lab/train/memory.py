"""Limited memory: absurd sizes are refused, batches that do not fit are halved."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import torch

from pe_lab.config.schema import Config
from pe_lab.core.config_dir import classes
from pe_lab.core.errors import UsageError, is_out_of_memory
from pe_lab.core.instantiate import instantiate
from pe_lab.core.task import TRAIN, Task
from pe_lab.models.config import ModelConfig
from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.train.optimizer import state_per_weight

T = TypeVar("T")

BYTES_PER_TOKEN = 96
"""Of the evaluated sequences: tokens, targets, masks and what the task needs to draw them."""
HIDDEN_BYTES = 12
"""Lower bound per token and unit of width for any model: three hidden states."""


def min_bytes(length: int, sequences: int, d_model: int) -> int:
    """A lower bound on the memory of an evaluation: the sequences, and hidden states of one."""
    return length * (BYTES_PER_TOKEN * sequences + HIDDEN_BYTES * d_model)


def machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def refuse_beyond(what: str, needed: int, remedy: str) -> None:
    """UsageError if ``needed`` bytes are more than the machine has."""
    available = machine_memory()
    if needed > available:
        raise UsageError(
            f"{what}: at least {needed / 2**30:.3g} GiB are needed, this machine has "
            f"{available / 2**30:.3g}; {remedy}"
        )


class DoesNotFit(Exception):  # noqa: N818
    """Memory ran out with a single sequence."""


def halve_until_it_fits(run: Callable[[int], T], rows: int) -> tuple[T, int]:
    """The result of ``run(rows)``, with ``rows`` halved each time memory runs out, and the rows.

    Raises:
        DoesNotFit: memory runs out with one row.
    """
    while True:
        try:
            return run(rows), rows
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside of the handler, whose traceback holds on to tensors.
        if rows == 1:
            raise DoesNotFit
        rows //= 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


PER_TOKEN = 16
"""Bytes of a token and its target, int64 each."""
TABLES = 2
"""More than all tables and matrices of an encoding, counted in those of its two largest sizes."""


def sequences_of(most: int, length: int, train_len: int) -> int:
    """How many sequences of a split to measure, where ``most`` of the training length are: fewer of
    longer ones, so that all splits read equally many tokens."""
    return max(1, most * min(length, train_len) // length)


def check_sizes(
    config: Config, task: Task, model_config: ModelConfig, dims: Dims, needed: dict[str, int]
) -> None:
    """Refuse sizes whose lower bounds exceed this machine's memory.

    Args:
        needed: split -> tokens of its sequences.
    """
    # Per weight in float32: itself, its gradient, the optimizer's state.
    per_weight = 4 * (2 + state_per_weight(config.train))
    weights, name = model_config.weights(), config.names.get("model", "")
    what = f"model={name} of about {weights:.2g} weights is too large"
    refuse_beyond(what, per_weight * weights, "set a smaller size")
    for what, size in _sequences(config, task, dims, needed):
        refuse_beyond(f"{what} is too large", size, "set a smaller size")
    if not may_be_large(config.pe, dims, machine_memory() / per_weight):
        return
    numbers, name = encoding_numbers(config.pe, dims), config.names.get("pe", "")
    large = {k: v for k, v in config.pe.items() if isinstance(v, int) and v > 1000}
    sizes = [f"pe.{key}={value}" for key, value in large.items()]
    what = f"{', '.join([f'pe={name}', *sizes])}: {numbers:.2g} numbers in tables is too large"
    refuse_beyond(what, per_weight * numbers, "set smaller pe.* sizes")


def _sequences(
    config: Config, task: Task, dims: Dims, needed: dict[str, int]
) -> Iterator[tuple[str, int]]:
    """The sequences that are held in memory, with their bytes."""
    for name, length in needed.items():
        tokens, most = f"with {length} tokens", config.eval.sequences
        if name == TRAIN:
            batch = config.train.batch_size
            yield f"{name} {tokens} (train.batch_size={batch})", PER_TOKEN * batch * length
            if task.train_sequences is not None:
                held = PER_TOKEN * task.train_sequences * length
                yield f"task.train_sequences={task.train_sequences} {tokens}", held
        elif not task.contents():  # a file may hold fewer
            held = PER_TOKEN * sequences_of(most, length, dims.train_len) * length
            yield f"{name} {tokens} (eval.sequences={most})", held
    # A training batch draws among all of its positions.
    drawn = PER_TOKEN * config.train.batch_size * dims.max_len
    yield f"a range of {dims.max_len} positions (positions.max, the task's lengths)", drawn


def may_be_large(section: dict[str, Any], dims: Dims, numbers: float) -> bool:
    """Whether the encoding may have so many ``numbers``: by a bound for pe_lab's own, always for
    others.

    Cheap: ``encoding_numbers`` uses the meta device, for which PyTorch imports its compiler.
    """
    if not all(name.startswith("pe_lab.") for name in classes(section)):
        return True
    largest = max(_integers(section), default=0)
    layers = (dims.at_layer(layer) for layer in range(dims.n_layers))
    return sum(numbers_bound(layer, largest) for layer in layers) >= numbers


def numbers_bound(dims: Dims, largest: int) -> int:
    """A bound on the numbers of one of pe_lab's encodings in a layer.

    Args:
        largest: the largest integer of its section.
    """
    sides = (dims.d_model, dims.heads_width, dims.max_len)
    first, second = sorted((*sides, *sides, dims.vocab_size, largest))[-2:]
    return TABLES * first * second * dims.n_heads


def _integers(value: Any) -> Iterator[int]:
    """The sizes of the integers in a section, those of lists and of nested sections too."""
    if isinstance(value, int):
        yield abs(value)
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _integers(inner)


def encoding_numbers(section: dict[str, Any], dims: Dims) -> int:
    """Parameters and buffers of the encoding in all layers, of those that share some of them in one
    layer; 0 where that cannot be counted."""
    numbers = 0
    with suppress(UsageError), torch.device("meta"):
        for layer in range(dims.n_layers):
            made = instantiate(section, "pe", PositionalEncoding, dims.at_layer(layer))
            numbers += sum(tensor.numel() for tensor in (*made.parameters(), *made.buffers()))
            shares = made.share_layers or type(made).share is not PositionalEncoding.share
            if shares or made.hooks() <= {"embed"}:
                break
    return numbers
