"""Names as they are on the terminal, and output that is full, closed or in another encoding."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import errors_of, made, unfinished
from program import Here, assert_has, command, rows, start, state, succeeded, the_run, tiny
from rich.console import Console

from pe_lab.cli.main import main
from pe_lab.core.console import _Console
from pe_lab.core.errors import HeldError
from pe_lab.core.output import printable
from pe_lab.results.groups import grouped
from pe_lab.results.presentation.formats import Cell, Table, latex, markdown, plain, terminal
from pe_lab.results.table import read_runs
from pe_lab.store.run_folder import RunFolder

PROGRAM = [sys.executable, "-m", "pe_lab"]
LONG = ("train.steps=5000", "train.checkpoint_every=5000", "train.log_every=1")


def test_markup_in_a_folder_is_shown_as_it_is(here: Here, tmp_path: Path) -> None:
    ended = succeeded(here(*tiny("train.steps=2", "runs_dir='m[/b]x[y]'")))
    assert "written to  m[/b]x[y]/flipflop/none/seed0-" in ended.out
    (path,) = Path("m[/b]x[y]").glob("*/*/seed*/status.json")
    path.with_name("summary.json").unlink()
    error = "[red]x\x1b[31m\x9b2J\u202e"
    RunFolder(path.parent).set_status("failed", 1, 2, error)
    shown = here("results", "runs_dir=m[/b]x[y]").out
    assert "[red]x\\x1b[31m\\x9b2J\\u202e" in shown
    assert not set(shown) & set("\x1b\x9b\u202e")


def test_control_characters_are_escaped_in_cells_and_errors(here: Here) -> None:
    out = io.StringIO()
    _Console(file=out, force_terminal=False, markup=False).print("a\x1b]0;x\x07\tb\n[b]")
    assert out.getvalue() == "a\\x1b]0;x\\x07   b\n[b]\n"
    assert printable("\x00é€\n") == "\\x00é€\n"
    assert "\x1b" not in here("resu\x1b[31mlts").err


@pytest.mark.parametrize(
    ("words", "status"),
    [
        pytest.param(["list"], 1, marks=pytest.mark.extended),
        pytest.param(tiny("--cfg", "job"), 1, marks=pytest.mark.extended),
        (tiny("train.steps=30"), 0),
        pytest.param(["-m", *tiny("train.steps=2")], 0, marks=pytest.mark.extended),
    ],
)
def test_a_full_disk_for_the_output(tmp_path: Path, words: list[str], status: int) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*PROGRAM, *words], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.stderr == (
        "pe-lab: the output cannot be written (No space left on device): send it elsewhere\n"
    )
    assert ended.returncode == status
    if status == 0:
        assert state(the_run(tmp_path / "runs"))["state"] == "finished"


def test_closed_standard_streams(tmp_path: Path) -> None:
    words = tiny("train.steps=3")
    script = f"exec {' '.join([*PROGRAM, *words])} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", script], cwd=tmp_path).returncode == 0
    folder = the_run(tmp_path / "runs")
    assert state(folder)["state"] == "finished"
    assert all("error in %" not in path.read_text() for path in folder.glob("*.json*"))


@pytest.mark.parametrize("module", ["pe_lab.core.output", "numpy", "torch"])
def test_ctrl_c_amid_an_import_leaves_no_traceback(tmp_path: Path, module: str) -> None:
    program = tmp_path / "pe-lab"
    program.write_text(f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, *rest):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from pe_lab.cli.main import entry
entry()
""")
    words = [sys.executable, str(program), *tiny()]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_sighup_writes_a_checkpoint(tmp_path: Path) -> None:
    words = tiny(*LONG)
    run = start(*words, cwd=tmp_path)
    run.wait_for(lambda: list(tmp_path.glob("runs/*/*/*/metrics.jsonl")))
    folder = the_run(tmp_path / "runs")
    run.wait_for(lambda: len(rows(folder)) > 3)
    run.send(signal.SIGHUP)
    assert run.status == 128 + signal.SIGHUP
    assert state(folder)["state"] == "interrupted"
    assert state(folder)["step"] > 0
    assert (folder / "checkpoint.pt").exists()


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ignored_at_the_start_stays_ignored(
    tmp_path: Path, number: signal.Signals
) -> None:
    running = subprocess.Popen(
        [*PROGRAM, *tiny("train.steps=400", "train.log_every=1")], cwd=tmp_path,
        stdout=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN),
    )  # fmt: skip
    while not list(tmp_path.glob("runs/*/*/*/metrics.jsonl")):
        assert running.poll() is None
        os.sched_yield()
    running.send_signal(number)
    assert running.wait(120) == 0
    assert state(the_run(tmp_path / "runs"))["state"] == "finished"


