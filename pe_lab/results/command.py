"""``pe-lab results``: tables over the runs of a folder.

    pe-lab results task=flipflop pe=cope,rope          filters: any key of a run, values by commas
    pe-lab results where="train.steps>=1000"           a condition: = != < <= > >= in and or not ( )
    pe-lab results by=pe,model.d_model                 one row for each combination of these
    pe-lab results splits=sparse,dense sort=-sparse    columns and order, - for descending
    pe-lab results metric=loss spread=sd               what is averaged; both, sd or interval
    pe-lab results format=csv > table.csv              table, csv, json, markdown or latex
    pe-lab results runs_dir=elsewhere                  the folder of the runs, else runs

csv and json hold exact numbers, shares instead of %, one row for each row and split of the table
(the columns of ``grouped``). Runs that are not finished are listed below the table; json has them
under ``unfinished``, and with csv, markdown and latex they and all notes go to the error output.
"""

from collections.abc import Sequence

import polars as pl

from pe_lab.results.frame import labels, selected
from pe_lab.results.grouped import SETTING, grouped, pooled
from pe_lab.results.output import FORMATS, chosen, filters, put
from pe_lab.results.records import text
from pe_lab.results.sheets import SPREADS, sheets

OPTIONS = ("by", "splits", "metric", "sort", "spread", "format")


def show(words: Sequence[str]) -> None:
    """Print one row for each setting, or each combination of the keys of ``by``, and every run
    that is not finished.

    Raises:
        UsageError: a word makes no sense.
    """
    runs, given = selected("results", words, OPTIONS)
    form, spread = chosen(given, "format", FORMATS), chosen(given, "spread", SPREADS)
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
    else:
        groups = grouped(runs, by, metric, splits)
        finished = runs.filter(pl.col("state") == "finished")
        told = labels(finished) if "setting" in by else {}
        tables = sheets(groups, told, by, metric, spread, given.get("sort"))
        put(form, tables, _labelled(groups, told), runs, _pooled(runs, by), facts)


def _labelled(groups: pl.DataFrame, told: dict[str, str]) -> pl.DataFrame:
    if "setting" not in groups.columns:
        return groups
    lines = pl.Series("differs", [told.get(setting) for setting in groups["setting"]], pl.String)
    return groups.insert_column(groups.columns.index("setting") + 1, lines)


def _pooled(runs: pl.DataFrame, by: Sequence[str]) -> list[str]:
    found = pooled(runs, by)
    if not found:
        return []
    keys = ", ".join(
        f"{key} ({', '.join(map(text, values[:5]))}{', ..' if len(values) > 5 else ''})"
        for key, values in found.items()
    )
    return [
        f"by={','.join(by)} pools runs that differ in {keys}: the spread is not one over seeds "
        "alone; add these keys to by, or give them a value"
    ]
