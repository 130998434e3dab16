"""Tasks from their yamls, without the program around them."""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from pe_lab.core.task import Batch, Task

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture(scope="session")
def load() -> Callable[..., Any]:
    """``load("flipflop", length=32)``: the task of conf/task/flipflop.yaml, keys changed."""

    def load(name: str, recipe: str | None = None, **changes: Any) -> Task:
        yaml = OmegaConf.load(CONF / "task" / f"{name}.yaml")
        config = OmegaConf.create({"task": yaml, "train": {"length": 32}})
        if recipe is not None:
            overrides = OmegaConf.load(CONF / "experiment" / "paper" / f"{recipe}.yaml")
            config = OmegaConf.merge(config, {"task": overrides.task})
        config = OmegaConf.merge(config, {"task": changes})
        keys = OmegaConf.to_container(config, resolve=True)["task"]
        module, cls = keys.pop("_target_").rsplit(".", 1)
        return getattr(import_module(module), cls)(**keys)

    return load


@pytest.fixture(scope="session")
def sentences() -> Callable[[Task, Batch], Iterator[tuple[list[str], list[int], list[str]]]]:
    """Per row the whole sequence as words, the scored positions, and the answers there."""

    def sentences(task: Task, batch: Batch) -> Iterator[tuple[list[str], list[int], list[str]]]:
        assert batch.tokens.dtype == batch.targets.dtype == np.int64
        assert batch.tokens.shape == batch.targets.shape == batch.scored.shape
        assert batch.tokens.shape[1] <= task.n_tokens
        assert not (batch.scored & ~batch.real()).any()
        np.testing.assert_array_equal(
            batch.tokens[:, 1:][batch.real()[:, 1:]], batch.targets[:, :-1][batch.real()[:, 1:]]
        )
        if batch.lengths is not None:
            assert (batch.tokens[~batch.real()] == task.vocab.index("<pad>")).all()
            assert (batch.targets[~batch.real()] == task.vocab.index("<pad>")).all()
        lengths = batch.real().sum(axis=1)
        for row, length in enumerate(lengths):
            numbers = [batch.tokens[row, 0], *batch.targets[row, :length]]
            scored = [int(t) for t in np.flatnonzero(batch.scored[row])]
            words = [task.vocab[i] for i in numbers]
            yield words, scored, [task.vocab[batch.targets[row, t]] for t in scored]

    return sentences


@pytest.fixture(scope="session")
def assert_share() -> Callable[..., None]:
    """That k of n events agree with probability p, within 4.5 standard deviations; k may be the
    numbers of several kinds of event."""

    def assert_share(k: Any, n: int, p: float) -> None:
        limit = 4.5 * (n * p * (1 - p)) ** 0.5 + 1e-9
        assert len(np.ravel(k)) > 0
        assert (np.abs(np.asarray(k) - n * p) <= limit).all(), (k, n, p)

    return assert_share
