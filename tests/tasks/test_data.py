"""What holds for every task of conf/task: its data are the same everywhere, in any order."""

import hashlib
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pe_lab.core.rng import generator
from pe_lab.core.task import Task, shown
from pe_lab.evaluation.contract.outcome import NotClaimedError
from pe_lab.evaluation.contract.suite import OF_A_TASK
from pe_lab.training.batches import TrainData

ROOT = Path(__file__).parents[2]
TASKS = sorted(path.stem for path in (ROOT / "conf" / "task").glob("*.yaml"))

# Of four sequences drawn with generator(0, "golden"): a change of any is a change of every
# published number, on purpose or not at all.
GOLDEN = {
    "brackets": "0561ef6e91236b74",
    "brackets_sentence": "945527ce8b7cf1fe",
    "counting": "92221c5d57fdae77",
    "copy": "9ae8175ec4744120",
    "cycle": "2570fd832a64a066",
    "even_pairs": "a68ff301359b57ad",
    "flipflop": "dfbbad5b65ea2f07",
    "group_word": "87788b001d61cd9c",
    "missing_duplicate": "77dd29ca06feced5",
    "modular": "b10c6fd842c56b4e",
    "navigation": "c76cdc5d91637785",
    "recall": "c7a9c525fe4b620e",
    "recall_reassigned": "dcc01aefa41fa3c5",
    "reverse": "cd49890911107da9",
    "selective_copy": "754d45229ddd8365",
}


def digest(batch):
    parts = [batch.tokens, batch.targets, batch.scored]
    return hashlib.sha256(
        b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
    ).hexdigest()[:16]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(load, name):
    assert digest(load(name).sample(generator(0, "golden"), 4)) == GOLDEN[name]


def test_a_fresh_process_draws_the_same(load):
    code = (
        "from pe_lab.training.batches import TrainData\n"
        "from pe_lab.tasks.brackets import Brackets\n"
        "task = Brackets(splits={}, mode='close', k=2, m=3, length=84, max_gap=15, "
        "beyond_gap=None, n_back=None)\n"
        "print(TrainData(task, 3, 8).batch(17).tokens.sum(axis=1).tolist())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    here = TrainData(load("brackets"), 3, 8).batch(17).tokens
    assert run.stdout.strip() == str(here.sum(axis=1).tolist())


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("check", list(OF_A_TASK.values())[:-1], ids=list(OF_A_TASK)[:-1])
def test_what_pe_lab_check_holds(load, name, check):
    """All but what drawing takes, which the machine's other work would change."""
    with suppress(NotClaimedError):
        check(load(name))


@pytest.mark.parametrize("name", TASKS)
def test_every_split_has_the_vocabulary_and_fits_its_length(load, name):
    task = load(name)
    for split_name in task.evaluated():
        split = task.split(split_name)
        batch = split.sample(generator(0), 64)
        assert split.vocab == task.vocab
        assert batch.tokens.shape[1] <= split.n_tokens
        assert max(batch.tokens.max(), batch.targets.max()) < len(task.vocab)
        assert batch.scored.any()
        assert batch.take(np.array([5, 2])).tokens.shape == (2, batch.tokens.shape[1])


@pytest.mark.parametrize("name", TASKS)
def test_at_length(load, name):
    """Of every split, at other lengths than its task has; at that length the same rule."""
    whole = load(name)
    for split_name in whole.evaluated():
        split = whole.split(split_name)
        same = split.at_length(split.n_tokens)
        assert same.n_tokens == split.n_tokens
        assert digest(same.sample(generator(1), 4)) == digest(split.sample(generator(1), 4))
        for length in (split.n_tokens + 1, 2 * split.n_tokens):
            task = split.at_length(length)
            assert task.vocab == whole.vocab
            assert length - 4 < task.n_tokens <= length
            assert task.sample(generator(1), 4).tokens.shape[1] <= task.n_tokens


@pytest.mark.parametrize(
    ("name", "least"),
    [("brackets", 4), ("copy", 2), ("counting", 6), ("flipflop", 3), ("selective_copy", 2)],
)
def test_a_length_that_is_too_short(load, name, least):
    load(name).at_length(least)
    with pytest.raises(ValueError, match=rf"length of {least - 1} is too short .*least {least}"):
        load(name).at_length(least - 1)


def test_no_other_length():
    """A task that does not say how it is made longer."""
    task = Fixed(splits={})
    assert task.at_length(3).n_tokens == 3
    with pytest.raises(ValueError, match=r"a length of 4 .* sequences of 3 tokens only"):
        task.at_length(4)


@dataclass(frozen=True, kw_only=True)
class Fixed(Task):
    vocab = ("a",)
    n_tokens = 3

    def sample(self, rng, n):
        raise NotImplementedError


def test_a_long_vocabulary_is_cut_in_messages():
    few, many = [str(n) for n in range(40)], [str(n) for n in range(41)]
    assert shown(few) == " ".join(few)
    assert shown(many) == f"{' '.join(few)} .. (41 words)"
