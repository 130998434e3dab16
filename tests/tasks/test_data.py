"""What all tasks keep, and the tokens that hold an answer, by an oracle that reads them alone."""

import hashlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pe_lab.check.base import NotClaimedError
from pe_lab.check.tasks import CHECKS as OF_A_TASK
from pe_lab.core.rng import generator
from pe_lab.core.task import FORMAT, encode_sequences

ROOT = Path(__file__).parents[2]
TASKS = sorted(path.stem for path in (ROOT / "conf" / "task").glob("*.yaml"))

# Of four sequences of each split, as it is and at twice its length: a change of any is a change of
# every published number. And the shortest length of the task.
GOLDEN = {
    "addition": ("d254e5adb3d0354c", 5),
    "alternation": ("fcd22d552aeb1ebc", 6),
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
    "induction": ("270071cf447431b9", 4),
    "khop": ("1c65ddbe82a8c0fb", 11),
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
    "termination": ("23ec9a729cd70c97", 21),
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


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("check", OF_A_TASK.values(), ids=OF_A_TASK)
def test_what_pe_lab_check_holds(load, name, check):
    with suppress(NotClaimedError):
        check(load(name))


def batches(task, n: int):
    for name in task.evaluated():
        yield task.split(name), task.split(name).sample(generator(0, name), n)


@pytest.mark.parametrize("name", [name for name in TASKS if name not in ("text", "addition")])
def test_the_answer_follows_from_earlier_tokens_alone(load, name: str) -> None:
    for task, batch in batches(load(name), 20):
        rows, places = np.nonzero(batch.scored)
        held = task.holds_answer(batch, rows, places)
        assert not (held & (np.arange(held.shape[1]) > places[:, None])).any()
        assert task.find_wrong_answer(batch) is None


@pytest.mark.parametrize("name", [name for name in TASKS if name != "text"])
def test_a_file_is_held_to_the_rule(load, tmp_path, name: str) -> None:
    """The last answer of three, which becomes another word that occurs as an answer."""
    task = load(name)
    batch = task.sample(generator(0), 3)
    row, place = (index[-1] for index in np.nonzero(batch.scored))
    wrong = batch.targets.copy()
    wrong[row, place] = min(set(wrong[batch.scored]) - {wrong[row, place]})
    header = {"pe_lab_data": FORMAT, "vocab": list(task.vocab), "in_order": False}

    def read(targets):
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        file.write_bytes(encode_sequences(header, replace(batch, targets=targets)))
        return replace(task, files={"in_domain": str(file)}).stored("in_domain")

    assert len(read(batch.targets)) == 3
    with pytest.raises(ValueError, match="breaks the rule of the task: sequence 3 answers"):
        read(wrong)


@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("pad", [True, False])
@pytest.mark.parametrize("hints", [None, 24])
def test_the_digits_of_the_sources_add_up_to_the_answer(load, reverse, pad, hints) -> None:
    """Their places follow from their numbers' ends, which are known."""
    for task, batch in batches(load("addition", reverse=reverse, pad=pad, hints=hints), 5):
        rows, queries = np.nonzero(batch.scored)
        sources = task.holds_answer(batch, rows, queries)
        for row, query, places in zip(rows, queries, sources, strict=True):
            line = [task.vocab[token] for token in batch.tokens[row]]
            asked = int(batch.tags["place"][row, query])
            answer = task.vocab[batch.targets[row, query]]
            found: dict[int, list[str]] = {}
            for place in np.flatnonzero(places):
                end = line.index("+") if place < line.index("+") else line.index("=")
                nth = (end - place - 1) // (1 if hints is None else 2) + 1
                found.setdefault(nth, []).append(line[place])
            if answer.startswith("h"):
                ((nth, words),) = found.items()
                assert set(words) == {f"h{int(answer[1:]) - asked + nth}"}
                plus, equals = line.index("+"), line.index("=")
                assert nth == asked or nth == asked - 1 == max(plus // 2, (equals - plus - 1) // 2)
                continue
            totals = {nth: sum(map(int, words)) for nth, words in found.items()}
            low = min(totals, default=asked)
            number = sum(total * 10 ** (nth - low) for nth, total in totals.items())
            assert str(number // 10 ** (asked - low) % 10) == answer
            # The carry is known from the first place whose digits do not add up to nine.
            assert all(totals[nth] == 9 for nth in range(low + 1, asked))
            assert low in (1, asked) or totals[low] != 9
