"""``pe-lab report``: charts and tables of the selected runs as one HTML page.

    pe-lab report                                      all of runs/, into runs/report/index.html
    pe-lab report task=flipflop pe=cope,rope where=".."    filters as in pe-lab results
    pe-lab report out=FOLDER title="CoPE or RoPE"      the folder of the page, and its title
    pe-lab report inspect=FOLDER,FOLDER                the runs to inspect (none: no run;
                                                       default: some of the best of each task)
    pe-lab report --config-dir FOLDER                  trust the classes that the yamls there name

Evaluations recorded by pe-lab eval have sections of their own, one for each task and split.
Runs are read from runs_dir=runs. Only a page written by pe-lab report is ever overwritten.
"""

import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path

import polars as pl

from pe_lab.common.console import console
from pe_lab.common.errors import RunError, UsageError
from pe_lab.common.files import replace_file
from pe_lab.common.options import parse, without_config_dir
from pe_lab.common.trust import trust
from pe_lab.report.evaluated import against_length, evaluated
from pe_lab.report.facts import provenance, settings, unfinished
from pe_lab.report.inspected import inspected
from pe_lab.report.page import Page, Part, render
from pe_lab.report.sections import Section, sections
from pe_lab.report.series import charted_settings, groups
from pe_lab.results.frame import by_split
from pe_lab.results.selection import RunOptions, selected

MARK = '<meta name="generator" content="pe-lab report">'


class ReportOptions(RunOptions):
    """The keys of ``pe-lab report``."""

    command = "report"

    out: Path | None = None
    title: str | None = None
    inspect: str | None = None


def show(words: Sequence[str]) -> None:
    """Write the page and print its path.

    Raises:
        UsageError: a wrong option, no run selected, or a file in the way that is not a report.
        RunError: the page cannot be written.
    """
    config_dir, rest = without_config_dir(words)
    trust(config_dir)
    options = parse(ReportOptions, rest)
    runs = selected(options)
    path = (options.out or Path(options.runs_dir) / "report") / "index.html"
    _check(path)
    if runs.is_empty():
        raise UsageError(
            f"report: no runs in {options.runs_dir} as selected: leave out a filter, or "
            "make one with pe-lab task=flipflop pe=cope"
        )
    text = make(runs, options.title, options.inspect, shlex.join(["report", *words]))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
    except OSError as error:
        raise RunError(
            f"{path} cannot be written ({error.strerror}): make room there or choose another "
            "folder with out="
        ) from None
    counted = ", ".join(f"{n} {state}" for state, n in _states(runs).items())
    size = len(text.encode()) / 1e6
    console().print(f"{path}: {counted}; {size:.1f} MB, open it in a browser", soft_wrap=True)


def make(
    runs: pl.DataFrame,
    title: str | None = None,
    inspect: str | None = None,
    command: str = "report",
) -> str:
    """The page of these runs (``frame.read_runs``) as HTML.

    Args:
        inspect: folders of runs to inspect, separated by commas; "none" for none; None for the
            best of each task.
        command: the command line, shown on the page.

    Raises:
        UsageError: a folder to inspect is not a run.
    """
    finished = runs.filter(pl.col("state") == "finished")
    found = sections(finished, by_split(finished)) if len(finished) else []
    since, unread = evaluated(finished) if len(finished) else ([], [])
    return render(
        Page(
            title=title or _title(found),
            command=f"pe-lab {command}",
            made=datetime.now().astimezone(),
            with_versions=f"pe-lab {metadata.version('pe-lab')}, Python {sys.version.split()[0]}",
            parts=[_part(section) for section in sorted([*found, *since], key=_title_of)],
            states=_states(runs),
            unfinished=unfinished(runs),
            unread=unread,
            provenance=provenance(finished["path"].to_list()),
            inspected=inspected(found, inspect),
        )
    )


def _part(section: Section) -> Part:
    if section.split:
        return Part(section, against_length(section), len(charted_settings(section)), None)
    return Part(section, groups(section), len(charted_settings(section)), settings(section.runs))


def _title_of(section: Section) -> str:
    """Sorts the evaluations of a task, whose titles begin with its name, after it."""
    return section.title


def _title(found: Sequence[Section]) -> str:
    tasks = ", ".join(section.task for section in found)
    return f"Positional encodings on {tasks}" if tasks else "Positional encodings: no finished run"


def _states(runs: pl.DataFrame) -> Mapping[str, int]:
    return dict(sorted(Counter(runs["state"]).items(), key=lambda pair: (-pair[1], pair[0])))


def _check(path: Path) -> None:
    """UsageError if a file that is not a report would be overwritten."""
    if path.is_dir() or (path.is_file() and MARK not in path.read_text(errors="replace")[:2000]):
        raise UsageError(
            f"{path} was not written by pe-lab report and is left as it is: move it away or "
            "choose another folder with out="
        )