@pytest.mark.extended
def test_a_locale_that_is_not_utf_8(tmp_path: Path) -> None:
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for words in (tiny("train.steps=2"), ["report"], ["inspect", "run=flipflop"]):
        ended = command(*words, cwd=tmp_path, env=env)
        assert (ended.returncode, ended.stderr) == (0, ""), words


def test_a_read_only_folder_shows_a_killed_run_as_killed(
    here: Here, disk: Callable[[str], Path]
) -> None:
    mounted = disk("8m")
    assert here(*tiny("train.steps=2", f"runs_dir={mounted}/runs")).status == 0
    folder = the_run(mounted / "runs")
    (folder / "summary.json").unlink()
    RunFolder(folder).set_status("running", 2, 2)
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    assert "killed" in here("results", f"runs_dir={mounted}/runs").out


def test_a_folder_without_a_status_is_held_by_another_process(here: Here, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs/flipflop/none/seed0-01234567")
    message = "is being written by another process"
    with folder.lock(), pytest.raises(HeldError, match=message), RunFolder(folder.path).lock():
        pass


def test_words_that_were_wrong(here: Here, tmp_path: Path) -> None:
    line = tiny("train.steps=2", "runs_dir='a,b'")
    assert "set it to a smaller whole number" in here(*line, "train.patience=1e30").err
    assert here(*line).status == 0
    (folder,) = (tmp_path / "a,b").glob("*/*/seed*")
    assert here("eval", f"run={folder}", "sequences=2", "runs_dir=a,b").status == 0
    lock = folder.with_name(f".{folder.name}.lock")
    (folder / "summary.json").unlink()
    RunFolder(folder).set_status("running", 2, 2)
    lock.unlink(missing_ok=True)
    assert "killed" in here("results", "runs_dir=a,b").out
    assert not lock.exists()


def test_a_tracker_that_starts_is_shown_on_a_terminal(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    terminal = _Console(file=out, force_terminal=True, markup=False)
    monkeypatch.setattr("pe_lab.core.console.console", lambda: terminal)
    assert here(*tiny("train.steps=2")).status == 0
    assert "starting wandb" in out.getvalue()


NASTY = r"a_b & 50% | *x* $y$ #1 {z} ~^\ <t> [u] `v`"


def test_words_are_escaped() -> None:
    table = Table(
        "T_1", ["a_b", "n"], 1, [[Cell(NASTY), Cell("1.0", True)]], closing=[[Cell("g"), Cell("")]]
    )
    assert latex(table).splitlines()[9] == (
        r"a\_b \& 50\% \textbar{} *x* \$y\$ \#1 \{z\} \textasciitilde{}\textasciicircum{}"
        r"\textbackslash{} \textless{}t\textgreater{} [u] `v` & \textbf{1.0} \\"
    )
    line = markdown(table).splitlines()[4]
    assert line == (r"| a\_b & 50% \| \*x\* $y$ #1 {z} \~^\\ \<t\> \[u] \`v\` | **1.0** |")
    assert plain(table).splitlines()[2].endswith("1.0 *")
    assert "| 1.0 [0.5, 1.2] |" in markdown(
        Table("t", ["n"], 0, [[Cell("1.0", detail="[0.5, 1.2]")]])
    )
    row = latex(Table("t", ["pe.parts", "n"], 1, [[Cell("[a,b]"), Cell("1.0")]])).splitlines()[9]
    assert row == r"{}[a,b] & 1.0 \\"


# Broken behind =, 35 columns for the words and 10 or 11 for each number; 300 hold all with details.
@pytest.mark.parametrize(
    ("width", "tables"), [(60, 4), (80, 2), (103, 2), (104, 1), (145, 1), (300, 1)]
)
def test_no_width_cuts_a_number_or_a_name(width: int, tables: int) -> None:
    names = ["encoding", "setting", "seeds", *(f"split_{n}" for n in range(7))]
    differs = "lr=0.003 positions=randomized"
    numbers = [f"{n + 1}1.2 ± 2.5" for n in range(7)]
    cells = [Cell(text, text == numbers[-1], f"[{text[0]}0.00, 5.00]") for text in numbers]
    row = [Cell("multiplicative"), Cell(differs), Cell("0,1,2"), *cells]
    parts = terminal(Table("flipflop", names, 3, [row], closing=[row]), width)
    out = io.StringIO()
    Console(file=out, width=width).print(*parts, sep="\n")
    shown = out.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    words = [*numbers, "lr=0.003", "positions=", "randomized", *names[3:]]
    tight = shown.replace(" ± ", "±")
    assert all(word.replace(" ± ", "±") in tight for word in words)
    assert ("[10.00, 5.00]" in shown) == (width == 300)
    assert shown.count("multiplicative") == 2 * len(parts)
    assert shown.count("*") == 2
    assert len(parts) == tables
    assert shown.count("(continued)") == tables - 1


def test_what_is_too_wide_loses_blanks_before_it_is_wrapped() -> None:
    row = [Cell("cope"), Cell("1.0 ± 0.2", best=True), Cell("2.0 ± 0.3")]
    (part,) = terminal(Table("t", ["encoding", "OOD mean", "sparse"], 1, [row]), 29)
    out = io.StringIO()
    Console(file=out, width=29).print(part)
    assert out.getvalue().splitlines()[-1].split() == ["cope", "1.0±0.2*", "2.0±0.3"]


def test_many_rows_are_all_there(here: Here) -> None:
    for width in range(100, 170):
        made("a", **{"model.d_model": width})
    lines = here("results").out.splitlines()
    assert sum("d_model=" in line for line in lines) == 70


def test_a_latex_table_fits_a_page_and_has_a_label() -> None:
    rows = [[Cell(f"pe_{n}"), Cell("1.0", n == 41)] for n in range(90)]
    shown = latex(Table("flipflop: error in %", ["encoding", "sparse"], 1, rows))
    parts = shown.split(r"\begin{table}")[1:]
    assert [part.count(r"pe\_") for part in parts] == [40, 40, 10]
    labels = [r"\label{tab:flipflop-error}", r"\label{tab:flipflop-error-2}"]
    assert all(label in part for label, part in zip(labels, parts, strict=False))
    for part in parts:
        # Scaled down to the text's width where wider, never up.
        assert r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%" in part
        assert part.count(r"\toprule") == part.count(r"\bottomrule") == 1
        assert part.count("{") - part.count(r"\{") == part.count("}") - part.count(r"\}")


quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


SHARES = st.integers(0, 1013).map(lambda wrong: wrong / 1013)


def test_machine_formats_are_clean(here: Here) -> None:
    errors_of("a", [0.1, 0.2])
    errors_of("a", [0.3, 0.4], **{"train.steps": 9})
    unfinished("failed", "b")
    for form in ("csv", "markdown", "latex"):
        done = succeeded(here("results", f"format={form}", "by=pe"))
        assert "failed" not in done.out
        assert "pools" not in done.out
        assert_has(done.err, "failed at step 3 of 9: what went wrong", "by=pe pools")
    done = here("results", "format=json", "by=pe")
    assert done.err == ""
    content = json.loads(done.out)
    assert [run["state"] for run in content["unfinished"]] == ["failed"]
    assert content["unfinished"][0]["message"] == "what went wrong"
    assert "train.steps" in content["notes"][0]
    assert {row["split"] for row in content["rows"]} == {"ood", "in_domain", "sparse"}


@settings(quick, max_examples=20)
@given(st.lists(st.lists(SHARES, min_size=1, max_size=3), min_size=1, max_size=3))
def test_csv_and_json_hold_the_very_numbers(values: list[list[float]]) -> None:
    with tempfile.TemporaryDirectory() as runs:
        for number, errors in enumerate(values):
            errors_of(f"e{number}", errors, runs_dir=runs)
        want = grouped(read_runs(runs))
        read = {}
        for form in ("csv", "json"):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                main(["results", f"runs_dir={runs}", f"format={form}"])
            read[form] = out.getvalue()
    kinds = ["mean", "sd", "median"]
    rows = pl.read_csv(io.StringIO(read["csv"]), schema_overrides=dict.fromkeys(kinds, pl.Float64))
    assert rows.select(kinds).rows() == want.select(kinds).rows()
    numbers = [tuple(row[kind] for kind in kinds) for row in json.loads(read["json"])["rows"]]
    assert numbers == want.select(kinds).rows()


@pytest.mark.parametrize("form", ["table", "csv", "json", "markdown", "latex"])
def test_nothing_to_show(here: Here, form: str) -> None:
    Path("runs").mkdir()
    message = "no runs in runs: pe-lab task=flipflop pe=cope makes one"
    done = here("results", f"format={form}")
    assert (done.status, message in done.out + done.err) == (0, True)
    unfinished("failed", "b")
    done = succeeded(here("results", f"format={form}"))
    assert "what went wrong" in done.out + done.err
    done = here("results", f"format={form}", "pe=alibi")
    assert "no runs in runs pe=alibi: leave out a filter" in done.out + done.err
    if form in ("csv", "markdown", "latex"):
        assert done.out == ""
