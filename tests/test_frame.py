"""The table of all runs: what it holds, what selects from it, and what is told of a wrong word."""

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import errors_of, made, unfinished
from program import Here

from pe_lab.cli.results import ResultsOptions
from pe_lab.common.errors import UsageError
from pe_lab.common.options import parse
from pe_lab.results.frame import breakdowns, by_split, curves, read_runs
from pe_lab.results.intervals import over_seeds
from pe_lab.results.labels import labels
from pe_lab.results.query import condition
from pe_lab.results.selection import selected
from pe_lab.store.run_id import identity

# Importing scipy or polars takes longer than a deadline.
quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_key_and_metric_is_a_column() -> None:
    run = made("rope", 3, **{"pe.base": 500, "pe.npos": None, "train.steps": 7})
    (row,) = read_runs().iter_rows(named=True)
    assert row["path"] == str(run.path)
    assert (row["state"], row["task"], row["pe"], row["seed"]) == (
        "finished",
        "flipflop",
        "rope",
        3,
    )
    assert (row["step"], row["steps"], row["train.steps"], row["pe.base"]) == (7, 7, 7, 500)
    assert (row["positions"], row["preset"]) == ("sequential", "flipflop")
    assert row["positions._target_"] == "pe_lab.pe.positions.Sequential"
    assert (row["in_domain/error"], row["params/total"]) == (0.25, 1000)
    assert row["pe.npos"] is None
    assert row["model.tied_embeddings"] is False
    assert row["train.betas"] == "[0.9, 0.999]"
    assert row["task.splits.sparse.p_ignore"] == 0.98
    assert row["splits"] == ["in_domain", "sparse"]
    summary = run.summary()
    assert summary is not None
    assert row["setting"] == identity({**summary["config"], "seed": 0})


def test_a_key_may_hold_another_kind_in_every_run() -> None:
    kinds = [(1, "1"), (2.5, "2.5"), (True, "true"), ("auto", "auto"), (None, None)]
    for seed, (value, _) in enumerate(kinds):
        made("rope", seed, **{"pe.base": value})
    made("t5", **{"pe.max": 2})
    made("t5", 1, **{"pe.max": 2.5})
    runs = read_runs()
    assert runs.filter(pe="rope").sort("seed")["pe.base"].to_list() == [text for _, text in kinds]
    assert runs.filter(pe="t5")["pe.max"].to_list() == [2.0, 2.5]
    assert read_runs(**{"pe.base": "1"})["seed"].to_list() == [0]
    assert read_runs(**{"pe.base": "true"})["seed"].to_list() == [2]


@pytest.mark.parametrize("layout", ["ours", "one line", "sorted", "unicode"])
def test_a_summary_may_be_laid_out_in_any_way(layout: str) -> None:
    runs = [made("rope", seed, errors={"in_domain": seed / 8}) for seed in (0, 1)]
    before = read_runs()
    for run in runs:
        path = run.path / "summary.json"
        summary = json.loads(path.read_text())
        summary["overrides"] = ['\n "by": {', '\n "config": {']
        ways = {"one line": {}, "sorted": {"indent": 1, "sort_keys": True}}
        path.write_text(json.dumps(summary, **ways.get(layout, {"indent": 1})))
    assert read_runs().select(before.columns).equals(before)
    assert before["setting"].n_unique() == 1
    assert before["in_domain/error"].to_list() == [0.0, 0.125]


def test_states() -> None:
    made("none")
    running = unfinished("running", "rope")
    unfinished("running", "cope")
    for state in ("interrupted", "failed", "finished"):
        unfinished(state, "t5", seed={"interrupted": 0, "failed": 1, "finished": 2}[state])
    Path("runs/flipflop/xpos/seed0-01234567").mkdir(parents=True)
    broken = made("fire").path / "summary.json"
    broken.write_text('{"task": 3}')
    made("fire", 1).set_aside()
    with running.lock():
        states = {(pe, seed): s for pe, seed, s in read_runs().select("pe", "seed", "state").rows()}
    assert states == {
        ("none", 0): "finished", ("rope", 0): "running", ("cope", 0): "killed",
        ("t5", 0): "interrupted", ("t5", 1): "failed", ("t5", 2): "killed",
        ("xpos", 0): "not begun", ("fire", 0): "broken",
    }  # fmt: skip
    told = dict(read_runs().select("pe", "message").filter(pl.col("message").is_not_null()).rows())
    assert told["t5"] == "what went wrong"
    assert str(broken) in told["fire"]


