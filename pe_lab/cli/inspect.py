"""``pe-lab inspect``: attention and encoding of one sequence in a finished run.

    pe-lab inspect run=FOLDER                    the folder of a run, or
    pe-lab inspect run=flipflop/cope             a part of its path below runs_dir=runs
    pe-lab inspect run=.. split=sparse sample=3  the split and the sequence; default: the first
                                                 wrong answer of the split with the highest error
    pe-lab inspect run=.. layer=1 head=3         this head in full instead of the highest ranked one
    pe-lab inspect run=.. query=40               what the token at this position attends to
    pe-lab inspect run=.. --config-dir FOLDER    trust the classes that the yamls there name

All numbers count from 0.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from pe_lab.cli.run_argument import RunArgument, find_run
from pe_lab.core.config_dir import trust
from pe_lab.core.console import console
from pe_lab.core.options import parse, without_config_dir

Index = Annotated[int, Field(description="a whole number, from 0")]


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
    config_dir, rest = without_config_dir(words)
    trust(config_dir)
    options = parse(InspectOptions, rest)
    path = find_run(options.run, options.runs_dir)
    # Imported here: torch takes a second.
    from pe_lab.experiment.load_run import inspect_run
    from pe_lab.inspection.page import choose_head, lines

    inspection = inspect_run(path, options.split, options.sample, options.query)
    head = choose_head(inspection, options.layer, options.head)
    # NO_COLOR leaves the color system unchanged.
    coloured = console().color_system is not None and not console().no_color
    for text in lines(inspection, head, options.query, console().width, coloured):
        console().print(text)
