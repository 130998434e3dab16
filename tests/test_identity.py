"""The identities of runs that were published stay, whatever is renamed in between."""

import polars as pl
import pytest

from pe_lab.config.compose import CommandLine, check_composed, compose
from pe_lab.store.run_id import identity
from pe_lab.suite.rows import read_shipped
from pe_lab.suite.suite import load_suite
from pe_lab.train.plan import make_plan, replace_keys

SUITE = load_suite("v2")


@pytest.mark.extended
@pytest.mark.parametrize("task", SUITE.tasks)
def test_every_shipped_run_of_the_suite_keeps_its_identity(task: str) -> None:
    # An entry with another size, named by several words, was composed by a phase that is gone.
    entry_is_one_word = ~pl.col("entry").str.contains(" ")
    rows = read_shipped(SUITE).filter(entry_is_one_word, task=task).unique("run_id")
    for (entry,), runs in rows.group_by("entry"):
        (cfg,) = compose(CommandLine(list(SUITE.run_words(task, str(entry)))))
        planned = make_plan(check_composed(cfg))
        resolved, contents = planned.resolved, planned.task.contents()
        for run in runs.iter_rows(named=True):
            values = {"train.lr": run["lr"], "train.steps": run["steps"], "seed": run["seed"]}
            made = identity(replace_keys(resolved, values), contents)
            assert made == run["run_id"][-8:], (entry, values)