@pytest.mark.parametrize(
    "content",
    ["{}", "[]", "3", "{", "\0", '{"task": "a"}', "NaN", None],
)
def test_one_odd_summary_does_not_hide_the_others(content: str | None) -> None:
    made("none")
    path = made("rope").path / "summary.json"
    if content is None:
        summary = json.loads(path.read_text())
        content = json.dumps(summary | {"metrics": {"in_domain/error": "low"}})
    path.write_text(content)
    states = dict(read_runs().select("pe", "state").rows())
    assert states == {"none": "finished", "rope": "broken"}
    assert len(by_split(read_runs())) == 2


def test_an_odd_configuration_is_told() -> None:
    for number, content in enumerate(["", "[", "seed: 1", "\0"]):
        unfinished("failed", seed=number).write_text("config.yaml", content)
    assert read_runs()["state"].to_list() == ["broken"] * 4
    assert all("config.yaml" in told for told in read_runs()["message"])


def test_metrics_stay_with_their_runs() -> None:
    for number, pe in enumerate("abcd"):
        errors = {"in_domain": number / 8, **({"sparse": 0.5} if number % 2 else {})}
        made(pe, errors=errors)
    rows = read_runs().select("pe", "in_domain/error", "ood/sparse/error").rows()
    assert rows == [("a", 0.0, None), ("b", 0.125, 0.5), ("c", 0.25, None), ("d", 0.375, 0.5)]


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


def test_splits_curves_and_breakdowns() -> None:
    run = made("rope", errors={"in_domain": 0.25, "sparse": None})
    (run.path / "metrics.jsonl").write_text(
        '{"step": 1, "train/loss": 2}\n{"step": 2, "a": 3.5}\n{"st'
    )
    unfinished("failed", "cope")
    found = by_split(read_runs()).select("split", "place", "error", "n").rows()
    assert found == [("in_domain", "in_domain", 0.25, 100), ("sparse", "ood/sparse", None, None)]
    drawn = curves(read_runs())
    assert drawn.select("step", "train/loss", "a").rows() == [(1, 2.0, None), (2, None, 3.5)]
    columns = ("split", "kind", "bucket", "error", "loss", "n")
    assert breakdowns(read_runs()).select(columns).rows() == [
        ("in_domain", "length", "1", 0.25, None, 4)
    ]
    summary = json.loads((run.path / "summary.json").read_text())
    summary["by"]["in_domain"]["length"]["1"]["loss"] = 0.5
    (run.path / "summary.json").write_text(json.dumps(summary))
    assert breakdowns(read_runs())["loss"].to_list() == [0.5]


def test_no_runs_are_an_empty_table() -> None:
    Path("runs").mkdir()
    runs = read_runs()
    assert runs.is_empty()
    for table in (by_split(runs), curves(runs), breakdowns(runs)):
        assert table.is_empty()
    assert labels(runs) == {}


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
        ("pe.base=auto", [2]),
        ("pe.base=5e2", [1]),
        ("pe.base > 400", [1]),
        ("pe.base != 500", [0, 2, 3]),
        ("pe.name='two words'", [0, 1, 2, 3]),
        ('pe.name="two words"', [0, 1, 2, 3]),
        ("'seed'=1", [1]),
        ("model.tied_embeddings=false", [0, 1, 2, 3]),
        ("model.tied_embeddings=true", []),
        ("ood/sparse/error<0.2", [0, 1]),
        ("splits=sparse", [0, 1, 2, 3]),
        ("pe.dashed-key=a-b.c", [0, 1, 2, 3]),
        ("train.lr=3e-3", [0, 1, 2, 3]),
        ("train.betas=[0.9,0.999]", [0, 1, 2, 3]),
        ("train.betas=[0.9, 0.99]", []),
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


def test_what_is_not_known_yet_stays() -> None:
    made("none", errors={"in_domain": 0.5})
    unfinished("failed", seed=1, **{"train.steps": 9})
    Path("runs/flipflop/none/seed2-01234567").mkdir()
    assert read_runs(where="in_domain/error<0.1")["seed"].to_list() == [1, 2]
    assert read_runs(where="not in_domain/error<0.1")["seed"].to_list() == [0, 1, 2]
    assert read_runs(**{"train.steps": 400})["seed"].to_list() == [0, 2]
    assert read_runs(seed="0,1")["seed"].to_list() == [0, 1]


