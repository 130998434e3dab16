"""What settings are called in tables."""

from pathlib import Path

import pytest
from edited import edit_summary
from made import made

from pe_lab.results.frame import read_runs
from pe_lab.results.labels import aliases, labels, named


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names(task: str = "flipflop") -> set[tuple[str, str]]:
    """The encodings and labels of a task's settings."""
    runs = read_runs()
    found = labels(runs)
    return {(pe, found[s]) for pe, s in runs.filter(task=task).select("pe", "setting").rows()}


def test_parts_of_a_combination() -> None:
    parts = [{"pe": "rope", "_target_": "x", "base": 5}, {"pe": "alibi", "_target_": "y"}]
    made("combined", **{"pe.parts": parts})
    made("combined", **{"pe.parts": [{**parts[0], "base": 10000}, parts[1]]})
    made("combined", **{"pe.parts": parts[::-1]})
    made("combined", **{"pe.parts": [{"pe": "cope", "_target_": "x"}, parts[0] | {"base": 10000}]})
    assert sorted(read_runs()["pe.parts"])[0] == "[alibi,rope]"
    assert names() == {
        ("combined", label)
        for label in (
            "parts=[alibi,rope] parts.1.base=5",
            "parts=[rope,alibi] parts.0.base=5",
            "parts=[rope,alibi]",
            "",
        )
    }
    assert len(read_runs(**{"pe.parts": "[rope,alibi]"})) == 2
    assert len(read_runs(where="pe.parts=[alibi,rope]")) == 1


def test_a_row_names_only_what_departs_from_preset_and_defaults() -> None:
    made("rope", 0)
    made("rope", 1, **{"train.log_every": 5, "train.patience": 9, "threads": 2})
    made("rope", 0, **{"pe.base": 500.0, "train.lr": 0.01})
    made("rope", 0, **{"model.window": 16, "pe.window": 3})
    made("t5", 0, **{"train.lr": 6e-3})  # the rate of conf/preset/rate/flipflop_t5.yaml
    made("t5", 0)
    made("cope", 0, **{"pe.npos": 16})
    made("t5", 0, contents={"sparse": "abc"})
    made("t5", 0, **{"task.splits.sparse.p_ignore": 0.5})
    made("t5", 0, task="counting", **{"train.lr": 1e-3, "train.steps": 2000})
    assert names() == {
        ("rope", ""),
        ("rope", "base=500 lr=0.01"),
        ("rope", "pe.window=3 model.window=16"),
        ("t5", ""),
        ("t5", "lr=0.003"),
        ("cope", "npos=16"),
        ("t5", "lr=0.003 contents.sparse=abc"),
        ("t5", "splits.sparse.p_ignore=0.5 lr=0.003"),
    }


def test_what_null_stands_for_is_no_departure() -> None:
    folder = made("cope", 0, **{"pe.npos": 65}).path
    edit_summary(folder, lambda summary: summary.update(null_keys=["pe.npos"]))
    made("cope", 0, **{"pe.npos": 16})
    assert names() == {("cope", ""), ("cope", "npos=16")}


def test_what_all_settings_of_a_task_share_is_named_once() -> None:
    for pe in ("rope", "cope"):
        made(pe, **{"train.steps": 1000, "model.d_model": 128, "task.length": 64})
    made("rope", **{"train.steps": 1000})
    assert names() == {("rope", "d_model=128"), ("cope", "d_model=128"), ("rope", "")}
    assert named(read_runs()).shared == {"flipflop": "steps=1000"}
    assert named(read_runs(where="d_model=128")).shared == {"flipflop": "d_model=128 steps=1000"}


def test_an_encoding_of_the_users_is_compared_among_its_runs() -> None:
    for width in (3, 5):
        made("mine", **{"pe.width": width, "pe.same": 1})
    assert names() == {("mine", "width=3"), ("mine", "width=5")}


def test_long_labels_have_an_alias_and_a_legend_of_two_lines() -> None:
    long = {f"s{n}": f"positions=randomized window=16 lr=0.00{n} d_model=128" for n in range(9)}
    shown, legend = aliases({"short": "steps=1000", **long})
    assert shown["short"] == "steps=1000"
    assert (shown["s0"], shown["s8"]) == ("[1]", long["s8"])
    assert legend.startswith(f"[1] {long['s0']}  [2] ")
    assert len(legend) <= 2 * 119
