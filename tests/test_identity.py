"""The identities of runs that were published stay, whatever is renamed in between."""

import pytest

from pe_lab.config.compose import CommandLine, check_composed, compose
from pe_lab.store.run_id import identity
from pe_lab.suite.rows import read_shipped
from pe_lab.suite.suite import load_suite
from pe_lab.train.plan import plan, replaced

SUITE = load_suite("v2")


@pytest.mark.extended
@pytest.mark.parametrize("task", SUITE.tasks)
def test_every_shipped_run_of_the_suite_keeps_its_identity(task: str) -> None:
    rows = read_shipped(SUITE).filter(task=task).unique("run_id")
    for (entry,), runs in rows.group_by("entry"):
        # An entry with another size is named by several words.
        (cfg,) = compose(CommandLine(" ".join(SUITE.run_words(task, str(entry))).split()))
        planned = plan(check_composed(cfg))
        resolved, contents = planned.resolved, planned.task.contents()
        for run in runs.iter_rows(named=True):
            values = {"train.lr": run["lr"], "train.steps": run["steps"], "seed": run["seed"]}
            made = identity(replaced(resolved, values), contents)
            assert made == run["run_id"][-8:], (entry, values)
