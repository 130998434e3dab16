"""``pe-lab results``: the numbers in the tables, the marks, the formats and the words."""

import contextlib
import csv
import io
import json
import re
import statistics
import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import errors_of, made, unfinished
from program import Here, tiny
from rich.console import Console

from pe_lab.cli.main import main
from pe_lab.common.errors import UsageError
from pe_lab.results.aggregate import grouped, pooled
from pe_lab.results.formats import Cell, Table, latex, markdown, plain, terminal
from pe_lab.results.frame import read_runs
from pe_lab.store.run_folder import RunFolder

# Importing scipy takes longer than a deadline.
quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

SHARES = st.integers(0, 1013).map(lambda wrong: wrong / 1013)


def table(out: str, title: str) -> dict[str, dict[str, str]]:
    """The rows of the table below this title, by their first cells."""
    lines = out[out.index(title) :].splitlines()[1:]
    end = next(i for i, line in enumerate(lines) if line.startswith("└"))
    cells = [[cell.strip() for cell in re.split("[┃│]", line)[1:-1]] for line in lines[:end]]
    rows: list[list[str]] = []
    for row in filter(None, cells):
        if rows and not row[0]:
            # A row's second line.
            row = [f"{above} {below}".strip() for above, below in zip(rows.pop(), row, strict=True)]
        rows.append(row)
    header, *body = rows
    return {row[0]: dict(zip(header, row, strict=True)) for row in body}


def test_real_runs(here: Here, tmp_path: Path) -> None:
    short = ("train.steps=3", "train.warmup=1")
    assert here("-m", *tiny(*short, "seed=0,1,2", "pe=none,rope")).status == 0
    assert here(*tiny(*short, "task=brackets")).status == 0
    failing = tiny("train.lr=1e30", "train.clip=null", "seed=7")
    assert here(*failing).status == 1
    assert here(*tiny("seed=8")).status == 0
    folder = next((tmp_path / "runs").glob("flipflop/none/seed8-*"))
    (folder / "summary.json").unlink()

    out = here("results", "splits=in_domain,sparse,dense_x4").out
    found = table(out, "flipflop: error in %")
    for pe in ("none", "rope"):
        assert (found[pe]["n"], found[pe]["seeds"]) == ("3", "0,1,2")
        files = (tmp_path / "runs" / "flipflop" / pe).glob("seed[012]-*/summary.json")
        metrics = [json.loads(path.read_text())["metrics"] for path in files]
        assert len(metrics) == 3
        for split in ("in_domain", "sparse", "dense_x4"):
            key = "in_domain" if split == "in_domain" else f"ood/{split}"
            errors = [100 * m[f"{key}/error"] for m in metrics]
            mean, sd, low, high = map(float, re.findall(r"\d+\.\d+", found[pe][split]))
            half = 4.30265 * statistics.stdev(errors) / 3**0.5
            # As many digits as are printed.
            assert mean == pytest.approx(statistics.mean(errors), abs=0.051)
            assert sd == pytest.approx(statistics.stdev(errors), abs=0.051)
            assert low == pytest.approx(max(0, statistics.mean(errors) - half), abs=0.051)
            assert high == pytest.approx(min(100, statistics.mean(errors) + half), abs=0.051)
            guess = 100 * metrics[0][f"{key}/guess"]
            assert float(found["(guessing)"][split]) == pytest.approx(guess, abs=0.051)
    assert "±" not in table(out, "brackets: error in %")["none"]["in_domain"]
    assert re.search(r"none/seed7-\w{8}  failed at step \d+ of 20: .*not finite", out)
    assert re.search(r"none/seed8-\w{8}  killed at step 20 of 20", out)

    assert "rope" not in here("results", "pe=none").out
    only = here("results", "task=brackets,counting", f"runs_dir={tmp_path / 'runs'}").out
    assert "flipflop:" not in only
    assert "brackets:" in only
    assert "no runs in runs task=counting" in here("results", "task=counting").out


