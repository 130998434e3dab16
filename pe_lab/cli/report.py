"""``pe-lab report``: charts and tables of the selected runs as one HTML page.

    pe-lab report                                      all of runs/, into runs/report/index.html
    pe-lab report task=flipflop pe=cope,rope where=".."    filters as in pe-lab results
    pe-lab report out=FOLDER title="CoPE or RoPE"      the folder of the page, and its title
    pe-lab report inspect=FOLDER,FOLDER                the runs to inspect (none: no run;
                                                       default: some of the best of each task)
    pe-lab report format=pdf out=FOLDER                the charts as files instead: pdf, svg or png,
                                                       on white, with caption and number of seeds;
                                                       default folder: runs/report/charts
    pe-lab report --config-dir FOLDER                  trust the classes that the yamls there name

Evaluations recorded by pe-lab eval have sections of their own, one for each task and split.
Verdicts recorded by pe-lab why are a column of the task's table.
Runs are read from runs_dir=runs. Only files written by pe-lab report are ever overwritten.
"""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from pe_lab.core.config_dir import trust
from pe_lab.core.console import console
from pe_lab.core.errors import RunError, UsageError
from pe_lab.core.files import replace_file
from pe_lab.core.options import parse, without_config_dir
from pe_lab.core.output import counted
from pe_lab.report.page import GENERATOR, chart_files, render, report, states, write_charts
from pe_lab.results.selection import RunOptions, selected

MARK = f'<meta name="generator" content="{GENERATOR}">'


class ReportOptions(RunOptions):
    """The keys of ``pe-lab report``."""

    command = "report"

    out: Path | None = None
    format: Literal["html", "svg", "png", "pdf"] = "html"
    title: str | None = None
    inspect: str | None = None

    @model_validator(mode="after")
    def _no_to(self) -> Self:
        if "to" in self.others:
            raise ValueError(
                f"report to={self.others['to']}: report writes a folder, give it with out=FOLDER: "
                "the page is FOLDER/index.html, charts are files with format=svg, png or pdf"
            )
        return self


def show(words: Sequence[str]) -> None:
    """Write the page, or the charts, and print where they are.

    Raises:
        UsageError: a wrong option, no run selected, or a file in the way that is not ours.
        RunError: a file cannot be written.
    """
    config_dir, rest = without_config_dir(words)
    trust(config_dir)
    options = parse(ReportOptions, rest)
    runs = selected(options)
    path = (options.out or Path(options.runs_dir) / "report") / "index.html"
    if options.format == "html":
        _check(path)
    if runs.is_empty():
        raise UsageError(
            f"report: no runs in {options.runs_dir} as selected: leave out a filter, or "
            "make one with pe-lab task=flipflop pe=cope"
        )
    content = report(runs, options.where, options.inspect)
    if options.format != "html":
        images = chart_files(content, options.format)
        folder = options.out or Path(options.runs_dir) / "report" / "charts"
        with _writing(folder):
            write_charts(images, folder)
        shown = f"{folder}: {states(runs)}; {counted(len(images), 'chart')}, {', '.join(images)}"
        console().print(shown, soft_wrap=True)
        for section in content.trained:
            if section.note:
                console().print(f"{section.title}: {section.note}", soft_wrap=True)
        return
    tasks = ", ".join(section.task for section in content.trained)
    title = f"Positional encodings on {tasks}" if tasks else "Positional encodings: no finished run"
    command = shlex.join(["pe-lab", "report", *words])
    html = render(content, runs, options.title or title, command).encode()
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, html)
    shown = f"{path}: {states(runs)}; {len(html) / 1e6:.1f} MB, open it in a browser"
    console().print(shown, soft_wrap=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Files in the folder of ``path``, or in the folder ``path``."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} cannot be written ({error.strerror}): make room there or choose another "
            "folder with out="
        ) from None


def _check(path: Path) -> None:
    """UsageError if a file that is not a report would be overwritten."""
    if path.is_dir() or (path.is_file() and MARK not in path.read_text(errors="replace")[:2000]):
        raise UsageError(
            f"{path} was not written by pe-lab report and is left as it is: move it away or "
            "choose another folder with out="
        )
