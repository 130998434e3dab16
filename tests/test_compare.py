"""``pe-lab compare``: published numbers beside ours, and paired tests over shared seeds."""

import json
import re
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from made import errors_of, made, unfinished
from program import ROOT, Here, assert_has, assert_refused, csv_rows, succeeded

from pe_lab.cli.train import checked_jobs
from pe_lab.config.choices import choices
from pe_lab.config.schema import plain
from pe_lab.results.presentation.comparisons import comparison_tables
from pe_lab.results.published import Published, compared, published
from pe_lab.results.table import flat, read_runs

THEIRS = Published(
    source="S", where="table 1", task="flipflop", pe="rope", size={}, setting={"task.length": 64},
    split="sparse", metric="error", printed="20.0", error=0.2, low=0.1995, high=0.2005, seeds=3,
    reading=None, recipe="flipflop",
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()


def test_the_published_numbers_are_those_of_the_sources() -> None:
    numbers = published()
    found = {(n.where, n.pe, *n.size.values(), n.split): (n.error, n.printed) for n in numbers}
    assert found["arXiv 2405.18719, tables 2 and 7", "cope", 128, 4, 4, "sparse"] == (0.332, "33.2")
    assert found["arXiv 2405.18719, section 5.3", "cope", 1, "shorter"] == (0.04, "4.0")
    rambaud = "selective copy, 128 letters and 128 blanks, appendix B.2"
    assert found[rambaud, "rope", "dense"] == (0.52, "52 (accuracy .48)")
    assert found[rambaud, "tape", "sparse"] == (0.9, "90 (accuracy .10)")
    assert found["arXiv 2505.16381, one layer", "path", "sparse"] == (1e-6, "0.0001")
    assert len(found) == len(numbers)
    assert all(n.low <= n.error <= n.high and n.low >= 0 and n.high <= 1 for n in numbers)
    # 6.8 stands for 6.75 to 6.85, 0.1 for 0.05 to 0.15, 0 for 0 to 0.5.
    (row,) = [n for n in numbers if n.printed == "6.8"]
    assert (row.low, row.high) == pytest.approx((0.0675, 0.0685))
    path = next(n for n in numbers if n.pe == "path" and n.printed == "0")
    assert (path.low, path.high) == (0, 0.005)


def test_published_digits_are_as_printed() -> None:
    """An interval is half a unit of the last printed digit: 0.0 stands for 0 to 0.05 %."""
    found: dict[tuple[object, ...], tuple[str, float, float]] = {}
    for n in published():
        key = (n.recipe, n.pe, *n.size.values(), n.split)
        found[key] = n.printed, 100 * n.low, 100 * n.high
    for layers, heads in ((2, 4), (4, 2), (2, 2)):
        key = ("flipflop", "cope", 256, layers, heads, "in_domain")
        assert found[key] == ("0.0", 0, pytest.approx(0.05))
    for split in ("in_domain", "dense"):
        assert found["selective_copy", "cope", split] == ("0.0", 0, pytest.approx(0.05))
        assert found["selective_copy_rambaud", "cope", split][2] == pytest.approx(0.5)
    assert found["selective_copy", "rope", "dense"][:2] == ("100.0", pytest.approx(99.95))
    assert found["selective_copy", "cope", "sparse"][1:] == pytest.approx((0.0035, 0.0045))
    assert found["counting", "cope", 1, "longer"] == ("0.0", 0, pytest.approx(0.05))


def test_published_protocols_and_seeds_are_those_of_their_sources() -> None:
    """A run of Rambaud's task with another optimisation is one of another protocol."""
    numbers = published()
    stated = next(n for n in numbers if n.recipe == "selective_copy_rambaud").setting
    expected = {
        "train.lr": 2e-4, "train.weight_decay": 0.05, "train.batch_size": 64,
        "task.train_sequences": 100000, "model.n_layers": 2, "model.n_heads": 2,
    }  # fmt: skip
    assert expected.items() <= stated.items()
    # Three seeds at d 256, 4 layers, 4 heads of flip-flop, one in its other sizes.
    for n in (n for n in numbers if n.recipe == "flipflop"):
        assert n.seeds == (3 if tuple(n.size.values()) == (256, 4, 4) else 1)
    assert {n.seeds for n in numbers if n.recipe == "counting"} == {3}


@cache
def composed(recipe: str) -> dict[str, Any]:
    (job,) = checked_jobs([f"experiment=paper/{recipe}"])
    return plain(job)


def test_every_published_number_could_be_run() -> None:
    for number in published():
        if number.recipe is None:
            assert number.task == "text", "these are pe-lab extrapolate's"
            continue
        assert number.pe in choices("pe")
        config = composed(number.recipe)
        assert number.split in ("in_domain", *config["task"]["splits"])
        assert {*number.setting} <= {*flat(config), *config}, number
        for size in ("paper", "small"):
            recipe = ROOT / "conf/experiment" / size / f"{number.recipe}.yaml"
            assert number.pe in str(yaml.safe_load(recipe.read_text()))


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.19, 0.2, 0.22], "within ours"),
        ([0.24, 0.25, 0.26], "ours higher"),
        ([0.14, 0.15, 0.16], "ours lower"),
        ([0.2], "one seed: no verdict"),
        # No spread over seeds: the Wilson interval, here the error +- 0.01, decides.
        ([0.209, 0.209], "within ours"),
        ([0.2106, 0.2106], "ours higher"),
        # As rounded: 20.0 may be 20.05.
        ([0.2104, 0.2104], "within ours"),
        ([0.1894, 0.1894], "ours lower"),
        # Every seed is above.
        ([0.22, 0.26, 0.38], "ours higher"),
        # Between two clusters, at one of them, and beyond both.
        ([0.0, 0.0, 0.6], "two clusters: no verdict"),
        ([0.2, 0.2, 0.6], "two clusters: no verdict"),
        ([0.3, 0.3, 0.9], "ours higher"),
        ([0.0, 0.0, 0.1], "ours lower"),
    ],
)
def test_verdicts(values: list[float], verdict: str) -> None:
    errors_of("rope", values)
    (row,) = compared(read_runs(), [THEIRS]).rows(named=True)
    assert row["verdict"] == verdict
    assert (row["n"], row["differs"]) == (len(values), "")
    assert row["ours"] == pytest.approx(statistics.mean(values))
    assert (row["median"], row["values"]) == (statistics.median(values), sorted(values))
    assert row["k"] == sum(value <= row["threshold"] for value in values)
    assert row["range_low"] == pytest.approx(max(0, min(values) - 0.01))
    assert row["range_high"] == pytest.approx(max(values) + 0.01)


