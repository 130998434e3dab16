"""What runs and sweeps are called in wandb, and what is shown of a run there."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from offline_wandb import tracked
from program import checked_jobs, tiny

from pe_lab.config.schema import to_dict
from pe_lab.experiment.tracking import add_mean_ood, closing_row, closing_tables
from pe_lab.experiment.wandb import WandbConfig, init_arguments
from pe_lab.store.run_id import is_operational
from pe_lab.sweeps.sweep import sweep_name, swept_keys

TODAY = date.today().isoformat()


def test_a_sweeps_name_tells_what_it_runs_and_what_it_varies(tmp_path: Path) -> None:
    jobs = [["task=flipflop", f"pe={pe}", f"seed={n}"] for pe in ("cope", "rope") for n in range(3)]
    assert swept_keys(jobs) == ["pe", "seed"]
    for line, keys, begin in (
        (["task=flipflop", "pe=cope,rope"], ["pe", "seed"], f"flipflop--pe+seed--{TODAY}--"),
        (["experiment=paper/flipflop"], ["pe"], f"paper-flipflop--pe--{TODAY}--"),
        (["task=flipflop,counting"], ["task"], "sweep--task--"),
        (["task=flipflop"], [], "flipflop--one--"),
    ):
        assert sweep_name(line, keys, tmp_path).startswith(begin)


def test_the_same_line_has_the_same_name_on_another_day(tmp_path: Path) -> None:
    words = ["task=flipflop", "pe=cope,rope"]
    first = sweep_name(words, ["pe"], tmp_path)
    earlier = first.replace(TODAY, "2026-01-31")
    (tmp_path / earlier).mkdir()
    again = [*reversed(words), "hydra/launcher=joblib", "threads=2", "tracker.wandb.mode=online"]
    assert sweep_name(again, ["pe"], tmp_path) == earlier
    assert sweep_name([*words, "train.steps=7"], ["pe"], tmp_path) != earlier


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("seed=1", False),
        ("train.lr=1", False),
        ("+experiment=x", False),
        ("train.log_every=5", True),
        ("~debug", True),
        ("hydra.launcher.n_jobs=2", True),
        ("hydra/launcher=joblib", True),
        ("tracker.wandb.mode=online", True),
    ],
)
def test_which_words_change_no_number(word: str, expected: bool) -> None:
    assert is_operational(word) is expected


def called(*words: str, sweep: str | None = None, run_id: str = "id") -> dict[str, Any]:
    (config,) = checked_jobs(tiny(*words))
    run = tracked(Path("run"), *words, sweep=sweep, run_id=run_id, config=to_dict(config))
    return init_arguments(WandbConfig(**config.tracker["wandb"]), run)


SWEEP = f"flipflop--pe+seed+positions--{TODAY}--0123abcd"


@pytest.mark.parametrize(
    ("sweep", "words", "name", "tags", "setting"),
    [
        (
            None,
            (
                "task=flipflop",
                "seed=3",
                "pe.base=500",
                "threads=2",
                "tracker.wandb.tags=[mine,rope]",
            ),
            "rope-seed3 task=flipflop pe.base=500",
            ["mine", "rope", "flipflop", "1L-d16"],
            "rope pe.base=500",
        ),
        (
            SWEEP,
            ("positions=randomized",),
            "rope-seed0 positions=randomized",
            ["flipflop", "rope", "1L-d16", "randomized"],
            "rope positions=randomized",
        ),
    ],
)
def test_a_run_is_named_by_encoding_seed_and_overrides(
    sweep: str | None, words: tuple[str, ...], name: str, tags: list[str], setting: str
) -> None:
    arguments = called("pe=rope", *words, sweep=sweep)
    expected = {"name": name, "group": sweep, "job_type": "rope", "tags": tags}
    assert {key: arguments[key] for key in expected} == expected
    assert arguments["config"]["setting"] == setting


def test_a_variable_of_wandb_holds_unless_the_line_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ("task=flipflop", "pe=rope")
    names = {
        "mode": "MODE", "project": "PROJECT", "entity": "ENTITY", "name": "NAME",
        "group": "RUN_GROUP", "notes": "NOTES",
    }  # fmt: skip
    chosen = {key: "online" if key == "mode" else f"my {key}" for key in names}
    for key, value in chosen.items():
        monkeypatch.setenv(f"WANDB_{names[key]}", value)
    monkeypatch.setenv("WANDB_TAGS", "a,b")
    (config,) = checked_jobs(words)
    assert config.tracker["wandb"].items() >= {**chosen, "tags": ["a", "b"]}.items()
    line = [f"tracker.wandb.{key}={value}" for key, value in {**chosen, "mode": "offline"}.items()]
    monkeypatch.setenv("WANDB_MODE", "disabled")
    (config,) = checked_jobs([*words, *line, "tracker.wandb.tags=[c]"])
    assert (config.tracker["wandb"]["mode"], config.tracker["wandb"]["tags"]) == ("offline", ["c"])


def test_a_name_tells_two_settings_apart_also_those_of_two_sweeps() -> None:
    sweep = f"flipflop--pe+seed--{TODAY}--0123abcd"
    long = "task.splits.sparse.p_ignore=0." + "9" * 150
    lines = [
        [],
        ["train.steps=7"],
        ["task=counting", "task.n_vars=3"],
        ["task.splits.sparse.p_ignore=0.9"],
        ["task.splits.dense.p_ignore=0.9"],
        ["task.splits.dense.p_ignore=0.9", "task.splits.sparse.p_ignore=0.8"],
        ["task.splits.dense.p_ignore=0.8", "task.splits.sparse.p_ignore=0.9"],
        [long],
    ]
    names = [called("pe=rope", *line, sweep=sweep)["name"] for line in lines]
    assert len(set(names)) == len(lines)
    assert max(map(len, names)) == 128


def test_runs_of_two_sweeps_are_one_setting_only_if_they_differ_in_the_seed_alone() -> None:
    sweep = f"flipflop--pe+seed--{TODAY}--0123abcd"
    words = ("task=flipflop", "pe=rope", "model.d_model=32", "threads=2")

    def setting(*more: str) -> str:
        return str(called(*words, *more, sweep=sweep)["config"]["setting"])

    assert setting("seed=1") == setting("seed=2") == "rope model.d_model=32"
    more = ("train.steps=7", "task.splits.sparse.p_ignore=0.9", "task.splits.dense.p_ignore=0.9")
    assert len({setting(), *map(setting, more)}) == 4


SUMMARY: dict[str, Any] = {
    "steps": 30,
    "splits": {"in_domain": "in_domain", "a": "ood/a", "b": "ood/b", "far": None},
    "metrics": {
        **{"in_domain/error": 0.1, "in_domain/n": 9, "in_domain/guess": 0.5},
        **{"ood/a/error": 0.2, "ood/b/error": 0.6, "ood/b/loss": None, "params/total": 7},
    },
    "by": {
        "in_domain": {"length": {"1": {"error": 0.0, "n": 1}, "33-64": {"error": 0.5, "n": 8}}},
        "a": {"length": {"65-128": {"error": 0.2, "n": 5}}, "distance": {}},
    },
}


def test_the_mean_out_of_domain_error_goes_with_every_row_that_has_all_errors() -> None:
    """As in the tables of ``results``: another mean under the same name would be compared."""
    splits = ["in_domain", "a", "b"]
    row = {"step": 1, "ood/a/error": 0.2, "ood/b/error": 0.4, "ood/b/error_low": 0.0}
    assert add_mean_ood(row, splits)["ood/error"] == pytest.approx(0.3)
    for row in ({"in_domain/error": 0.5}, {"ood/a/error": None, "ood/b/error": 0.4}):
        assert add_mean_ood(row, splits) == row
    row, numbers = closing_row(SUMMARY)
    assert "ood/error" not in row.keys() | numbers.keys()


def test_what_closes_a_run() -> None:
    splits = {split: place for split, place in SUMMARY["splits"].items() if place}
    row, numbers = closing_row({**SUMMARY, "splits": splits})
    assert row == {
        **{"step": 30, "in_domain/error": 0.1, "ood/a/error": 0.2, "ood/b/error": 0.6},
        **{"ood/error": 0.4},
    }
    assert {"params/total": 7, "in_domain/guess": 0.5}.items() <= numbers.items()
    assert "ood/b/loss" not in numbers
    tables = closing_tables(SUMMARY)
    first, *_, last = tables["splits"][1]
    assert first == ["in_domain", 0.1, None, None, None, None, 9, 0.5]
    assert last == ["far", *[None] * 7]
    assert tables["lengths"][1] == [
        ["in_domain", 1, 0.0, 1],
        ["in_domain", 64, 0.5, 8],
        ["a", 128, 0.2, 5],
    ]
