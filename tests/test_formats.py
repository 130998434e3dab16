"""Tables on a terminal, as markdown and as LaTeX."""

import io

import pytest
from made import made
from program import Here
from rich.console import Console

from pe_lab.results.formats import Cell, Table, latex, markdown, plain, terminal

NASTY = r"a_b & 50% | *x* $y$ #1 {z} ~^\ <t> [u] `v`"


def test_words_are_escaped() -> None:
    table = Table(
        "T_1", ["a_b", "n"], 1, [[Cell(NASTY), Cell("1.0", True)]], closing=[[Cell("g"), Cell("")]]
    )
    assert latex(table).splitlines()[7] == (
        r"a\_b \& 50\% \textbar{} *x* \$y\$ \#1 \{z\} \textasciitilde{}\textasciicircum{}"
        r"\textbackslash{} \textless{}t\textgreater{} [u] `v` & \textbf{1.0} \\"
    )
    line = markdown(table).splitlines()[4]
    assert line == (r"| a\_b & 50% \| \*x\* $y$ #1 {z} \~^\\ \<t\> \[u\] \`v\` | **1.0** |")
    assert plain(table).splitlines()[2].endswith("1.0 *")
    row = latex(Table("t", ["pe.parts", "n"], 1, [[Cell("[a,b]"), Cell("1.0")]])).splitlines()[7]
    assert row == r"{}[a,b] & 1.0 \\"


# 46 columns for the words, 17 for each number, 2 for the star; 300 hold all in one line.
@pytest.mark.parametrize(
    ("width", "tables"), [(70, 7), (80, 4), (100, 3), (166, 2), (167, 1), (300, 1)]
)
def test_no_width_cuts_a_number_or_a_name(width: int, tables: int) -> None:
    names = ["encoding", "where they differ", "seeds", *(f"split_{n}" for n in range(7))]
    differs = "train.lr=0.003 model.d_model=128"
    numbers = [f"{n + 1}1.2 ± 2.5 ({n + 1}0.00..{n + 1}5.00)" for n in range(7)]
    row = [Cell("multiplicative"), Cell(differs), Cell("0,1,2"), *map(Cell, numbers[:-1])]
    row.append(Cell(numbers[-1], best=True))
    parts = terminal(Table("flipflop", names, 3, [row], closing=[row]), width)
    out = io.StringIO()
    Console(file=out, width=width).print(*parts, sep="\n")
    shown = out.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    words = [*numbers, *differs.split(), *names[3:]]
    assert all(whole in shown for word in words for whole in word.split(" ("))
    assert (numbers[0] in shown) == (width == 300)
    assert shown.count("multiplicative") == 2 * len(parts)
    assert shown.count("*") == 2
    assert len(parts) == tables
    assert shown.count("(continued)") == tables - 1


def test_many_rows_are_all_there(here: Here) -> None:
    for width in range(100, 170):
        made("a", **{"model.d_model": width})
    lines = here("results").out.splitlines()
    assert sum("d_model=" in line for line in lines) == 70
