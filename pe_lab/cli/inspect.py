"""``pe-lab inspect``: attention and encoding of one sequence in a finished run.

    pe-lab inspect run=FOLDER                    the folder of a run, or
    pe-lab inspect run=flipflop/cope             a part of its path below runs_dir=runs
    pe-lab inspect run=.. split=sparse sample=3  the split and the sequence; default: the first
                                                 wrong answer of the split with the highest error
    pe-lab inspect run=.. layer=1 head=3         this head in full instead of the highest ranked one
    pe-lab inspect run=.. query=40               what the token at this position attends to

All numbers count from 0.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field
from rich.text import Text

from pe_lab.cli.run_argument import RunArgument, find_run
from pe_lab.core.console import console
from pe_lab.core.errors import UsageError
from pe_lab.core.options import parse, without_config_dir

if TYPE_CHECKING:
    from pe_lab.explain.inspect import Head, Inspection

Index = Annotated[int, Field(description="a whole number, from 0")]
MOST_HEADS, MOST_ANSWERS, MOST_KEYS = 8, 64, 12
"""Lines of heads, answers, and keys of a query that are shown."""


class InspectOptions(RunArgument):
    command = "inspect"

    split: str | None = None
    sample: Index | None = None
    layer: Index | None = None
    head: Index | None = None
    query: Index | None = None


def show(words: Sequence[str]) -> None:
    """Print the inspection.

    Raises:
        UsageError: unknown key, run, split, sample, layer, head or query.
    """
    _, rest = without_config_dir(words)
    options = parse(InspectOptions, rest)
    path = find_run(options.run, options.runs_dir)
    # Imported here: torch takes a second.
    from pe_lab.explain.inspect import inspect_run

    inspection = inspect_run(path, options.split, options.sample, options.query)
    head = choose_head(inspection, options.layer, options.head)
    for line in lines(inspection, head, options.query):
        console().print(line, soft_wrap=True)


def choose_head(inspection: "Inspection", layer: int | None, head: int | None) -> "Head":
    """The highest ranked head of this layer and number; None: any.

    Raises:
        UsageError: no such layer or head.
    """
    for one in inspection.heads:
        if layer in (None, one.layer) and head in (None, one.head):
            return one
    names = ", ".join(sorted(one.name for one in inspection.heads))
    raise UsageError(f"layer={layer} head={head} is not a head of the model: choose from {names}")


def lines(inspection: "Inspection", head: "Head", query: int | None) -> Iterator[Text]:
    """The lines for a terminal.

    Args:
        query: the position to show; None: the first wrong answer, or the first, and the last.
    """
    yield Text(inspection.heading, "bold")
    yield Text(inspection.summary)
    answers = Text("answers")
    for answer in inspection.answers[:MOST_ANSWERS]:
        right = f" {answer.target}"
        wrong = f" {answer.prediction}≠{answer.target}"
        answers.append(right if answer.correct else wrong, "green" if answer.correct else "red")
    yield answers
    for one in inspection.heads[:MOST_HEADS]:
        means = {}
        if inspection.ranked_by in one.maps and inspection.ranked_by != "attention":
            means = inspection.token_means(one, inspection.ranked_by)
        tokens = " ".join(f"{token} {mean:.2f}" for token, mean in list(means.items())[:MOST_KEYS])
        yield Text(f"{one.name}  {one.score:.2f}  {tokens}")
    if query is None:
        shown = [a for a in inspection.answers if a.position in inspection.queries]
        first = [a.position for a in sorted(shown, key=lambda a: a.correct)[:1]]
        queries = list(dict.fromkeys([*first, *(a.position for a in shown[-1:])]))
    for position in [query] if query is not None else queries or inspection.queries[-1:]:
        yield Text()
        yield from _query_lines(inspection, head, position)


def _query_lines(inspection: "Inspection", head: "Head", query: int) -> Iterator[Text]:
    """A query, its answer, and the keys that it attends to most with the value of every map."""
    row, tokens = inspection.queries.index(query), inspection.tokens
    maps = {name: values[row, : query + 1] for name, values in head.maps.items()}
    yield Text(f"{head.name}, query {query}: {tokens[query]}", "bold")
    for answer in inspection.answers:
        if answer.position == query:
            verdict = "right" if answer.correct else f"wrong, predicted {answer.prediction}"
            share = maps["attention"][list(answer.sources)].sum()
            held = f"; attention {share:.2f} on the tokens that hold it" if answer.sources else ""
            probability = f"probability {answer.target_probability:.2f}"
            yield Text(f"target {answer.target} ({probability}): {verdict}{held}")
    top = sorted(np.argsort(-maps["attention"], kind="stable")[:MOST_KEYS])
    width = max(6, *(len(tokens[key]) + 1 for key in top))
    yield Text(f"{'key':<16}" + "".join(f"{key:>{width}}" for key in top), "dim")
    yield Text(f"{'token':<16}" + "".join(f"{tokens[key]:>{width}}" for key in top))
    for name, values in maps.items():
        yield Text(f"{name:<16}" + "".join(f"{values[key]:>{width}.2f}" for key in top))