def test_what_differs_is_computed_and_named() -> None:
    errors_of("rope", [0.2, 0.2], **{"task.length": 32, "train.lr": 3e-4})
    stated = Published(**{**vars(THEIRS), "setting": {
        "task.length": 64, "train.lr": 0.0003, "train.schedule": "linear", "task.block": 5,
        "model.tied_embeddings": True,
    }})  # fmt: skip
    (row,) = compared(read_runs(), [stated]).rows(named=True)
    assert row["differs"] == (
        "task.length 32 for 64, train.schedule cosine for linear, task.block null for 5, "
        "model.tied_embeddings false for true"
    )
    assert row["verdict"] == "other protocol, within ours"


def test_the_nearest_setting_stands_beside_the_nearest_size() -> None:
    def size(width: int, layers: int) -> Published:
        keys = {"model.d_model": width, "model.n_layers": layers}
        return Published(**{**vars(THEIRS), "size": keys, "setting": {"task.length": 64, **keys}})

    numbers = [size(256, 4), size(128, 2), size(128, 4)]
    errors_of("rope", [0.1, 0.1])  # d 64, 2 layers: nearest to 128, 2
    errors_of("rope", [0.3], **{"model.d_model": 100})  # nearer to it
    errors_of("rope", [0.4], **{"model.d_model": 128, "model.n_layers": 4, "task.length": 9})
    found = compared(read_runs(), numbers).select("ours", "differs", "verdict").rows()
    assert found[0] == (None, "", "not run")
    assert found[1][:2] == (0.3, "model.d_model 100 for 128")
    assert found[2][:2] == (0.4, "task.length 9 for 64")
    errors_of("rope", [0.5], **{"model.d_model": 128})
    assert compared(read_runs(), numbers)["ours"].to_list() == [None, 0.5, 0.4]


def test_another_metric_and_a_split_that_was_too_long() -> None:
    made("rope", errors={"in_domain": 0.1, "sparse": None})
    in_domain = Published(**{**vars(THEIRS), "split": "in_domain", "metric": "error_seq"})
    rows = compared(read_runs(), [THEIRS, in_domain]).select("ours", "verdict").rows()
    assert rows == [(None, "not run"), (0.2, "one seed: no verdict")]


@pytest.mark.parametrize(("error", "verdict"), [(0.5, "within ours"), (0.52, "ours lower")])
def test_whole_sequences_have_the_interval_of_their_number(error: float, verdict: str) -> None:
    """2 of 10 sequences with an error: 0.057 to 0.510."""
    errors_of("rope", [0.1, 0.1])
    changes = {"metric": "error_seq", "error": error, "low": error, "high": error}
    (row,) = compared(read_runs(), [Published(**{**vars(THEIRS), **changes})]).rows(named=True)
    assert row["verdict"] == verdict
    assert (row["range_low"], row["range_high"]) == pytest.approx((0.0567, 0.5098), abs=1e-4)
    # No threshold is of whole sequences.
    assert (row["k"], row["p_low"], row["values"]) == (None, None, [0.2, 0.2])


def test_every_seed_beside_the_published_number(here: Here) -> None:
    errors_of("cope", [0.0, 0.22, 0.01])
    errors_of("rope", [n / 100 for n in range(10)])
    out = here("compare", "task=flipflop", "pe=cope,rope", "format=markdown").out
    assert "| seeds of ours, % | mean of ours, % |" in out
    assert "| 2/3‡ 1.00: 0.0 1.00 22.0 | 7.67 |" in out
    assert "| 3/10 4.50: 0.0..9.00 | 4.50 |" in out
    assert "| 10/10 0.0: 0.0..0.0 | 0.00 |" in out
    assert "‡: seeds in two clusters" in out
    assert "Threshold: 2 % (in\\_domain: 1 %)." in out


