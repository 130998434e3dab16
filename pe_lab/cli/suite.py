"""``pe-lab suite``: tunes and scores encodings alike on a fixed list of tasks.

    pe-lab suite v2 dry=true                     what is missing, and what it costs
    pe-lab suite v2                              trains it, the cheapest task first
    pe-lab suite v2 tasks=flipflop,parity pe=rope,cope,lstm    some tasks, some entries
    pe-lab suite v2 part=1 columns=conv          one part of the work, one column
    pe-lab suite v2 --config-dir mine pe=mine    your encoding, like all others
    pe-lab suite quick --config-dir mine pe=mine    the same in ten minutes, beside four references
    pe-lab suite v2 phases=tuning,score,more_seeds,longer    phases beside the default ones
    pe-lab suite v2 shipped=false tasks=flipflop pe=rope       also runs whose results ship
    pe-lab suite v2 hydra.launcher.n_jobs=4 runs_dir=runs      also threads=, device=, tracker=

For each task and entry, learning rates are trained on the tuning seeds. The one with the lowest
in-domain error is trained on fresh seeds (score). As many runs are trained at once as there are
cores (hydra/launcher=basic: one; slurm: docs/clusters.md). Finished runs are kept: the same
command trains what is missing. docs/suite.md has the protocol.
"""

from collections.abc import Sequence
from pathlib import Path

from pe_lab.core.config_dir import choices
from pe_lab.core.console import console
from pe_lab.core.errors import UsageError
from pe_lab.core.options import CommaSeparated, Flag, Options, parse, without_config_dir
from pe_lab.core.suggest import check_known, did_you_mean
from pe_lab.results.format import print_tables
from pe_lab.store.run_id import is_excluded
from pe_lab.suite.rows import read_own
from pe_lab.suite.suite import load_suite


class SuiteOptions(Options, extra="allow"):
    """The keys of ``pe-lab suite``; the others are passed to its runs."""

    command = "suite"

    pe: CommaSeparated[str] | None = None
    tasks: CommaSeparated[str] | None = None
    phases: CommaSeparated[str] | None = None
    columns: CommaSeparated[str] | None = None
    part: CommaSeparated[str] | None = None
    dry: Flag = False
    shipped: Flag = True
    runs_dir: Path = Path("runs")


def show(words: Sequence[str]) -> None:
    """Train what is missing of a suite, or with ``dry`` only say what it is.

    Raises:
        UsageError: an option is wrong; nothing was done.
        PeLabError: a run failed; the same command trains what is missing.
        Interrupted: a signal came; the same command continues.
    """
    config_dir, rest = without_config_dir(words)
    names = [word for word in rest if "=" not in word]
    if not names:
        raise UsageError(f"suite needs the name of a suite: {', '.join(choices('suite'))}")
    options = parse(SuiteOptions, [word for word in rest if word != names[0]])
    for key, value in options.others.items():
        if not key.startswith("hydra") and (not is_excluded(key) or key in ("force", "debug")):
            keys = [*SuiteOptions.model_fields, "threads", "device", "tracker"]
            raise UsageError(
                f"suite {key}={value}: {did_you_mean(key, keys)}; a suite fixes what it trains"
            )
    # Imported here: torch takes a second.
    from pe_lab.config.compose import CommandLine
    from pe_lab.suite.runs import Known, Trainer, select_steps
    from pe_lab.sweeps.launchers import register_choices

    folder = None if config_dir is None else Path(config_dir)
    suite = load_suite(names[0], folder)
    own = [] if folder is None else [path.stem for path in folder.glob("pe/*.yaml")]
    entries = [suite.split(name)[0] for name in options.pe or ()]
    check_known("pe={}", entries, {*suite.entries, *own, *choices("pe")})
    named = (options.tasks, options.pe, options.columns, options.phases, options.part)
    steps = select_steps(suite, *(values or () for values in named))
    known = Known(suite, read_own(suite, options.runs_dir, folder), use_shipped=options.shipped)
    table, trainer = known.cost_table(steps), None
    missing = table.frame["missing"][-1]
    if missing and not options.dry:
        register_choices()
        passed = {"hydra/launcher": "joblib", "tracker": "none"} | options.others
        passed["runs_dir"] = str(options.runs_dir)
        line = CommandLine([f"{key}={value}" for key, value in passed.items()], True, config_dir)
        trainer = Trainer(line, suite, options.runs_dir, known)
        trainer.compose(steps)
    print_tables("table", [table])
    if not missing:
        console().print(f"nothing is missing: finished runs in {options.runs_dir} count")
    elif trainer is not None:
        trainer.train(steps)
        where = "" if suite.name == "v2" else f" suite={suite.name}"
        console().print(f"look at it: pe-lab leaderboard{where}")
