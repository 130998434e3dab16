"""Tables on a terminal, as markdown and as LaTeX."""

import io

import pytest
from made import made
from program import Here
from rich.console import Console

from pe_lab.results.presentation.formats import Cell, Table, latex, markdown, plain, terminal

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
