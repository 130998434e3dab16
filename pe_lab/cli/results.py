"""``pe-lab results``: tables over the runs of a folder.

    pe-lab results task=flipflop pe=cope,rope          filters: any key of a run, values by commas
    pe-lab results where="train.steps>=1000"           a condition: = != < <= > >= in and or not ( )
    pe-lab results by=pe,model.d_model                 one row for each combination of these
    pe-lab results splits=sparse,dense sort=-sparse    columns and order, - for descending
    pe-lab results metric=loss spread=sd               what is averaged; both, sd or interval
    pe-lab results format=csv > table.csv              table, csv, json, markdown or latex
    pe-lab results runs_dir=elsewhere                  the folder of the runs, else runs
    pe-lab results evaluations=true                    what pe-lab eval measured of them: a row for
                                                       each encoding at test time, a column for
                                                       each length, in tokens read; splits= as
                                                       evaluated, sort=-512

csv and json hold exact numbers, shares instead of %, one row for each row and split of the table
(the columns of ``grouped``). Runs that are not finished are listed below the table; json has them
under ``unfinished``, and with csv, markdown and latex they and all notes go to the error output.
"""

import shlex
from collections.abc import Sequence

import polars as pl

from pe_lab.evaluation.recorded import evaluated_paths
from pe_lab.results.aggregate import SETTING, grouped, pooled_told
from pe_lab.results.frame import labels, selected
from pe_lab.results.output import FORMATS, chosen, filters, put
from pe_lab.results.sheets import SPREADS, sheets

OPTIONS = ("by", "splits", "metric", "sort", "spread", "format", "evaluations")


def show(words: Sequence[str]) -> None:
    """Print one row for each setting, or each combination of the keys of ``by``, and every run
    that is not finished; or all that they were evaluated on.

    Raises:
        UsageError: a word makes no sense.
    """
    runs, given = selected("results", words, OPTIONS)
    form, spread = chosen(given, "format", FORMATS), chosen(given, "spread", SPREADS)
    evaluations = chosen(given, "evaluations", ("false", "true")) == "true"
    by = given["by"].split(",") if "by" in given else SETTING
    metric = given.get("metric", "error")
    splits = given["splits"].split(",") if "splits" in given else None
    facts = {"metric": metric, "interval": "95 %, Student's t, of the mean over seeds"}
    if runs.is_empty():
        among = filters(words, OPTIONS)
        notes = [f"no runs in {given['runs_dir']}{among}: pe-lab task=flipflop pe=cope makes one"]
        put(form, [], pl.DataFrame(), runs, notes, facts)
    elif "finished" not in runs["state"]:
        put(form, [], pl.DataFrame(), runs, [], facts)
    elif evaluations:
        from pe_lab.results.evaluated import evaluated_tables

        tables, rows, notes = evaluated_tables(runs, given, spread)
        put(form, tables, rows, runs, notes, facts)
    else:
        groups = grouped(runs, by, metric, splits)
        finished = runs.filter(pl.col("state") == "finished")
        told = labels(finished) if "setting" in by else {}
        tables = sheets(groups, told, by, metric, spread, given.get("sort"))
        notes = [*pooled_told(runs, by), *_evaluated(runs, words)]
        put(form, tables, _labelled(groups, told), runs, notes, facts)


def _evaluated(runs: pl.DataFrame, words: Sequence[str]) -> list[str]:
    """How many of the runs were evaluated, and the line that shows it."""
    n = len(evaluated_paths(runs))
    kept = [word for word in words if word.partition("=")[0] not in (*OPTIONS, "debug")]
    line = shlex.join(["pe-lab", "results", *kept, "evaluations=true"])
    return [f"{n} of these runs {'was' if n == 1 else 'were'} evaluated: {line}"] if n else []


def _labelled(groups: pl.DataFrame, told: dict[str, str]) -> pl.DataFrame:
    if "setting" not in groups.columns:
        return groups
    lines = pl.Series("differs", [told.get(setting) for setting in groups["setting"]], pl.String)
    return groups.insert_column(groups.columns.index("setting") + 1, lines)
