"""The first table of README.md: the run of ``make run``, and four encodings tuned alike.

The run is of pe_lab/results/findings.parquet, the others are of the shipped results of suite v1.

    python -m docs.readme
"""

from docs import facts
from docs.leaderboard import shipped
from docs.markdown import insert, table
from pe_lab.common.console import percent
from pe_lab.results.frame import by_split, filtered
from pe_lab.results.selection import FINDINGS, read_file_of_runs

README = facts.ROOT / "README.md"
RUN = "task=flipflop and pe=cope and seed=0 and model.n_layers=2 and task.length=64 and steps=400"
"""One layer and length 512 are findings, too."""
ENTRIES = ("path", "fox", "cope", "rope")


def first_table() -> str:
    """Of each split: the error of the run, and how many seeds of each entry generalise to it."""
    run = filtered(read_file_of_runs(FINDINGS), RUN, {})
    if len(run) != 1:
        raise SystemExit(f"findings.parquet has {len(run)} runs with {RUN}, not one")
    splits = by_split(run)
    cells = {
        (row["entry"], row["split"]): f"{row['k']}/{row['n']}"
        for row in shipped()[0].cells.filter(task="flipflop").iter_rows(named=True)
    }
    rows = [
        [f"`{split}`", percent(error), percent(guess), *(cells[entry, split] for entry in ENTRIES)]
        for split, error, guess in splits.select("split", "error", "guess").iter_rows()
    ]
    return table(["split", "`make run`: CoPE, error in %", "guessing, %", *ENTRIES], rows)


def write() -> None:
    """Put the table into README.md."""
    insert(README, first_table(), "python -m docs.readme")


if __name__ == "__main__":
    write()
