"""``pe-lab plan``: preregistered claims about a suite, and what the runs say of them.

    pe-lab plan                                  the claims behind the shipped results
    pe-lab plan claim=conv-copy                  each test of a claim (comma-separated)
    pe-lab plan file=runs/claims.yaml            your claims: supported, not supported or not enough
                                                 runs
    pe-lab plan file=.. preregister=true         adds time, revision and digest to your new claims,
                                                 and prints the commands that run them

Further: format=table, csv, json, markdown or latex, runs_dir=runs, suite=v2 (of shipped claims),
--config-dir FOLDER for encodings and suites of your own. A claim is exploratory if one of its runs
began before it was written. docs/plans.md shows a file of claims.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pe_lab.config.choices import choices
from pe_lab.core.errors import UsageError
from pe_lab.core.options import CommaSeparated, Flag, Options, parse, without_config_dir
from pe_lab.core.suggest import check_known
from pe_lab.results.leaderboard.claims import (
    Claims,
    check_claims,
    commands,
    decide,
    read_claims,
    register,
    shipped_claims,
    tuned_rates,
)
from pe_lab.results.leaderboard.file import shipped_rows
from pe_lab.results.leaderboard.rows import suite_rows
from pe_lab.results.presentation.formats import Format, print_tables
from pe_lab.results.presentation.leaderboard_details import claims_table, details_table
from pe_lab.results.suite import DEFAULT, Suite, load_suite


class PlanOptions(Options):
    """The keys of ``pe-lab plan``."""

    command = "plan"

    file: str | None = None
    claim: CommaSeparated[str] | None = None
    preregister: Flag = False
    suite: str = DEFAULT
    runs_dir: str = "runs"
    format: Format = "table"


def show(words: Sequence[str]) -> None:
    """Register new claims, or say what became of claims.

    Raises:
        UsageError: a wrong option, or a file that is none of claims.
        DamagedError: a claim was changed after it was registered.
    """
    config_dir, rest = without_config_dir(words)
    options, folder = parse(PlanOptions, rest), None if config_dir is None else Path(config_dir)
    if options.preregister and options.file is None:
        raise UsageError("plan preregister=true needs file=FILE.yaml: your claims")
    path = _shipped(options) if options.file is None else Path(options.file)
    claims = read_claims(path)
    suite = load_suite(claims.suite.rpartition("-")[0], folder)
    own = [] if folder is None else [one.stem for one in folder.glob("pe/*.yaml")]
    check_claims(path, claims, suite, [*suite.all_entries, *own])
    check_known("claim={}", options.claim, claims.claims)
    rows = shipped_rows(suite)[0], suite_rows(Path(options.runs_dir), suite)
    if options.preregister:
        ends = [] if folder is None else ["--config-dir", str(folder)]
        ends += [] if options.runs_dir == "runs" else [f"runs_dir={options.runs_dir}"]
        _register(path, claims, suite, pl.concat(rows), ends)
        return
    decided = [
        one for one in decide(claims, suite, *rows) if one.name in (options.claim or claims.claims)
    ]
    tables = [claims_table(decided)] if options.claim is None else [*map(details_table, decided)]
    notes = [f"{one.name} is exploratory: {one.exploratory}" for one in decided if one.exploratory]
    for one in decided:
        missing = one.rows["missing"].drop_nulls().unique(maintain_order=True)
        notes += [f"{one.name}: {said}" for said in missing]
    facts = {"verdicts": {one.name: one.verdict for one in decided}}
    tests = pl.concat([one.rows for one in decided])
    print_tables(options.format, tables, tests, None, notes, facts)


def _shipped(options: PlanOptions) -> Path:
    """The file of the claims about a suite that ship."""
    ships = [name for name in choices("suite") if shipped_claims(name).exists()]
    check_known("suite={}: no claims about it ship", [options.suite], ships)
    claims = {*(options.claim or ())}
    having = [n for n in ships if claims <= read_claims(shipped_claims(n)).claims.keys()]
    if having and options.suite not in having:
        raise UsageError(
            f"claim={','.join(sorted(claims))} is about suite {having[0]}: add suite={having[0]}"
        )
    return shipped_claims(options.suite)


def _register(
    path: Path, claims: Claims, suite: Suite, rows: pl.DataFrame, ends: Sequence[str]
) -> None:
    # Imported here: torch takes a second.
    from pe_lab.experiment.provenance import environment

    names = register(path, claims, suite, rows, environment(1, "cpu")[0]["git_revision"])
    print(f"registered in {path}: {', '.join(names) or 'nothing new'}; commit it before the runs:")
    rates = tuned_rates(rows.unique(["run_id", "split"], maintain_order=True), suite)
    for name in names:
        for line in commands(claims.claims[name], suite, rates):
            print(shlex.join(["pe-lab", *line, *ends]))
