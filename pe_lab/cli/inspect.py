"""``pe-lab inspect``: attention and encoding of one sequence in a finished run.

    pe-lab inspect run=FOLDER                    the folder of a run, or
    pe-lab inspect run=flipflop/cope             a part of its path below runs_dir=runs
    pe-lab inspect run=.. split=sparse sample=3  the split and the sequence; default: the first
                                                 wrong answer of the split with the highest error
    pe-lab inspect run=.. layer=1 head=3         this head in full instead of the highest ranked one
    pe-lab inspect run=.. query=40               what the token at this position attends to

All numbers count from 0.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.text import Text

from pe_lab.cli.arguments import find_run
from pe_lab.core.console import console
from pe_lab.core.errors import UsageError
from pe_lab.core.options import Line
from pe_lab.explain.inspect import Answer, Head, Inspection, inspect_run

MOST_HEADS, MOST_ANSWERS, MOST_KEYS = 8, 64, 12
"""Lines of heads, answers, and keys of a query that are shown."""


def show(
    _: Line,
    *,
    run: str,
    runs_dir: Path = Path("runs"),
    split: str | None = None,
    sample: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    query: int | None = None,
) -> None:
    """Print the inspection.

    Raises:
        UsageError: unknown key, run, split, sample, layer, head or query.
    """
    path = find_run(run, runs_dir)
    inspection = inspect_run(path, split, sample, query)
    for line in lines(inspection, choose_head(inspection, layer, head), query):
        console().print(line, soft_wrap=True)


def choose_head(inspection: Inspection, layer: int | None, head: int | None) -> Head:
    """The highest ranked head of this layer and number; None: any.

    Raises:
        UsageError: no such layer or head.
    """
    for one in inspection.heads:
        if layer in (None, one.layer) and head in (None, one.head):
            return one
    names = ", ".join(sorted(one.name for one in inspection.heads))
    given = {"layer": layer, "head": head}
    words = " ".join(f"{key}={value}" for key, value in given.items() if value is not None)
    raise UsageError(f"{words} is not a head of the model: choose from {names}")


def lines(inspection: Inspection, head: Head, query: int | None) -> Iterator[Text]:
    """The lines for a terminal.

    Args:
        query: the position to show; None: the first wrong answer, or the first.
    """
    yield Text(inspection.heading, "bold")
    yield Text(inspection.summary)
    answers = Text("answers")
    for answer in inspection.answers[:MOST_ANSWERS]:
        # On brackets the right token may have too low a probability.
        unsure = "?" if answer.prediction == answer.target else f"{answer.prediction}≠"
        wrong = "" if answer.correct else unsure
        answers.append(f" {wrong}{answer.target}", "red" if wrong else "green")
    yield answers
    for one in inspection.heads[:MOST_HEADS]:
        shown = one.maps.keys() & {inspection.ranked_by} - {"attention"}
        means = [m for name in shown for m in inspection.token_means(one, name).items()]
        tokens = " ".join(f"{token} {mean:.2f}" for token, mean in means[:MOST_KEYS])
        yield Text(f"{one.name}  {one.score:.2f}  {tokens}")
    by_position = {answer.position: answer for answer in inspection.answers}
    if query is None:
        wrong_first = sorted(by_position, key=lambda at: by_position[at].correct)
        query = next(at for at in [*wrong_first, *inspection.queries] if at in inspection.queries)
    yield from _query_lines(inspection, head, query, by_position.get(query))


def _query_lines(
    inspection: Inspection, head: Head, query: int, answer: Answer | None
) -> Iterator[Text]:
    """A query, its answer, and the keys that it attends to most with the value of every map."""
    row, tokens = inspection.queries.index(query), inspection.tokens
    maps = {name: values[row, : query + 1] for name, values in head.maps.items()}
    yield Text(f"{head.name}, query {query}: {tokens[query]}", "bold")
    if answer is not None:
        verdict = "right" if answer.correct else f"wrong, predicted {answer.prediction}"
        share = maps["attention"][list(answer.sources)].sum()
        held = f"; attention {share:.2f} on the tokens that hold it" if answer.sources else ""
        yield Text(f"target {answer.target} (probability {answer.target_probability:.2f}): "
                   f"{verdict}{held}")  # fmt: skip
    top = sorted(np.argsort(-maps["attention"], kind="stable")[:MOST_KEYS])
    cells = {"key": [str(key) for key in top], "token": [tokens[key] for key in top]}
    cells |= {name: [f"{values[key]:.2f}" for key in top] for name, values in maps.items()}
    width = 1 + max(len(text) for row in cells.values() for text in row)
    for name, texts in cells.items():
        yield Text(f"{name:<16}" + "".join(text.rjust(width) for text in texts))
