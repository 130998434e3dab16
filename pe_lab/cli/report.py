"""``pe-lab report``: charts and tables of the selected runs as one HTML page.

    pe-lab report                                      all of runs/, into runs/report/index.html
    pe-lab report task=flipflop pe=cope,rope where=".."    filters as in pe-lab results
    pe-lab report to=FOLDER title="CoPE or RoPE"       the folder of the page, and its title
    pe-lab report inspect=FOLDER,FOLDER                the runs to inspect (none: no run;
                                                       default: some of the best of each task)
    pe-lab report format=pdf to=FOLDER                 the charts as files instead: pdf, svg or png,
                                                       on white; default folder: runs/report/charts
    pe-lab report --config-dir FOLDER                  runs of your own classes

The page has the verdicts recorded by pe-lab why. Runs
are read from runs_dir=runs. A page that pe-lab report did not write is not overwritten.
"""

import re
from pathlib import Path
from typing import Literal

from pe_lab.core.console import console
from pe_lab.core.errors import UsageError
from pe_lab.core.files import write_output
from pe_lab.core.options import Line
from pe_lab.report.page import (
    GENERATOR,
    draw_chart,
    inspect_best,
    render_report,
    sections_of,
    states,
)
from pe_lab.results.table import selected

MARK = f'<meta name="generator" content="{GENERATOR}">'


def show(
    line: Line,
    *,
    runs_dir: Path = Path("runs"),
    where: str | None = None,
    to: Path | None = None,
    format: Literal["html", "svg", "png", "pdf"] = "html",
    title: str | None = None,
    inspect: str | None = None,
    **filters: str,
) -> None:
    """Write the page, or the charts, and print where they are.

    Raises:
        UsageError: a wrong option, no run selected, or a file in the way that is not ours.
        RunError: a file cannot be written.
    """
    if format != "html" and (title or inspect not in (None, "none")):
        raise UsageError(f"format={format} writes charts alone: leave title and inspect out")
    runs = selected(line, runs_dir, where, filters)
    if runs.is_empty():
        raise UsageError(f"report: no runs in {runs_dir} as selected: leave out a filter")
    sections, unread = sections_of(runs)
    folder = to or Path(runs_dir, "report", *(
        ["charts"] if format != "html" else []))  # fmt: skip
    if format != "html":
        charts = [(section.task, chart) for section in sections for chart in section.charts]
        for task, chart in charts:
            name = re.sub(r"[^\w.]+", "-", f"{task} {chart.title}") + f".{format}"
            write_output(folder / name, draw_chart(chart, task, format))
        console().print(f"{folder}: {states(runs)}; {len(charts)} charts", soft_wrap=True)
        return
    path = folder / "index.html"
    if path.is_file() and MARK not in path.read_text("utf-8", errors="replace")[:2000]:
        raise UsageError(f"{path} was not written by pe-lab report: give another to=FOLDER")
    inspections = inspect_best(
        sections, [] if inspect == "none" else inspect.split(",") if inspect else None
    )
    tasks = ", ".join(section.task for section in sections)
    title = title or f"Positional encodings on {tasks or 'no task yet'}"
    html = render_report(sections, runs, inspections, unread, title, str(line)).encode()
    write_output(path, html)
    console().print(
        f"{path}: {states(runs)}; {len(html) / 1e6:.1f} MB, open it in a browser", soft_wrap=True
    )
