"""``pe-lab inspect``: what an encoding did with one sequence of a finished run.

    pe-lab inspect run=FOLDER                    a folder of a run, or
    pe-lab inspect run=flipflop/cope             a part of the only such path below runs_dir=runs
    pe-lab inspect run=.. split=sparse sample=3  which split (in_domain), which sequence of it (0)
    pe-lab inspect run=.. layer=1 head=3         this head in full, not the highest ranked one
    pe-lab inspect run=.. query=40               what the token at this position attended to

All numbers count from 0.
"""

from collections.abc import Sequence
from pathlib import Path

from pe_lab.common.console import console
from pe_lab.common.errors import UsageError
from pe_lab.common.options import key_values
from pe_lab.store.run_folder import find_run

KEYS = ("run", "split", "sample", "layer", "head", "query", "runs_dir")


def show(words: Sequence[str]) -> None:
    """Print the inspection.

    Raises:
        UsageError: unknown key, run, split, sample, layer, head or query.
    """
    given = key_values("inspect", words, KEYS)
    if not given.get("run"):
        raise UsageError(
            "inspect needs a finished run: give run=FOLDER, or a part of its name below runs_dir"
        )
    path = find_run(given["run"], Path(given.get("runs_dir", "runs")))
    numbers = {key: _number(key, given[key]) for key in KEYS[2:6] if key in given}
    split, query = given.get("split", "in_domain"), numbers.get("query")
    # Imported here: torch takes a second.
    from pe_lab.experiment.inspect_run import inspect_run
    from pe_lab.inspection.text import choose_head, lines

    inspection = inspect_run(path, split, numbers.get("sample", 0), query)
    head = choose_head(inspection, numbers.get("layer"), numbers.get("head"))
    # NO_COLOR leaves the color system unchanged.
    coloured = console().color_system is not None and not console().no_color
    for text in lines(inspection, head, query, console().width, coloured):
        console().print(text)


def _number(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{key}={text} is not allowed: give a whole number, from 0") from None
