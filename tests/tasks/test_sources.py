"""The tokens that hold an answer, against an oracle that answers from them alone."""

from itertools import pairwise

import numpy as np
import pytest

from pe_lab.core.rng import generator
from pe_lab.core.task import Batch


def letter(task, words, word):
    """The one kind of letter there is."""
    (found,) = set(words)
    return found


def ends_or_letter(task, words, word):
    return "<eos>" if words == ["|"] else letter(task, words, word)


def flipflop(task, words, word):
    return letter(task, words, word)


def closing(task, words, word):
    (opening,) = words
    return task.vocab[task.vocab.index(opening) + task.k]


def majority(task, words, word):
    if words == ["|"]:
        return "<eos>"
    return max(words, key=words.count)


def counting(task, words, word):
    assert words[1:4] == ["=", "0", ";"]
    return str(words.count("++;"))


def group_word(task, words, word):
    if task.group.startswith("Z_"):
        return str(sum(map(int, words)) % int(task.group[2:]))
    places = range(len(words[0]))
    for element in words:
        places = [int(element[p]) - 1 for p in places]
    return "".join(str(p + 1) for p in places)


def even_pairs(task, words, word):
    pairs = sum(a != b for a, b in pairwise(words))
    return "odd" if pairs % 2 else "even"


def modular(task, words, word):
    return str(eval("".join(words)) % task.m)


ORACLES = {
    "flipflop": flipflop,
    "copy": ends_or_letter,
    "copy_unique": ends_or_letter,
    "copy_repeat": ends_or_letter,
    "reverse": ends_or_letter,
    "sort": ends_or_letter,
    "selective_copy": letter,
    "recall": letter,
    "recall_reassigned": letter,
    "indirect": letter,
    "needle": letter,
    "navigation": letter,
    "brackets": closing,
    "brackets_sentence": letter,
    "missing_duplicate": letter,
    "counting": counting,
    "majority": majority,
    "group_word": group_word,
    "cycle": group_word,
    "even_pairs": even_pairs,
    "modular": modular,
}


def answers(task, batch: Batch):
    """Source places, words, the answer and the query's place of each scored answer."""
    found = task.sources(batch)
    assert found.shape[:2] == batch.tokens.shape
    assert (found[~batch.scored] == -1).all()
    for row, place in zip(*np.nonzero(batch.scored), strict=True):
        places = found[row, place]
        places = places[places >= 0].tolist()
        assert places == sorted(set(places))
        assert all(p <= place for p in places)
        words = [task.vocab[batch.tokens[row, p]] for p in places]
        yield places, words, task.vocab[batch.targets[row, place]], int(place)


def batches(task):
    for name in task.evaluated():
        yield task.split(name), task.split(name).sample(generator(0, name), 20)


@pytest.mark.parametrize("name", ORACLES)
def test_an_oracle_answers_from_the_sources_alone(load, name: str) -> None:
    for task, batch in batches(load(name)):
        for places, words, answer, _ in answers(task, batch):
            assert words, (name, places)
            assert ORACLES[name](task, words, answer) == answer


@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("pad", [True, False])
@pytest.mark.parametrize("hints", [None, 24])
def test_the_digits_of_the_sources_add_up_to_the_answer(load, reverse, pad, hints) -> None:
    """Their places follow from their numbers' ends, which are known."""
    for task, batch in batches(load("addition", reverse=reverse, pad=pad, hints=hints)):
        sources = task.sources(batch)
        for row, query in zip(*np.nonzero(batch.scored), strict=True):
            places = sources[row, query]
            line = [task.vocab[token] for token in batch.tokens[row]]
            asked = int(batch.tags["place"][row, query])
            answer = task.vocab[batch.targets[row, query]]
            found: dict[int, list[str]] = {}
            for place in places[places >= 0]:
                end = line.index("+") if place < line.index("+") else line.index("=")
                nth = (end - place - 1) // (1 if hints is None else 2) + 1
                found.setdefault(nth, []).append(line[place])
            if answer.startswith("h"):
                ((nth, words),) = found.items()
                assert set(words) == {f"h{int(answer[1:]) - asked + nth}"}
                assert nth == asked or nth == asked - 1 == max(digits_of(line))
                continue
            totals = {nth: sum(map(int, words)) for nth, words in found.items()}
            low = min(totals, default=asked)
            number = sum(total * 10 ** (nth - low) for nth, total in totals.items())
            assert str(number // 10 ** (asked - low) % 10) == answer
            # The carry is known from the first place whose digits do not add up to nine.
            assert all(totals[nth] == 9 for nth in range(low + 1, asked))
            assert low in (1, asked) or totals[low] != 9


def digits_of(line: list[str]) -> list[int]:
    """How many digits the two numbers have, in a line with hints."""
    plus, equals = line.index("+"), line.index("=")
    return [plus // 2, (equals - plus - 1) // 2]


def test_text_has_no_sources(load) -> None:
    task = load("text")
    assert task.sources(task.sample(generator(0, "x"), 2)) is None