def test_every_setting_is_told_from_the_others(here: Here) -> None:
    row = "w1i0r1w0i1i0r0i1"
    Path("rows.txt").write_text(f"{row}r0\n" * 40)
    changes = [
        [],
        ["train.lr=0.01"],
        ["task.splits.sparse.p_ignore=0.5"],
        ["task.files={sparse: rows.txt}"],
    ]
    for words in changes:
        assert here(*tiny(*words)).status == 0
    Path("rows.txt").write_text(f"{row}i0r0\n" * 40)
    assert here(*tiny(*changes[-1])).status == 0
    rows = list(csv.DictReader(io.StringIO(here("results", "format=csv", "splits=sparse").out)))
    told = [row["differs"] for row in rows]
    assert len(told) == len(set(told)) == 5
    assert {row["seeds"] for row in rows} == {"0"}
    assert any("task.splits.sparse.p_ignore=0.5" in words for words in told)
    assert "where they differ" in here("results").out


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", "{}"),
        ("summary.json", "[]"),
        ("summary.json", "{"),
        ("status.json", '{"state": "running"}'),
        ("status.json", "\0"),
    ],
)
def test_one_odd_file_does_not_hide_the_other_runs(here: Here, name: str, content: str) -> None:
    made()
    odd = Path("runs/flipflop/rope/seed0-01234567")
    odd.mkdir(parents=True)
    (odd / name).write_text(content)
    done = here("results")
    assert done.status == 0, done.err
    assert "in_domain" in done.out
    assert f"{odd}/{name}" in done.out


def test_a_killed_run_is_told_from_a_running_one(here: Here) -> None:
    folder = RunFolder(Path("runs/flipflop/rope/seed0-01234567"))
    folder.make()
    folder.set_status("running", 3, 9)
    with folder.lock():
        assert f"{folder.path}  running at step 3 of 9" in here("results").out
    assert f"{folder.path}  killed at step 3 of 9" in here("results").out
    made()
    folder.set_aside()
    assert "seed0-01234567" not in here("results").out


def best(**rows: list[float]) -> set[str]:
    """The encodings that are marked, of these with their errors by seed."""
    for pe, values in rows.items():
        errors_of(pe, values)
    runs = grouped(read_runs(), splits=["sparse"])
    return set(runs.filter("best")["pe"])


@pytest.mark.parametrize(
    ("rows", "marked"),
    [
        # t_{0.975, 2} sd / sqrt 3 = 2.484 sd: 0.1 +- 0.0248 against 0.2 +- 0.0248.
        ({"a": [0.09, 0.1, 0.11], "b": [0.19, 0.2, 0.21]}, {"a"}),
        # 0.1 +- 0.0248 against 0.14 +- 0.0248: they overlap.
        ({"a": [0.09, 0.1, 0.11], "b": [0.13, 0.14, 0.15]}, set()),
        ({"a": [0.09, 0.1, 0.11], "b": [0.19, 0.2, 0.21], "c": [0.12, 0.1, 0.11]}, set()),
        ({"a": [0.1], "b": [0.2, 0.21]}, set()),
        ({"a": [0.1, 0.1], "b": [0.2]}, {"a"}),
        ({"a": [0.09, 0.1, 0.11], "b": [0.12]}, set()),
        ({"a": [0.1, 0.1]}, set()),
        ({"a": [0, 0], "b": [0, 0], "c": [0.5, 0.51]}, {"a", "b"}),
        ({"a": [0, 0], "b": [0, 0]}, set()),
        ({"a": [0.1, 0.3], "b": [0.2, 0.2], "c": [0.9, 0.9]}, set()),
        ({"a": [0, 0], "b": [0], "c": [0.5, 0.51]}, set()),
        # Equal means, 0.2, of seeds that differ: not the same result.
        ({"a": [0.19, 0.21], "b": [0.2, 0.2], "c": [0.9, 0.9]}, set()),
    ],
)
def test_best_is_marked_where_the_interval_allows(
    here: Here, rows: dict[str, list[float]], marked: set[str]
) -> None:
    assert best(**rows) == marked


def test_best_is_among_what_was_measured_on_the_same_data(here: Here) -> None:
    errors_of("a", [0.1, 0.1])
    errors_of("b", [0.5, 0.5], **{"task.length": 128})
    assert not grouped(read_runs(), splits=["sparse"])["best"].any()
    errors_of("b", [0.5, 0.5])
    assert grouped(read_runs(), splits=["sparse"]).filter("best")["pe"].to_list() == ["a"]


def test_no_best_among_pooled_settings(here: Here) -> None:
    for steps in (400, 800):
        errors_of("a", [0.1, 0.1], **{"train.steps": steps})
    errors_of("b", [0.5, 0.5])
    assert not grouped(read_runs(), ["pe"], splits=["sparse"])["best"].any()
    chosen = read_runs(**{"train.steps": 400})
    assert grouped(chosen, ["pe"], splits=["sparse"])["best"].any()