WORDS = st.from_regex(r"[a-z][a-z0-9_.-]{0,5}", fullmatch=True).filter(
    lambda w: w not in ("and", "or", "not", "in", "null", "nan", "inf", "infinity")
)


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> tuple[str, set[int]]:
    """A condition over the column n of 0..9, and the rows for which it holds."""
    kind = draw(st.sampled_from(["compare", "in", "not", "and", "or"] if depth else ["compare"]))
    space = draw(st.sampled_from(["", " ", "  "]))
    if kind == "compare":
        sign = draw(st.sampled_from(["=", "==", "!=", "<", "<=", ">", ">="]))
        value = draw(st.integers(-1, 10))
        written = draw(st.sampled_from([f"{value}", f"{value}.0", f"{value}e0"]))
        holds = {n for n in range(10) if eval(f"{n} {'==' if sign == '=' else sign} {value}")}
        return f"n{space}{sign}{space}{written}", holds
    if kind == "in":
        values = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
        return f"n in ({f',{space}'.join(map(str, values))})", set(values)
    if kind == "not":
        text, holds = draw(conditions(depth - 1))
        return f"not ({text})", set(range(10)) - holds
    (one, left), (two, right) = draw(conditions(depth - 1)), draw(conditions(depth - 1))
    return f"({one}) {kind}{space} ({two})", left & right if kind == "and" else left | right


@quick
@given(conditions())
def test_where_is_logic(case: tuple[str, set[int]]) -> None:
    text, holds = case
    frame = pl.DataFrame({"n": range(10), "state": "finished", "setting": "a"})
    assert set(frame.filter(condition(frame, text))["n"]) == holds


@quick
@given(st.text(max_size=30))
def test_where_refuses_in_a_sentence_or_understands(text: str) -> None:
    frame = pl.DataFrame({"n": [1], "pe": ["a"], "state": "finished", "setting": "a"})
    with suppress(UsageError):
        frame.filter(condition(frame, text))


@quick
@given(WORDS)
def test_where_keeps_words(word: str) -> None:
    frame = pl.DataFrame({"pe": [word, word + "x"], "state": "finished", "setting": "a"})
    for written in (word, f"'{word}'", f'"{word}"'):
        assert frame.filter(condition(frame, f"pe={written}"))["pe"].to_list() == [word]


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("", "where is empty"),
        ("pe=", "character 4: a value is missing"),
        ("pe", "character 3: after pe one of = == != < <= > >= in is missing"),
        ("pe=rope and", "character 12: a key is missing"),
        ("pe=rope or or", "character 12: a key is missing"),
        ("pe=rope pe=cope", "character 9: pe is out of place: join conditions by and, or"),
        ("(pe=rope", "character 9: a closing parenthesis is missing"),
        ("pe=rope)", r"character 8: \) is out of place"),
        ("pe in rope", r"character 7: in wants \(A, B\)"),
        ("pe in (rope", "a closing parenthesis is missing"),
        ("seed>nan", "> compares numbers, and seed>nan has none"),
        ("pe in ()", "character 8: a value is missing"),
        ("pe='rope", "character 4: ' is out of place"),
        (
            "train.stps=3",
            r"character 1: none of the runs has a key train.stps: did you mean",
        ),
        ("train.steps=abc", "train.steps holds numbers, and abc is none"),
        ("train.steps>abc", "> compares numbers"),
        ("pe<rope", "< compares numbers"),
        ("train.steps='400'", "train.steps holds numbers, and '400', in quotes, is none"),
        ("train.steps>'400'", "> compares numbers, and train.steps>'400' has none"),
        ("model.tied_embeddings=1", "model.tied_embeddings is true or false, not 1"),
        ("pe=rope & seed=1", "character 9"),
    ],
)
def test_where_tells_the_place(where: str, told: str) -> None:
    made("rope")
    with pytest.raises(UsageError, match=told):
        read_runs(where=where)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["tas=flipflop"], "results tas=flipflop: did you mean task"),
        (["train.stepz=3"], "none of the runs has a key train.stepz: did you mean train.steps"),
        (["ood/spars/error=0"], "ood/spars/error"),
        (["train.steps=many"], "train.steps=many: train.steps holds numbers, and many is none"),
        (["seed="], "seed= names no value"),
        (["pe=a", "pe=b"], "pe is given twice"),
        (["runs_dir=nowhere"], "runs_dir=nowhere is no folder"),
        (["pe"], "give key=value"),
    ],
)
def test_words_that_select(words: list[str], told: str) -> None:
    made("rope")
    with pytest.raises(UsageError) as refused:
        selected(parse(ResultsOptions, words))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_filters_and_the_commands_own_keys() -> None:
    made("rope", 0)
    made("rope", 1, runs_dir="other")
    options = parse(ResultsOptions, ["by=pe", "seed=1", "runs_dir=other"])
    assert selected(options)["seed"].to_list() == [1]
    assert (options.by, options.runs_dir, options.filters) == (["pe"], "other", ["seed=1"])


