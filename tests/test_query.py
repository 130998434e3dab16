"""Filters and conditions over the table of runs."""

from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import made

from pe_lab.cli.results import show
from pe_lab.core.errors import UsageError
from pe_lab.core.options import call
from pe_lab.results.groups import named
from pe_lab.results.query import filter_key, filter_where
from pe_lab.results.table import read_runs

quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("where", "seeds"),
    [
        ("seed=1", [1]),
        ("seed == 1.0", [1]),
        ("seed!=1", [0, 2, 3]),
        ("seed < 1", [0]),
        ("seed<=1", [0, 1]),
        ("seed >1", [2, 3]),
        ("seed>=1e0", [1, 2, 3]),
        ("seed in (0, 2)", [0, 2]),
        ("seed not in (0,2)", [1, 3]),
        ("not seed=1 and seed<3", [0, 2]),
        ("not (seed=1 or seed=2)", [0, 3]),
        ("seed=0 or seed=1 and pe=none", [0]),
        ("(seed=0 or seed=1) and pe=rope", [0, 1]),
        ("sead=0", None),
        ("seed=9 and pe=none or seed=1", [1]),
        ("seed=0 AND pe=rope", [0]),
        ("pe.base = null", [3]),
        ("pe.base != null", [0, 1, 2]),
        ("pe.base <> null", [0, 1, 2]),
        ("pe.base=auto", [2]),
        ("pe.base=500", [1]),
        ("lr > 0.001", [0, 1, 2, 3]),
        ("pe.base != 500", [0, 2]),
        ("pe.name='two words'", [0, 1, 2, 3]),
        ('pe.name="two words"', [0, 1, 2, 3]),
        ("'seed'=1", [1]),
        ("model.tied_embeddings=false", [0, 1, 2, 3]),
        ("model.tied_embeddings=true", []),
        ("ood/sparse/error<0.2", [0, 1]),
        ("sparse<0.2", [0, 1]),
        ("sparse/error_seq<0.3", [0, 1]),
        ("ood/error<0.2", [0, 1]),
        ("ood<0.2 and in_domain=0", [0, 1]),
        ("pe.dashed-key=a-b.c", [0, 1, 2, 3]),
        ("train.lr=3e-3", [0, 1, 2, 3]),
        ("train.betas=[0.9, 0.999]", [0, 1, 2, 3]),
        ("train.betas=[0.9,0.999]", [0, 1, 2, 3]),
        ("train.betas=[0.9, 0.99]", []),
        ("train.betas != [0.9,0.999]", []),
    ],
)
def test_where(where: str, seeds: list[int] | None) -> None:
    for seed, base in enumerate(["5", 500, "auto", None]):
        keys = {"pe.base": base, "pe.name": "two words", "pe.dashed-key": "a-b.c"}
        made("rope", seed, errors={"in_domain": 0.0, "sparse": seed / 10}, **keys)
    if seeds is None:
        with pytest.raises(UsageError, match="none of the runs has a key sead: did you mean seed"):
            read_runs(where=where)
    else:
        assert read_runs(where=where)["seed"].to_list() == seeds


@quick
@given(st.text(max_size=30))
def test_where_refuses_in_a_sentence_or_understands(text: str) -> None:
    frame = pl.DataFrame({"n": [1], "pe": ["a"], "state": "finished", "setting": "a"})
    with suppress(UsageError):
        filter_where(frame, text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(
            ([f"where={where}"], "is no condition")
            for where in ("", "pe=", "pe=rope pe=cope", "(pe=rope")
        ),
        (["where=seed=abc"], "where='seed=abc': give a number in place of abc"),
        (["where=pe<rope"], "compares numbers"),
        (["where=train.stps=3"], "did you mean train.steps"),
        (["tas=flipflop"], "did you mean task"),
        (["ood/sprse=0"], "did you mean ood/sparse"),
        (["pe=ropee"], "did you mean rope?"),
        (["runs_dir=nowhere"], "is not a folder"),
    ],
)
def test_what_selects_nothing_is_refused(words: list[str], message: str) -> None:
    made("rope")
    with pytest.raises(UsageError) as refused:
        call("results", show, words)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def names(task: str = "flipflop") -> set[tuple[str, str]]:
    """The encodings and labels of a task's settings."""
    runs = read_runs()
    found = named(runs).labels
    return {(pe, found[s]) for pe, s in runs.filter(task=task).select("pe", "setting").rows()}


@pytest.mark.parametrize(
    "pattern", ["[kda,attention]", '["kda", "attention"]', "[x],[kda, attention]"]
)
def test_a_list_is_found_as_it_was_given(pattern: str) -> None:
    frame = pl.DataFrame(
        {"model.pattern": ['["kda", "attention"]', '["kda"]', None], "state": "", "setting": "a"}
    )
    assert filter_key(frame, "pattern", pattern).rows() == frame.rows()[:1]


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


def test_what_all_settings_of_a_task_share_is_named_once() -> None:
    for pe in ("rope", "cope"):
        made(pe, **{"train.steps": 1000, "model.d_model": 128, "task.length": 64})
    made("rope", **{"train.steps": 1000})
    assert names() == {("rope", "d_model=128"), ("cope", "d_model=128"), ("rope", "")}
    assert named(read_runs()).shared == {"flipflop": "steps=1000"}
    assert named(read_runs(where="d_model=128")).shared == {"flipflop": "d_model=128 steps=1000"}