def test_the_mark_in_every_format(here: Here) -> None:
    errors_of("some_pe", [0.1, 0.1])
    errors_of("other", [0.5, 0.51])
    words = ("results", "splits=sparse", "spread=sd")
    assert "10.0 ± 0.0 *" in here(*words).out
    assert "*: the lowest mean" in here(*words).out
    assert r"| some\_pe | 2 | 0,1 | **10.0 ± 0.0** |" in here(*words, "format=markdown").out
    shown = here(*words, "format=latex").out
    assert r"some\_pe & 2 & 0,1 & \textbf{10.0 $\pm$ 0.0} \\" in shown
    assert r"other & 2 & 0,1 & 50.5 $\pm$ 0.7 \\" in shown
    assert (
        r"\caption{flipflop: error in \%. Mean $\pm$ standard deviation over seeds. Bold:" in shown
    )
    rows = list(csv.DictReader(io.StringIO(here(*words, "format=csv").out)))
    assert {row["pe"]: row["best"] for row in rows} == {"some_pe": "true", "other": "false"}
    assert "lowest" not in here(*words, "pe=other").out


def test_what_a_group_pools_is_told(here: Here) -> None:
    for steps in (400, 800):
        errors_of("a", [0.1, 0.3], **{"train.steps": steps})
        errors_of("b", [0.2, 0.4], **{"train.steps": steps, "pe.npos": steps})
    runs = read_runs()
    assert pooled(runs, ["pe"]) == {"train.steps": [400, 800], "pe.npos": [400, 800]}
    assert pooled(runs, ["train.steps"]) == {"pe": ["a", "b"]}
    assert pooled(runs, ["pe", "train.steps"]) == {}
    assert pooled(runs, ["pe", "setting"]) == {}
    row = grouped(runs, ["pe"], splits=["sparse"]).row(0, named=True)
    assert (row["n"], row["seeds"], row["settings"]) == (4, [0, 1], 2)
    assert row["mean"] == pytest.approx(0.2)
    out = here("results", "by=pe").out
    assert "by=pe pools runs that differ in train.steps (400, 800)" in out
    assert "over runs" in out
    assert "pools" not in here("results", "by=pe,train.steps").out
    assert "pools" not in here("results").out


def test_tasks_are_never_pooled(here: Here) -> None:
    errors_of("a", [0.1, 0.2])
    errors_of("a", [0.5, 0.6], task="counting")
    rows = grouped(read_runs(), ["pe"], splits=["sparse"]).select("task", "mean").rows()
    assert dict(rows) == pytest.approx({"flipflop": 0.15, "counting": 0.55})


def test_splits_metric_sort_and_spread(here: Here) -> None:
    for pe, value in (("a", 0.2), ("b", 0.1), ("c", 0.3)):
        made(pe, errors={"in_domain": 0.05, "sparse": value, "dense": None if pe == "a" else value})
    out = here("results").out
    assert table(out, "flipflop")["a"]["dense"] == "n/a"
    assert list(table(out, "flipflop")) == ["encoding", "a", "b", "c", "(guessing)"][1:]
    assert list(table(here("results", "sort=sparse").out, "flip"))[:3] == ["b", "a", "c"]
    assert list(table(here("results", "sort=-sparse").out, "flip"))[:3] == ["c", "a", "b"]
    assert list(table(here("results", "sort=dense").out, "flip"))[:3] == ["b", "c", "a"]
    assert list(table(here("results", "sort=-dense").out, "flip"))[:3] == ["c", "b", "a"]
    assert list(table(here("results", "sort=-pe").out, "flip"))[:3] == ["c", "b", "a"]
    some = table(here("results", "splits=dense,in_domain").out, "flip")["b"]
    assert list(some) == ["encoding", "n", "seeds", "dense", "in_domain"]
    assert table(here("results", "metric=loss").out, "flipflop: loss")["a"]["sparse"] == "0.500"
    wide = table(here("results", "metric=error_seq").out, "flipflop: error_seq in %")
    assert wide["a"]["sparse"] == "40.0"
    assert "(guessing)" not in wide
    made("a", 1, errors={"in_domain": 0.05, "sparse": 0.4, "dense": None})
    for spread, told in (("sd", "30.0 ± 14.1"), ("interval", "30.0 (0.0..100.0)")):
        assert table(here("results", f"spread={spread}").out, "flip")["a"]["sparse"] == told


def test_a_loss_that_is_not_finite_is_not_left_out(here: Here) -> None:
    made("a", 0, loss=0.5)
    made("a", 1, loss=None)
    row = grouped(read_runs(), metric="loss", splits=["sparse"]).row(0, named=True)
    assert (row["n"], row["not_finite"], row["mean"], row["best"]) == (1, 1, None, False)
    assert table(here("results", "metric=loss").out, "flip")["a"]["sparse"] == "not finite"


