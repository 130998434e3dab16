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
from pe_lab.evaluation.contract.base import NotClaimedError
from pe_lab.evaluation.contract.suite import OF_A_TASK
from pe_lab.training.batches import TrainData

ROOT = Path(__file__).parents[2]
TASKS = sorted(path.stem for path in (ROOT / "conf" / "task").glob("*.yaml"))

# Of four sequences of each split, as it is and at twice its length: a change of any is a change of
# every published number. And the shortest length of the task.
GOLDEN = {
    "addition": ("d254e5adb3d0354c", 5),
    "brackets": ("b32ee7c05dccc285", 4),
    "brackets_sentence": ("8171d1d09c3486cb", 4),
    "copy": ("47197c4cfede51e4", 2),
    "copy_repeat": ("48456941032773e7", 4),
    "copy_unique": ("558bf61679aaaee9", 4),
    "counting": ("260c0c9c45c5b5d7", 6),
    "cycle": ("1d44807dcd3dc21f", 1),
    "even_pairs": ("4f03399d5c883e65", 2),
    "flipflop": ("824b13419bdc8e63", 3),
    "group_word": ("55b243f1a3c53e93", 1),
    "indirect": ("995e9f318cdc440b", 10),
    "majority": ("914f220f3c0e1c67", 2),
    "missing_duplicate": ("9b42d26c68467931", 3),
    "modular": ("4621a83cae3671fe", 2),
    "navigation": ("5c0f9156e0a8607c", 3),
    "needle": ("9d9b6ea0ec446eef", 19),
    "recall": ("4a8c230345073d2b", 4),
    "recall_reassigned": ("25802f98cac3b550", 6),
    "reverse": ("5f2f5942d35ff2a2", 2),
    "selective_copy": ("fbe6ace353041be4", 2),
    "sort": ("4f7ceef291153406", 4),
    "text": ("98871e54b545719d", 1),
}


def digest(*batches):
    parts = [part for b in batches for part in (b.tokens, b.targets, b.scored)]
    content = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
    return hashlib.sha256(content).hexdigest()[:16]


@pytest.mark.parametrize("name", TASKS)
def test_golden(load, name):
    """Each split has its rule at its own length, and at any other from the shortest on."""
    whole, batches = load(name), []
    expected, least = GOLDEN[name]
    for split_name in whole.evaluated():
        split = whole.split(split_name)
        same, longer = split.at_length(split.n_tokens), split.at_length(2 * split.n_tokens + 1)
        assert longer.vocab == whole.vocab
        batches += [made.sample(generator(0, "golden"), 4) for made in (split, longer)]
        assert digest(same.sample(generator(0, "golden"), 4)) == digest(batches[-2])
        for length in (split.n_tokens + 1, 2 * split.n_tokens + 1):
            made = split.at_length(length)
            assert length - 4 < made.n_tokens <= length
            assert made.sample(generator(1), 4).tokens.shape[1] <= made.n_tokens
    assert digest(*batches) == expected
    whole.at_length(least)
    with pytest.raises(
        ValueError, match=f"a length of {least - 1} is too short .* at least {least}"
    ):
        whole.at_length(least - 1)


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
