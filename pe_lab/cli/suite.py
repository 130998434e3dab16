"""``pe-lab suite``: tunes and scores encodings alike on a fixed list of tasks.

    pe-lab suite v2_1 dry=true                     what is missing, and what it costs
    pe-lab suite v2_1                              trains it, the cheapest task first
    pe-lab suite v2_1 tasks=flipflop,parity pe=rope,cope,lstm    some tasks, some entries
    pe-lab suite v2_1 part=1 columns=conv          one part of the work, one column
    pe-lab suite v2_1 --config-dir mine pe=mine    your encoding, like all others
    pe-lab suite quick --config-dir mine pe=mine   the same in ten minutes, beside four references
    pe-lab suite v2_1 phases=tuning,score,more_seeds,longer    phases beside the default ones
    pe-lab suite v2_1 shipped=false tasks=flipflop pe=rope       also runs whose results ship
    pe-lab suite v2_1 hydra.launcher.n_jobs=4 runs_dir=runs      also threads=, device=, tracker=

For each task and entry, learning rates are trained on the tuning seeds. One with a low in-domain
error, by the rule of the suite, is trained on fresh seeds (score). As many runs are trained at
once as there are cores (hydra/launcher=basic: one; slurm: docs/clusters.md). Finished runs are
kept: the same command trains what is missing. docs/suite.md has the protocol.
"""

from pathlib import Path

from pe_lab.core.config_dir import choices
from pe_lab.core.console import busy, console
from pe_lab.core.errors import UsageError, check_known, did_you_mean
from pe_lab.core.options import CommaSeparated, Line
from pe_lab.results.format import print_tables
from pe_lab.store.run_id import is_excluded
from pe_lab.suite.rows import read_own
from pe_lab.suite.suite import DEFAULT, load_suite


def show(
    line: Line,
    *names: str,
    pe: CommaSeparated[str] | None = None,
    tasks: CommaSeparated[str] | None = None,
    phases: CommaSeparated[str] | None = None,
    columns: CommaSeparated[str] | None = None,
    part: CommaSeparated[str] | None = None,
    dry: bool = False,
    shipped: bool = True,
    runs_dir: Path = Path("runs"),
    **of_runs: str,
) -> None:
    """Train what is missing of a suite, or with ``dry`` only say what it is.

    Raises:
        UsageError: an option is wrong; nothing was done.
        PeLabError: a run failed; the same command trains what is missing.
        Interrupted: a signal came; the same command continues.
    """
    if len(names) != 1:
        raise UsageError(f"suite needs the name of a suite: {', '.join(choices('suite'))}")
    for key, value in of_runs.items():
        if not key.startswith("hydra") and (not is_excluded(key) or key == "force"):
            meant = did_you_mean(key, [*line.keys, "threads", "device", "tracker"])
            raise UsageError(f"suite {key}={value}: {meant}; a suite fixes what it trains")
    # Imported here: torch takes a second.
    from pe_lab.config.compose import CommandLine
    from pe_lab.suite.runs import Known, SuiteTrainer, select_stages

    folder = line.config_dir
    suite = load_suite(names[0], folder)
    entries = [suite.split(name)[0] for name in pe or ()]
    check_known("pe={}", entries, {*suite.entries, *choices("pe", folder)})
    chosen = (values or () for values in (tasks, pe, columns, phases, part))
    stages = select_stages(suite, *chosen)
    known = Known(suite, read_own(suite, runs_dir, folder), use_shipped=shipped)
    passed = {"tracker": "none"} | of_runs
    words = [f"{key}={value}" for key, value in {**passed, "runs_dir": runs_dir}.items()]
    trainer = SuiteTrainer(CommandLine.parse(["-m", *line.flags, *words]), suite, runs_dir, known)
    with busy("timing steps"):
        trainer.time_entries(stages)
    table = known.cost_table(stages)
    missing = table.frame["missing"][-1]
    if missing and not dry:
        trainer.compose(stages)
    print_tables("table", [table])
    if not missing:
        console().print(f"nothing is missing: finished runs in {runs_dir} count")
    elif not dry:
        trainer.train(stages)
        where = "" if suite.name == DEFAULT else f" suite={suite.name}"
        console().print(f"look at it: pe-lab leaderboard{where}")