@quick
@given(st.lists(st.integers(0, 1013).map(lambda n: n / 1013), min_size=1, max_size=8))
def test_an_interval_holds_its_mean(values: list[float]) -> None:
    spread = over_seeds(values)
    assert spread["n"] == len(values)
    assert min(values) - 1e-12 <= spread["mean"] <= max(values) + 1e-12
    if len(values) == 1:
        assert [spread[name] for name in ("sd", "low", "high")] == [None] * 3
    else:
        assert spread["low"] <= spread["mean"] <= spread["high"]


def test_an_interval_is_students() -> None:
    from scipy import stats

    values = [0.1, 0.4, 0.25, 0.3]
    spread = over_seeds(values)
    low, high = stats.t.interval(0.95, 3, stats.tmean(values), stats.sem(values))
    assert (spread["low"], spread["high"]) == pytest.approx((low, high), rel=1e-12)
    assert spread["sd"] == pytest.approx(stats.tstd(values), rel=1e-12)
    # By hand: t_{0.975, 1} = 12.7062, sd of 0 and 1 = 1/sqrt(2), so the half width is 6.3531.
    assert over_seeds([0, 1])["high"] == pytest.approx(0.5 + 6.3531, abs=1e-4)
    assert over_seeds([])["mean"] is None


def test_reading_needs_no_torch(here: Here) -> None:
    import subprocess
    import sys

    made("rope")
    code = (
        "import sys; from pe_lab.cli.main import main; main(['results']); main(['compare']);"
        "assert not {'torch', 'hydra', 'wandb'} & sys.modules.keys(), 'heavy'"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    shutil.rmtree("runs")


def test_a_copy_of_a_run_is_not_a_second_seed(here: Here) -> None:
    errors_of("a", [0.1, 0.2])
    shutil.copytree("runs/flipflop/a", "runs/flipflop/a.bak")
    Path("runs/flipflop/linked").symlink_to("a", target_is_directory=True)
    runs = read_runs()
    assert runs["state"].to_list() == ["finished"] * 2 + ["broken"] * 4
    assert all(
        re.fullmatch(r"runs/flipflop/[a-z.]+/(seed.-\w+) is runs/flipflop/a/\1 again, .*", told)
        for told in runs["message"].drop_nulls()
    )
    assert here("results").out.count("counted once") == 4


def test_odd_files_are_told_and_hide_nothing(here: Here) -> None:
    made("a")
    crlf = made("b").path / "summary.json"
    crlf.write_bytes(crlf.read_bytes().replace(b"\n", b"\r\n"))
    for seed in (2, 3, 2**63):
        Path(f"runs/flipflop/c/seed{seed}-01234567").mkdir(parents=True)
    Path("runs/flipflop/c/seed2-01234567/summary.json").mkdir()
    odd = {"state": 5, "step": "x", "steps": None}
    Path("runs/flipflop/c/seed3-01234567/status.json").write_text(json.dumps(odd))
    runs = read_runs()
    assert runs["state"].to_list() == ["finished"] * 2 + ["broken"] * 3
    assert runs["message"].to_list()[2:] == [
        "runs/flipflop/c/seed2-01234567 cannot be read (Is a directory): make it readable",
        "runs/flipflop/c/seed3-01234567/status.json is no status of a run: put back a copy or "
        "remove the run's folder",
        f"runs/flipflop/c/seed{2**63}-01234567: a seed must be below 2^63; remove this folder",
    ]
    assert here("results").status == 0


def test_large_numbers_are_kept() -> None:
    made("a", **{"eval.every": 10**20})
    made("a", 1, **{"eval.every": 5})
    assert read_runs(**{"eval.every": 10**20})["seed"].to_list() == [0]
    made("b", **{"pe.npos": 10**20})
    assert read_runs()["pe.npos"].to_list() == [None, None, 1e20]
