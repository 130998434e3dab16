"""Columns and parts of a suite: names of entries, what a command line runs, and the runs."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from program import Here, assert_refused, succeeded
from suites import suite_of_made, tiny_suite

from pe_lab.core.errors import UsageError
from pe_lab.results.leaderboard.entries import tuning_column
from pe_lab.results.leaderboard.rows import suite_rows
from pe_lab.results.reader import read_records
from pe_lab.results.suite import load_suite
from pe_lab.suite.work import Wanted, Work, work

BOTH = ("tuning", "score")
MORE: dict[str, Any] = {
    "columns": {"alone": {}, "wide": {"words": ["model.d_model=32"], "steps": 2, "cost": 3}},
    "overrides": {"alibi": ["pe.learned=true"]},
    "variants": {"alibi_published": ["pe=alibi"]},
    "parts": {
        1: [{"tasks": ["flipflop"], "entries": ["alibi", "lstm"], "columns": ["alone", "wide"]}],
        2: [
            {
                "tasks": ["flipflop"],
                "entries": ["alibi_published", "none"],
                "columns": ["alone", "wide"],
                "seeds": 1,
                "yours": False,
            },
            {
                "tasks": ["flipflop"],
                "entries": ["none"],
                "columns": ["alone"],
                "phases": ["longer"],
                "yours": False,
            },
        ],
    },
}


@pytest.fixture
def line(tmp_path: Path) -> list[str]:
    return tiny_suite(tmp_path, more=MORE)


def works(tmp_path: Path, **wanted: Any) -> list[Work]:
    return work(load_suite("tiny", tmp_path / "mine"), Wanted(**wanted))


@pytest.mark.parametrize(
    ("task", "base", "column", "seeds"),
    [
        ("flipflop", "rope", "conv", 8), ("needle", "rope", "alone", 5),
        ("sort", "shaw", "alone", 5), ("flipflop", "rope", "large", 5), ("text", "rope", "conv", 3),
        # As in parts 1 and 2.
        ("sort", "mine", "conv", 8), ("needle", "mine", "alone", 5),
    ],
)  # fmt: skip
def test_how_many_seeds_score_an_entry(task: str, base: str, column: str, seeds: int) -> None:
    assert load_suite("v2").score_seeds(task, base, column) == seeds


def test_the_columns_in_which_a_task_scores_an_entry() -> None:
    suite = load_suite("v2")
    assert suite.scored_in("sort", "mine") == ["mine", "mine+conv"]
    assert suite.scored_in("sort", "shaw") == ["shaw"]
    assert suite.scored_in("sort", "path_published") == ["path_published"]
    assert suite.scored_in("sort", "rope") == ["rope", "rope+conv", "rope+large", "rope+large_conv"]
    assert suite.scored_in("text", "mine") == []
    assert load_suite("v1").scored_in("cycle", "mine") == ["mine"]


@pytest.mark.usefixtures("line")
def test_entries_and_their_words(tmp_path: Path) -> None:
    suite = load_suite("tiny", tmp_path / "mine")
    assert suite.named("alibi", "wide") == "alibi+wide"
    assert suite.named("alibi_published", "wide") is None
    assert suite.split("alibi+wide") == ("alibi", "wide")
    # Plus signs of other names.
    assert suite.split("a+b") == ("a+b", "alone")
    assert "model.d_model=16" in suite.words("alibi")
    assert suite.words("alibi+wide")[-3:] == ("pe=alibi", "pe.learned=true", "model.d_model=32")
    assert "model.d_model=16" not in suite.words("alibi+wide")
    assert suite.words("alibi_published")[-1] == "pe=alibi"
    assert suite.words("lstm+wide") == (
        "model=lstm",
        "pe=none",
        "model.n_layers=1",
        "model.d_model=32",
    )
    steps = [word for word in suite.run_words("flipflop", "none+wide") if "steps" in word]
    assert steps == ["train.steps=6"]


@pytest.mark.usefixtures("line")
def test_parts_in_their_order(tmp_path: Path) -> None:
    first = Work("1", ["flipflop"], ["alibi", "alibi+wide", "lstm", "lstm+wide"], [*BOTH])
    second = Work("2", ["flipflop"], ["alibi_published", "none", "none+wide"], [*BOTH], 1)
    longer = Work("2", ["flipflop"], ["none"], ["longer"])
    assert works(tmp_path) == [first, second, longer]
    assert works(tmp_path, parts=[2]) == [second, longer]
    assert works(tmp_path, parts=[1], columns=["wide"], entries=["alibi"]) == [
        Work("1", ["flipflop"], ["alibi+wide"], [*BOTH])
    ]
    assert works(tmp_path, entries=["none+wide"])[0].entries == ["none+wide"]
    # Asked for, phases replace those that all groups have, and no others.
    more = works(tmp_path, entries=["none"], phases=["more_seeds"])
    assert more == [Work("2", ["flipflop"], ["none", "none+wide"], ["more_seeds"], 1)]
    # An encoding that is not of the suite is run as those of the groups that take it.
    assert works(tmp_path, entries=["mine"]) == [
        Work("1", ["flipflop"], ["mine", "mine+wide"], [*BOTH])
    ]
    with pytest.raises(UsageError, match="no part has these tasks, entries, columns and phases"):
        works(tmp_path, parts=[1], entries=["none"])


def test_parts_that_are_not_there(here: Here, line: list[str]) -> None:
    assert_refused(here(*line, "part=3"), "part=3: choose from 1, 2")
    assert_refused(here(*line, "columns=wid"), "columns=wid: did you mean wide?")
    assert_refused(here("suite", "v1", "part=2"), "part=2: ")
    said = "give phases=tuning,longer without part=, or leave it out"
    assert_refused(here(*line, "part=2", "phases=longer"), said)


def test_an_own_encoding_has_not_the_name_of_a_variant(
    here: Here, line: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine" / "pe" / "alibi_published.yaml"
    path.parent.mkdir()
    path.write_text("_target_: mine.Mine\n")
    said = "alibi_published is a variant of the suite tiny, which trains that and not this encoding"
    assert_refused(here(*line, "dry=true"), said)


@pytest.mark.extended
def test_runs_are_known_by_their_column(here: Here, line: list[str], tmp_path: Path) -> None:
    """Those of the wider column have twice the steps, and both belong to their entry."""
    ended = succeeded(here(*line, "dry=true"))
    assert "part" in ended.out
    succeeded(here(*line, "part=1", "pe=alibi"))
    succeeded(here(*line, "part=2", "pe=alibi_published"))
    suite = load_suite("tiny", tmp_path / "mine")
    rows = suite_rows(Path("runs"), suite).unique("run_id")
    counts = rows.group_by("entry", "phase", "steps").len().sort("entry", "phase").rows()
    assert counts == [
        ("alibi", "score", 3, 2),
        ("alibi", "tuning", 3, 4),
        ("alibi+wide", "score", 6, 2),
        ("alibi+wide", "tuning", 6, 4),
        ("alibi_published", "score", 3, 1),
        ("alibi_published", "tuning", 3, 4),
    ]
    assert "nothing is missing" in succeeded(here(*line, "part=1", "pe=alibi")).out
    tuned = tuning_column(read_records(Path("runs")), tmp_path / "mine")
    assert tuned.drop_nulls().to_list() == ["tiny"] * 12


SEARCH = {"start": [0.003, 0.006], "near_error": 1, "near_loss": 1000, "runs": 3}


def test_a_search_does_its_runs_round_by_round(here: Here, tmp_path: Path) -> None:
    line = tiny_suite(tmp_path)
    path = tmp_path / "mine" / "suite" / "tiny.yaml"
    content = yaml.safe_load(path.read_text())
    content["protocol"] |= {"search": SEARCH, "tuning_seeds": [1000, 1001]}
    path.write_text(yaml.safe_dump(content))
    dry = succeeded(here(*line, "pe=none", "dry=true")).out
    assert [int(row.split("│")[4]) for row in dry.splitlines() if "tuning │" in row] == [3]
    succeeded(here(*line, "pe=none"))
    rows = suite_rows(Path("runs"), load_suite("tiny", tmp_path / "mine")).unique("run_id")
    tuning = rows.filter(phase="tuning")
    # In three steps, a higher rate is better: to its half or double beyond the last one.
    assert tuning["lr"].max() == 0.024
    assert set(rows["phase"]) == {"tuning", "score"}
    near = tuning.group_by("lr").len()["len"]
    assert near.max() == 2
    assert "nothing is missing" in succeeded(here(*line, "pe=none")).out


def part(**values: Any) -> dict[str, Any]:
    group = {"tasks": ["flipflop"], "entries": ["rope"], "columns": ["alone"]}
    return {"parts": {1: [group | values]}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (part(tasks=["flip"]), "parts.1.0.tasks: flip is unknown: did you mean flipflop?"),
        (part(entries=["rpoe"]), "parts.1.0.entries: rpoe is unknown: did you mean rope?"),
        (part(columns=["conv"]), "parts.1.0.columns: conv is unknown: choose from alone"),
        (part(seeds=4), "parts.1.0.seeds: 4 is above protocol.seeds, 3: set it to that or less"),
        (part(phases=["tune"]), "parts.1.0.phases.0=tune is not allowed: did you mean tuning?"),
        ({"variants": {"rope": []}}, "variants.rope: rope is one of encodings too: rename it"),
        ({"overrides": {"rop": []}}, "overrides: rop is unknown: did you mean rope?"),
        ({"columns": {}}, "columns={} is not allowed: set it to 1 values or more"),
    ],
)
def test_columns_and_parts_that_are_not_right(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    assert said in refused(tmp_path, change)


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"start": [0.004]}, "protocol.search: start=[0.004] are not neighbours among"),
        ({"start": [0.001, 0.006]}, "protocol.search: start=[0.001, 0.006] are not neighbours"),
        ({"near_loss": 0.5}, "protocol.search.near_loss=0.5 is not allowed: set it to a value of"),
    ],
)
def test_searches_that_are_not_right(tmp_path: Path, search: dict[str, Any], said: str) -> None:
    folder = suite_of_made(tmp_path, search=SEARCH | search)
    with pytest.raises(UsageError) as error:
        load_suite("mine", folder)
    assert said in str(error.value)


def test_a_search_goes_through_rates_in_order(tmp_path: Path) -> None:
    folder = suite_of_made(tmp_path, search=SEARCH, rates=[0.003, 0.001, 0.006, 0.012])
    with pytest.raises(UsageError, match=r"write protocol\.rates in order"):
        load_suite("mine", folder)


def refused(tmp_path: Path, change: dict[str, Any]) -> str:
    path = suite_of_made(tmp_path) / "suite" / "mine.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    with pytest.raises(UsageError) as error:
        load_suite("mine", tmp_path)
    return str(error.value)
