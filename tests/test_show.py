"""``pe-lab show`` (issue 15, part 2)."""

import re

import pytest
from program import ROOT, Here

from pe_lab.cli import show
from pe_lab.config.choices import choices


def test_three_sequences_of_each_split_with_what_is_scored(here: Here) -> None:
    ended = here("show", "task=flipflop", "task.length=16")
    assert (ended.status, ended.err) == (0, "")
    heads = [line for line in ended.out.splitlines() if line and not line.startswith(" ")]
    assert heads[0].startswith("in_domain: 15 tokens, ")
    assert heads[1].startswith("sparse (p_ignore=0.98): 15 tokens, ")
    assert len(heads) == 7
    first = ended.out.split("\n\n")[0].splitlines()[1:]
    assert len(first) == 2 * 3
    for tokens, answers in zip(first[::2], first[1::2], strict=True):
        bit = ""
        for place in range(2, len(tokens), 4):
            command = tokens[place]
            if command == "w":
                bit = tokens[place + 2]
            # The answer stands below the instruction that asks for it.
            answer = answers[place : place + 1].strip()
            assert answer == (bit if command == "r" else "")


def test_every_task_is_shown_in_the_width_of_the_terminal(here: Here) -> None:
    for task in choices("task"):
        ended = here("show", f"task={task}", "sequences=1")
        assert (ended.status, ended.err) == (0, ""), task
        assert max(map(len, ended.out.splitlines())) <= 160


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["task=flipflop", "splits=spars"], "did you mean sparse?"),
        (["task=flipflip"], "did you mean flipflop?"),
        (["task=copy", "task.lenght=8"], "task.lenght=8 is not a key of task"),
        (["flipflop"], "show flipflop: give key=value"),
        (["task=copy,reverse"], "task=copy,reverse names several values"),
    ],
)
def test_refused(here: Here, words: list[str], part: str) -> None:
    ended = here("show", *words)
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert part in ended.err


def test_a_task_of_the_user(here: Here) -> None:
    folder = ROOT / "conf"
    assert here("show", "--config-dir", str(folder), "task=copy", "splits=in_domain").status == 0


def test_the_examples_of_the_help_work(here: Here) -> None:
    examples = re.findall(r"pe-lab show (.*?)  ", show.__doc__ or "")
    assert len(examples) == 4
    for words in examples:
        ended = here("show", *words.split())
        assert (ended.status, ended.err) == (0, ""), words