@pytest.mark.parametrize(
    ("values", "cell", "without_threshold"),
    [
        ([0.1], "10.0", "10.0"),
        ([0.02, 0.04], "1/2: 2.00 4.00", "2.00 4.00"),
        ([0.0, 0.1, 0.3, 0.5], "1/4‡ 20.0: 0.0 10.0 30.0 50.0", "median‡ 20.0: 0.0 10.0 30.0 50.0"),
        ([0.1] * 9, "0/9 10.0: 10.0..10.0", "median 10.0: 10.0..10.0"),
    ],
)
def test_the_median_is_of_three_or_more_seeds(
    values: list[float], cell: str, without_threshold: str
) -> None:
    errors_of("rope", values)
    table = compared(read_runs(), [THEIRS])
    for k, wanted in ((pl.col("k"), cell), (pl.lit(None, pl.Int64), without_threshold)):
        (shown,) = comparison_tables(table.with_columns(k=k))
        line = dict(zip(shown.columns, shown.rows[0], strict=True))
        assert line["seeds of ours, %"].text == wanted
        assert ("mean of ours, %" in line) == (len(values) > 1)


@pytest.mark.parametrize(
    ("values", "metric", "threshold"),
    [([0.1], "error", False), ([0.1, 0.1], "error", True), ([0.1, 0.1], "error_seq", False)],
)
def test_the_caption_is_of_what_the_table_has(
    values: list[float], metric: str, threshold: bool
) -> None:
    """One seed has no success rate, whole sequences have no threshold."""
    errors_of("rope", values)
    theirs = Published(**{**vars(THEIRS), "metric": metric})
    (table,) = comparison_tables(compared(read_runs(), [theirs]))
    assert table.caption.startswith("Verdict: ")
    assert ("Threshold: 2 %." in table.caption, "Threshold" in table.caption) == (threshold,) * 2


def test_the_tables_and_what_is_not_run(here: Here) -> None:
    errors_of("cope", [0.0, 0.1])
    unfinished("failed", "rope")
    out = here("compare", "task=flipflop", "pe=cope,rope,path").out
    line = next(line for line in out.splitlines() if "other protocol" in line and "cope" in line)
    assert re.search(r"d_model=128 n_layers=2 n_heads=4 .* 0.03 .* 0.00 .* 1, 2", line)
    assert_has(
        " ".join(out.split()),
        "Protocol, ours for theirs: task.length 64 for 512, train.steps 400 for 10000",
        "Assumed: the source has one number out of domain",
        "pe-lab -m experiment=paper/flipflop runs the published setting",
        "failed at step 3 of 9: what went wrong",
        "Yang 2025",
        "not run",
    )
    assert "counting" not in out
    everything = " ".join(here("compare").out.split())
    assert "pe-lab extrapolate task=text sets them beside ours" in everything
    assert not re.search("rerope|not run", everything), "a line, unless selected"
    assert "rerope" in here("compare", "task=text").out
    rows = csv_rows(here("compare", "format=csv").out)
    assert len(rows) == len(published())
    assert {row["pe"] for row in rows if row["ours"]} == {"cope"}
    (sparse,) = (
        r for r in rows if (r["pe"], r["split"], r["theirs"]) == ("cope", "sparse", "0.223")
    )
    seeds = {
        "n": "2", "k": "1", "p_generalises": "0.5", "median": "0.05", "values": "0.0 0.1",
    }  # fmt: skip
    assert seeds.items() <= sparse.items()
    assert float(sparse["range_high"]) == pytest.approx(0.11)
    content = json.loads(here("compare", "format=json", "pe=cope").out)
    assert {row["pe"] for row in content["rows"]} == {"cope"}
    assert (content["unfinished"], content["verdict"][:9]) == ([], "Verdict: ")
    for words, part in {
        "format=latex": r"\begin{tabular}",
        "format=markdown": "| cope |",
        "pe=alibi": "no published number matches pe=alibi",
    }.items():
        assert part in here("compare", words).out


def test_nothing_of_ours(here: Here) -> None:
    done = succeeded(here("compare"))
    assert "other protocol" not in done.out
    assert "pe-lab -m experiment=paper/counting" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a=cope"], "a and b go together"),
        (["a=cope", "b=cope"], "the same encoding"),
        (["format=pdf"], "format=pdf"),
        (["taks=flipflop"], "did you mean task"),
        (["runs_dir=nowhere"], "runs_dir=nowhere is not a folder"),
        (["--config-dir", "nowhere"], "--config-dir nowhere is not a folder"),
        (["where=pe"], "character 3"),
    ],
)
def test_a_wrong_word_is_one_sentence(here: Here, words: list[str], message: str) -> None:
    made("rope")
    assert_refused(here("compare", *words), message)