def test_machine_formats_are_clean(here: Here) -> None:
    errors_of("a", [0.1, 0.2])
    errors_of("a", [0.3, 0.4], **{"train.steps": 9})
    unfinished("failed", "b")
    for form in ("csv", "markdown", "latex"):
        done = here("results", f"format={form}", "by=pe")
        assert done.status == 0
        assert "failed" not in done.out
        assert "pools" not in done.out
        assert "failed at step 3 of 9: what went wrong" in done.err
        assert "by=pe pools" in done.err
    done = here("results", "format=json", "by=pe")
    assert done.err == ""
    content = json.loads(done.out)
    assert [run["state"] for run in content["unfinished"]] == ["failed"]
    assert content["unfinished"][0]["message"] == "what went wrong"
    assert "train.steps" in content["notes"][0]
    assert {row["split"] for row in content["rows"]} == {"in_domain", "sparse"}


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
    kinds = ["mean", "sd", "low", "high"]
    rows = pl.read_csv(io.StringIO(read["csv"]), schema_overrides=dict.fromkeys(kinds, pl.Float64))
    assert rows.select(kinds).rows() == want.select(kinds).rows()
    told = [tuple(row[kind] for kind in kinds) for row in json.loads(read["json"])["rows"]]
    assert told == want.select(kinds).rows()


@pytest.mark.parametrize("form", ["table", "csv", "json", "markdown", "latex"])
def test_nothing_to_show(here: Here, form: str) -> None:
    Path("runs").mkdir()
    told = "no runs in runs: pe-lab task=flipflop pe=cope makes one"
    done = here("results", f"format={form}")
    assert (done.status, told in done.out + done.err) == (0, True)
    unfinished("failed", "b")
    done = here("results", f"format={form}")
    assert done.status == 0
    assert "what went wrong" in done.out + done.err
    done = here("results", f"format={form}", "pe=a")
    assert "no runs in runs pe=a" in done.out + done.err
    if form in ("csv", "markdown", "latex"):
        assert done.out == ""


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("by=pee", "by=pee: none of the runs has a key pee: did you mean pe?"),
        ("by=", "by=: an entry is empty"),
        ("by=in_domain/error", "in_domain/error is measured"),
        ("splits=sparze", "splits=sparze: did you mean sparse?"),
        ("metric=eror", "metric=eror: did you mean error?"),
        ("sort=sparce", "sort=sparce: did you mean sparse?"),
        ("format=cvs", "format=cvs: did you mean csv?"),
        ("spread=se", "spread=se: did you mean"),
        ("were=pe", "did you mean where"),
        ("where=pe=", "character 4"),
        ("runs_dir=nowhere", "runs_dir=nowhere is no folder"),
    ],
)
def test_a_wrong_word_is_one_sentence(here: Here, word: str, told: str) -> None:
    made()
    done = here("results", word)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert told in done.err


def test_a_notebook_has_the_same_numbers(here: Here) -> None:
    errors_of("a", [0.1, 0.2, 0.6])
    row = grouped(read_runs(), splits=["sparse"]).row(0, named=True)
    # Mean 0.3, sd sqrt(0.07); t_{0.975, 2} = 4.302653.
    assert row["mean"] == pytest.approx(0.3)
    assert row["sd"] == pytest.approx(0.07**0.5)
    assert row["high"] == pytest.approx(0.3 + 4.302653 * (0.07 / 3) ** 0.5, rel=1e-6)
    with pytest.raises(UsageError, match="did you mean"):
        grouped(read_runs(), metric="eror")


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


def test_what_only_an_unfinished_run_has_is_not_told(here: Here) -> None:
    errors_of("a", [0.1, 0.2])
    errors_of("a", [0.1, 0.2], **{"model.d_model": 32, "train.stop_below": 0.1})
    unfinished("failed", "a", 9, **{"train.steps": 9})
    rows = json.loads(here("results", "format=json", "splits=sparse").out)["rows"]
    assert {row["differs"] for row in rows} == {
        "model.d_model=64 train.stop_below=null",
        "model.d_model=32 train.stop_below=0.1 train.patience=3 eval.every=100",
    }


def test_many_rows_are_all_there(here: Here) -> None:
    for width in range(70):
        made("a", **{"model.d_model": width})
    lines = here("results").out.splitlines()
    assert sum("model.d_model=" in line for line in lines) == 70
