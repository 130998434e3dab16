"""Tables: text of any width, markdown, LaTeX, csv and json."""

import io
import json

import polars as pl
import pytest

from pe_lab.core.console import percent
from pe_lab.results.format import Table, print_tables

NASTY = r"a_b & 50% | *x* $y$ #1 {z} ~^\ <t> [u] `v`"


def test_words_stand_left_numbers_right_and_the_best_has_a_mark() -> None:
    errors = [{"error": 0.25, "best": False}, {"error": 0.0004, "best": True}]
    columns = {"pe": ["rope", "cope"], "n": [8, None], "unseen": [1, 2], "sparse": errors}
    frame = pl.DataFrame(columns, strict=False)
    formats = {"pe": str, "n": str, "sparse": lambda cell: percent(cell["error"])}
    table = Table(frame, formats, "flipflop: error in %", ("Note.",), {"pe": "encoding"})
    assert table.text(80).splitlines() == [
        "flipflop: error in %",
        "encoding  n  sparse",
        "───────────────────",
        "rope      8    25.0",
        "cope      -  0.04 *",
        "Note.",
    ]
    assert table.markdown().splitlines()[2:6] == [
        "| encoding | n | sparse |",
        "| --- | ---: | ---: |",
        "| rope | 8 | 25.0 |",
        "| cope | - | **0.04** |",
    ]
    shown = table.latex()
    assert r"{}cope & - & \textbf{0.04} \\" in shown
    assert r"\label{tab:flipflop-error}" in shown
    assert shown.count("{") - shown.count(r"\{") == shown.count("}") - shown.count(r"\}")
    assert frame.to_dicts()[0] == {
        "pe": "rope", "n": 8, "unseen": 1, "sparse": {"error": 0.25, "best": False},
    }  # fmt: skip


@pytest.mark.parametrize(("width", "parts"), [(200, 1), (60, 3), (30, 7), (10, 7)])
def test_a_table_that_is_too_wide_goes_on_below(width: int, parts: int) -> None:
    numbers = {f"split_{n}": [f"{n + 1}1.2 ± 2.5"] for n in range(7)}
    long = "positions=randomized window=16 lr=0.003 d_model=128"
    frame = pl.DataFrame({"pe": ["rope"], "setting": [long]})
    frame = frame.with_columns(pl.lit([values[0]]).alias(n) for n, values in numbers.items())
    formats = {"pe": str, "setting": str, **dict.fromkeys(numbers, lambda value: value[0])}
    shown = Table(frame, formats).text(width)
    assert shown.count("rope") == parts
    assert all(shown.count(text) == 1 for (text,) in numbers.values())
    assert shown.count(long) == 1
    assert (f"[1] {long}" in shown) == (width < 200)


def test_signs_of_markdown_and_latex_are_escaped() -> None:
    table = Table(pl.DataFrame({"a_b": [NASTY, "[a,b]"], "n": [1.0, 2.0]}))
    assert table.latex().splitlines()[9:11] == [
        r"{}a\_b \& 50\% \textbar{} *x* \$y\$ \#1 \{z\} \textasciitilde{}\textasciicircum{}"
        r"\textbackslash{} \textless{}t\textgreater{} [u] `v` & 1.0 \\",
        r"{}[a,b] & 2.0 \\",
    ]
    line = table.markdown().splitlines()[2]
    assert line == r"| a\_b & 50% \| \*x\* $y$ #1 {z} \~^\\ \<t\> \[u] \`v\` | 1.0 |"


def test_csv_and_json_hold_exact_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    frame = pl.DataFrame({"mean": [1 / 3, None], "values": [[0.1, 1e-7], []]})
    print_tables("csv", [Table(frame)], notes=["a note"])
    printed = capsys.readouterr()
    assert printed.err == "a note\n"
    rows = pl.read_csv(io.StringIO(printed.out))
    assert rows["mean"].to_list() == [1 / 3, None]
    assert [float(value) for value in rows["values"][0].split()] == [0.1, 1e-7]
    print_tables("json", [], frame, ["a note"], {"metric": "error"})
    assert json.loads(capsys.readouterr().out) == {
        "metric": "error", "rows": frame.to_dicts(), "notes": ["a note"],
    }  # fmt: skip


def test_a_note_of_all_tables_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    frame = pl.DataFrame({"x": [1]})
    print_tables("table", [Table(frame, notes=("all", "first")), Table(frame, notes=("all",))])
    assert capsys.readouterr().out == "x\n─\n1\nfirst\n\nx\n─\n1\nall\n"
    print_tables("table", [], frame, ["nothing"])
    assert capsys.readouterr().out == "nothing\n"
