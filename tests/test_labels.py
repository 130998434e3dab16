"""What settings are called in tables."""

from pathlib import Path

import pytest
from made import made

from pe_lab.results.frame import read_runs
from pe_lab.results.labels import labels


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_parts_of_a_combination() -> None:
    parts = [{"pe": "rope", "_target_": "x", "base": 5}, {"pe": "alibi", "_target_": "y"}]
    made("combined", **{"pe.parts": parts})
    made("combined", **{"pe.parts": [{**parts[0], "base": 6}, parts[1]]})
    made("combined", **{"pe.parts": parts[::-1]})
    runs = read_runs()
    assert sorted(runs["pe.parts"]) == ["[alibi,rope]", "[rope,alibi]", "[rope,alibi]"]
    assert sorted(labels(runs).values()) == [
        "pe.parts=[alibi,rope]",
        "pe.parts=[rope,alibi] pe.parts.0.base=5",
        "pe.parts=[rope,alibi] pe.parts.0.base=6",
    ]
    assert len(read_runs(**{"pe.parts": "[rope,alibi]"})) == 2
    assert len(read_runs(where="pe.parts=[alibi,rope]")) == 1


def test_labels_tell_settings_apart_and_nothing_else() -> None:
    made("rope", 0, **{"pe.base": 1})
    made("rope", 1, **{"pe.base": 1})
    made("rope", 0, **{"pe.base": 2, "train.log_every": 5, "train.patience": 9, "threads": 2})
    made("cope", 0, **{"pe.npos": 3})
    made("t5", 0)
    made("t5", 0, **{"train.lr": 0.1})
    made("t5", 0, contents={"sparse": "abc"})
    made("t5", 0, **{"task.splits.sparse.p_ignore": 0.5})
    made("t5", 0, task="counting", **{"task._target_": "pe_lab.tasks.counting.Counting"})
    runs = read_runs()
    told = {
        (task, pe, s): labels(runs)[s]
        for task, pe, s in runs.select("task", "pe", "setting").rows()
    }
    by_pe: dict[str, set[str]] = {}
    for (_, pe, _), label in told.items():
        by_pe.setdefault(pe, set()).add(label)
    assert by_pe["rope"] == {"pe.base=1 train.lr=0.003", "pe.base=2 train.lr=0.003"}
    assert by_pe["cope"] == {"train.lr=0.003"}
    assert {
        "train.lr=0.1",
        "train.lr=0.003 contents.sparse=abc",
        "task.splits.sparse.p_ignore=0.5 train.lr=0.003",
    } <= by_pe["t5"]
