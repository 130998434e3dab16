"""``pe-lab plan``: a claim and its test, written down before the runs that decide it."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from made import config, made
from program import Here, assert_refused

from pe_lab.common.errors import DamagedError, UsageError
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.notes import closing_notes
from pe_lab.results.leaderboard.rows import suite_rows
from pe_lab.results.leaderboard.scores import scores
from pe_lab.results.plan_runs import planned_by
from pe_lab.results.plan_tests import (
    NOT_ENOUGH,
    NOT_SUPPORTED,
    SUPPORTED,
    evaluate,
    p_value,
    result_table,
    verdict,
)
from pe_lab.results.plans import (
    Plan,
    least_p,
    planned,
    planned_note,
    plans_in,
    read_plan,
    started,
    write_plan,
)
from pe_lab.results.suite import Suite, load_suite, task_digest

SUITE = load_suite("v1")
PLAN = Plan(
    hypothesis="path tracks parity beyond its length",
    suite=SUITE.version,
    encodings=("path", "rope"),
    tasks={"parity": {"long_x2": 0.05, "long_x4": 0.05}},
    seeds=tuple(range(8)),
    test="fisher",
    level=0.05,
    written="2026-11-22T17:00:00.500000+00:00",
    git_revision=None,
)
LINE = ("plan", "pe=path,rope", "tasks=parity", "hypothesis=path tracks parity")
RUN = {
    "suite": PLAN.suite, "task": "parity", "entry": "path", "phase": "score", "seed": 3,
    "seed_init": 3,
}  # fmt: skip
BEFORE, AFTER = PLAN.time - 1, PLAN.time + 1


def written(here: Here, *words: str) -> tuple[Path, dict[str, Any]]:
    done = here(*LINE, *words)
    assert done.status == 0, done.err
    path = Path(re.findall("written +(.*)", done.out)[0])
    return path, yaml.safe_load(path.read_text("utf-8"))


def test_a_plan_says_what_is_claimed_of_what_and_how_it_is_decided(here: Here) -> None:
    path, content = written(here)
    assert path.parent == Path("runs/plans")
    assert content["hypothesis"] == "path tracks parity"
    assert content["suite"] == f"v1-{SUITE.digest}"
    assert content["encodings"] == ["path", "rope"]
    assert content["tasks"] == {"parity": SUITE.tasks["parity"].generalises}
    assert content["seeds"] == list(range(8))
    assert (content["test"], content["level"]) == ("fisher", 0.05)
    age = datetime.now().timestamp() - datetime.fromisoformat(content["written"]).timestamp()
    assert 0 <= age < 60
    assert read_plan(path).digest == content["digest"]
    assert plans_in(path.parent) == [read_plan(path)]


def test_splits_threshold_seeds_and_a_file_can_be_chosen(here: Here) -> None:
    words = ("splits=in_domain,long_x8", "threshold=0.01", "test=mann_whitney", "level=0.01")
    path, content = written(here, *words, "seeds=5", "first_seed=100", "to=mine/plan.yaml")
    assert path == Path("mine/plan.yaml")
    assert content["tasks"] == {"parity": {"in_domain": 0.01, "long_x8": 0.01}}
    assert content["seeds"] == list(range(100, 105))
    assert (content["test"], content["level"]) == ("mann_whitney", 0.01)


def test_what_is_printed(here: Here) -> None:
    out = here(*LINE, "to=plan.yaml").out
    assert "pe-lab suite v1 pe=path,rope tasks=parity" in out
    # As a sum over all outcomes with scipy's fisher_exact, one-sided, has it too.
    assert "8 seeds a side tell P(generalises) 0.9 from 0.2 or less at level 0.05" in out
    assert "with a power of 80 %, in one of 3 tests; all 3 must support" in out
    assert "look for plans in runs/plans/*.yaml" in out
    assert "look for plans" not in here(*LINE, "splits=long_x2").out


def test_an_encoding_of_the_users(here: Here) -> None:
    Path("mine/pe").mkdir(parents=True)
    Path("mine/pe/decay.yaml").write_text("_target_: decay.Decay")
    words = ("pe=decay,rope", "tasks=parity", "hypothesis=decay tracks parity")
    assert_refused(here("plan", *words), "pe=decay")
    done = here("plan", *words, "--config-dir", "mine")
    assert "pe-lab suite v1 --config-dir mine pe=decay,rope tasks=parity" in done.out


def test_a_plan_is_not_written_over(here: Here) -> None:
    path, _ = written(here, "to=plan.yaml")
    before = path.read_bytes()
    assert_refused(here(*LINE, "to=plan.yaml"), "to=plan.yaml exists", "another name")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (LINE[:3], ["hypothesis="]),
        (("plan", "pe=path", LINE[3]), ["pe=A,B"]),
        (("plan", "pe=path,rop", LINE[3]), ["pe=rop", "rope"]),
        (("plan", "pe=path,rope", "tasks=parit", LINE[3]), ["tasks=parit", "parity"]),
        ((*LINE, "splits=sparse"), ["splits=sparse", "long_x2"]),
        (("plan", "pe=path,rope", "tasks=parity,flipflop", LINE[3], "splits=sparse"),
         ["tasks=parity", "long_x8"]),
        ((*LINE, "seeds=2"), ["seeds=2", "level=0.05", "3 or more"]),
        ((*LINE, "seeds=0"), ["seeds=0"]),
        ((*LINE, "test=t"), ["test=t", "mann_whitney"]),
        ((*LINE, "level=0"), ["level=0"]),
        ((*LINE, "threshold=2"), ["threshold=2"]),
        ((*LINE, "suite=v0"), ["unknown suite v0"]),
        ((*LINE, "format=json"), ["format", "leave it out"]),
        (("plan", "check=a.yaml", "result=b.yaml"), ["check=FILE or result=FILE"]),
        (("plan", "check=a.yaml", "seeds=8"), ["check=a.yaml", "leave out seeds"]),
        (("plan", "check=a.yaml"), ["a.yaml cannot be read"]),
    ],
)  # fmt: skip
def test_what_is_refused(here: Here, words: tuple[str, ...], parts: list[str]) -> None:
    assert_refused(here(*words), *parts)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hypothesis", "rope does"), ("encodings", ["rope", "path"]), ("seeds", [0, 1]),
        ("tasks", {"parity": {"long_x2": 0.5}}), ("test", "mann_whitney"), ("level", 0.5),
        ("written", "2026-11-01T00:00:00+00:00"), ("suite", "v1-00000000"), ("git_revision", "a"),
        ("digest", "0" * 64),
    ],
)  # fmt: skip
def test_a_changed_plan_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, value: Any
) -> None:
    path = tmp_path / "plan.yaml"
    write_plan(PLAN, path)
    assert read_plan(path) == PLAN
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**content, key: value}))
    with pytest.raises(DamagedError, match="does not fit its digest"):
        read_plan(path)
    assert plans_in(tmp_path) == []
    assert "does not fit its digest" in caplog.text


NO_PLANS = ["", "[1, 2", "hypothesis: a", "a: !!python/object:os.x {}", "\xff"]


@pytest.mark.parametrize("text", NO_PLANS)
def test_other_files_are_no_plans(here: Here, text: str) -> None:
    """A wrong path, not a failure: nothing can have become of what was no plan."""
    Path("plan.yaml").write_text(text, "latin-1")
    for action in ("check", "result"):
        ended = here("plan", f"{action}=plan.yaml")
        assert_refused(ended, "plan.yaml is no plan (", "give the file of one")
    assert_refused(here("plan", "check=none.yaml"), "none.yaml cannot be read")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda text: text[:-200],
    "its end missing": lambda text: text.partition(b"\ntasks:")[0],
    "not a yaml": lambda text: text.replace(b"tasks:", b"tasks: ["),
    "another value": lambda text: text.replace(b"level: 0.05", b"level: 5"),
    "without its head": lambda text: text.partition(b"plan: ")[2].replace(b"seeds:", b"sowed:"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_plan_is_a_failure(here: Here, damage: Callable[[bytes], bytes]) -> None:
    path, _ = written(here)
    path.write_bytes(damage(path.read_bytes()))
    for action in ("check", "result"):
        ended = here("plan", f"{action}={path}")
        assert (ended.status, ended.err.count("\n")) == (1, 1)
        assert f"{path} is no plan any more (" in ended.err
        assert "put back what was written" in ended.err


def test_a_run_is_planned_if_a_plan_that_names_it_came_before_it() -> None:
    assert planned(RUN, AFTER, [PLAN]) == PLAN.digest
    assert planned(RUN, BEFORE, [PLAN]) is None
    assert planned(RUN, None, [PLAN]) is None
    assert planned(RUN, AFTER, []) is None
    later = PLAN.model_copy(update={"written": "2026-11-22T17:00:00.600000+00:00"})
    assert planned(RUN, AFTER, [later, PLAN]) == PLAN.digest


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("suite", "v1-00000000"), ("task", "flipflop"), ("entry", "cope"), ("seed", 8),
        ("entry", "path window=4"), ("phase", "tuning"), ("phase", "steps_x2"), ("seed_init", 4),
    ],
)  # fmt: skip
def test_another_run_is_not_of_the_plan(key: str, value: Any) -> None:
    assert planned({**RUN, key: value}, AFTER, [PLAN]) is None


def test_a_suites_name_may_have_a_dash() -> None:
    assert PLAN.suite_name == "v1"
    assert PLAN.model_copy(update={"suite": "my-own-01234567"}).suite_name == "my-own"


def suite_of_made() -> Suite:
    """The suite with flipflop as ``made`` has it, alone."""
    flipflop = replace(  # type: ignore[type-var]
        SUITE.tasks["flipflop"],
        words=("task=flipflop", "train.steps=400"),
        generalises={"sparse": 0.02, "dense": 0.02},
        digest=task_digest(config(), None),
    )
    return replace(SUITE, tasks={"flipflop": flipflop}, common=())  # type: ignore[type-var]


@pytest.fixture(autouse=True)
def nothing_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "shipped", lambda _: tmp_path / "none.parquet")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pe_lab.cli.plan", "pe_lab.results.plan_runs"):
        monkeypatch.setattr(f"{module}.load_suite", lambda *_: suite_of_made())


def run_at(time: float | None, pe: str, seed: int, error: float, lr: float = 0.003) -> Path:
    """A finished run that began at this time."""
    errors = {"in_domain": 0.0, "sparse": error, "dense": error}
    folder = made(pe, seed, errors=errors, **{"train.lr": lr})
    folder.write_json("environment.json", [{} if time is None else {"time": time}, {"time": 1.0}])
    return folder.path


def tuned(pe: str, best: float = 0.003) -> None:
    for rate in SUITE.protocol.rates:
        in_domain = 0.0 if rate == best else 0.1
        errors = {"in_domain": in_domain, "sparse": 0.0, "dense": 0.0}
        for seed in SUITE.protocol.tuning_seeds:
            made(pe, seed, errors=errors, **{"train.lr": rate})


CLAIM = ("plan", "pe=path,rope", "hypothesis=path generalises", "splits=sparse", "to=plan.yaml")


def test_a_plan_that_came_before_its_runs_is_checked_and_decided(here: Here, small: None) -> None:
    assert here(*CLAIM).status == 0
    assert "planned: none of its runs is here yet" in here("plan", "check=plan.yaml").out
    for what in ("check", "result"):
        ended = here("plan", f"{what}=plan.yaml", "runs_dir=rnus")
        assert_refused(ended, "runs_dir=rnus is not a folder")
    plan = read_plan(Path("plan.yaml"))
    for pe, errors in {"path": [0.0] * 8, "rope": [0.0] * 2 + [0.3] * 6}.items():
        tuned(pe)
        for seed, error in enumerate(errors):
            run_at(plan.time + 1, pe, seed, error)
            # At a rate that tuning did not choose, and of a seed that the plan does not name.
            run_at(plan.time + 1, pe, seed, 0.5 - error, lr=0.001)
        run_at(BEFORE, pe, 8, 0.0)
    checked = here("plan", "check=plan.yaml")
    assert checked.status == 0, checked.err
    assert re.search(r"flipflop +path +8 of 8", checked.out)
    assert "planned" in checked.out.splitlines()
    decided = here("plan", "result=plan.yaml", "format=json")
    content = json.loads(decided.out)
    (row,) = content["rows"]
    assert (row["k_a"], row["n_a"], row["k_b"], row["n_b"]) == (8, 8, 2, 8)
    # Of C(16, 8) ways to part ten that generalise and six that do not, C(8, 2) have k_a = 8.
    assert row["p"] == pytest.approx(28 / 8008)
    assert (row["verdict"], content["verdict"], content["planned"]) == (*["supported"] * 2, True)
    assert "planned: supported" in here("plan", "result=plan.yaml").out


def test_a_run_that_began_before_makes_it_exploratory(here: Here, small: None) -> None:
    assert here(*CLAIM).status == 0
    plan = read_plan(Path("plan.yaml"))
    early = run_at(plan.time - 60, "rope", 3, 0.3, lr=0.001)
    for time, seed in ((plan.time + 60, 4), (None, 5)):
        run_at(time, "rope", seed, 0.3)
    run_at(None, "path", 5, 0.3)
    checked = here("plan", "check=plan.yaml")
    assert checked.status == 1
    assert f"1 run began before it was written, such as {early}" in checked.err
    assert "2 runs did not record when they began" in checked.err
    out = here("plan", "result=plan.yaml").out
    assert "exploratory" in out
    assert "not enough runs" in out
    assert planned_by(Path("runs")) == {}
    write_plan(plan, Path("runs/plans/plan.yaml"))
    later = next(Path("runs/flipflop/rope").glob("seed4-*"))
    assert planned_by(Path("runs")) == {later: plan.digest}
    compared = here("compare", "a=path", "b=rope")
    assert f"planned: 1 of 3 runs, by {plan.digest[:12]}; the rest is expl" in compared.out
    of_rows = suite_rows(Path("runs"), suite_of_made()).unique("run_id").sort("seed")
    assert of_rows["planned"].to_list() == [None, plan.digest, None, None]


def test_a_run_made_again_by_force_began_when_the_first_one_did(here: Here, small: None) -> None:
    assert here(*CLAIM).status == 0
    plan = read_plan(Path("plan.yaml"))
    first = run_at(plan.time - 60, "rope", 3, 0.3)
    first.rename(f"{first}.replaced-1")
    assert started(run_at(plan.time + 60, "rope", 3, 0.0)) == plan.time - 60


def test_what_no_run_could_decide_is_refused(here: Here, small: None) -> None:
    assert_refused(here(*CLAIM, "threshold=1"), "threshold=1", "below 1")
    assert_refused(here(*CLAIM, f"first_seed={10**23}"), "first_seed=1000", "below 2^62")
    assert_refused(here(*CLAIM, "level=0.5"), "level=0.5", "between 0 and 0.5")
    assert not Path("plan.yaml").exists()
    Path("deep.yaml").write_text("[" * 50_000)
    assert_refused(here("plan", "result=deep.yaml"), "deep.yaml")


def test_a_plan_of_another_version_of_the_suite_is_not_decided(here: Here, small: None) -> None:
    assert here(*CLAIM).status == 0
    plan = read_plan(Path("plan.yaml"))
    other = plan.model_copy(update={"suite": "v1-00000000", "tasks": {"gone": {"sparse": 0.1}}})
    write_plan(other, Path("other.yaml"))
    for what in ("check", "result"):
        ended = here("plan", f"{what}=other.yaml")
        assert ended.status == 1
        assert "it is of suite v1-00000000" in ended.err


def test_a_plan_of_a_suite_of_ones_own_names_its_runs(
    here: Here, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here(*CLAIM).status == 0
    plan = read_plan(Path("plan.yaml"))
    write_plan(plan, Path("runs/plans/plan.yaml"))
    for pe in ("path", "rope"):
        for seed in plan.seeds[:2]:
            run_at(plan.time + 60, pe, seed, 0.3)

    def load(name: str, folder: Path | None = None) -> Suite:
        if folder is None:
            raise UsageError("unknown suite")
        return suite_of_made()

    monkeypatch.setattr("pe_lab.results.plan_runs.load_suite", load)
    Path("mine").mkdir()
    assert "exploratory" in here("compare", "a=path", "b=rope").out
    named = here("compare", "a=path", "b=rope", "--config-dir", "mine").out
    assert f"planned: 4 of 4 runs, by {plan.digest[:12]}" in named


def test_a_plan_of_runs_that_are_there_is_refused(here: Here, small: None) -> None:
    run_at(BEFORE, "rope", 3, 0.3)
    assert_refused(here(*CLAIM, "first_seed=0"), "seed 3 are known", "runs/flipflop/rope", "4 or")
    tuning = SUITE.protocol.tuning_seeds[0]
    assert_refused(here(*CLAIM, f"first_seed={tuning - 2}"), f"seed {tuning} is for tuning")
    assert here(*CLAIM).status == 0
    assert read_plan(Path("plan.yaml")).seeds == tuple(range(4, 12))


def ship(monkeypatch: pytest.MonkeyPatch, runs_dir: str = "runs") -> None:
    """The runs of a folder as the shipped file; the folder is then gone."""
    rows = suite_rows(Path(runs_dir), suite_of_made())
    Path(runs_dir).rename("elsewhere")
    file.write(rows, Path("v1.parquet"))
    monkeypatch.setattr(file, "shipped", lambda _: Path("v1.parquet"))


def test_seeds_and_rates_of_shipped_runs(
    here: Here, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers of shipped runs are known, and so are the rates that were chosen."""
    for pe, best in {"path": 0.006, "rope": 0.001}.items():
        tuned(pe, best)
        run_at(None, pe, 19, 0.0, lr=best)
    ship(monkeypatch)
    assert_refused(here(*CLAIM, "first_seed=12"), "seed 19 are known", "(shipped)")
    out = here(*CLAIM).out
    assert read_plan(Path("plan.yaml")).seeds == tuple(range(20, 28))
    for pe, rate in (("path", 0.006), ("rope", 0.001)):
        (line,) = (line for line in out.splitlines() if f"pe={pe} " in line)
        assert line.endswith(f"train.lr={rate} 'seed=range(20,28)'")
        for seed in range(20, 28):
            run_at(read_plan(Path("plan.yaml")).time + 1, pe, seed, 0.0, lr=rate)
    decided = json.loads(here("plan", "result=plan.yaml", "format=json").out)
    assert (decided["planned"], decided["verdict"]) == (True, "not supported")
    assert [row["p"] for row in decided["rows"]] == [1.0]


def test_a_plan_is_decided_by_the_shipped_runs_alone(
    here: Here, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a fresh clone, which has no run folders."""
    assert here(*CLAIM).status == 0
    plan = read_plan(Path("plan.yaml"))
    write_plan(plan, Path("runs/plans/plan.yaml"))
    for pe, error in (("path", 0.0), ("rope", 0.5)):
        tuned(pe)
        for seed in range(8):
            run_at(plan.time + 1, pe, seed, error)
    ship(monkeypatch)
    checked = here("plan", "check=plan.yaml")
    assert checked.status == 0, checked.err
    assert re.search(r"flipflop +path +8 of 8", checked.out)
    assert "planned: supported" in here("plan", "result=plan.yaml").out
    # The same runs beside them count once.
    Path("elsewhere").rename("runs")
    decided = json.loads(here("plan", "result=plan.yaml", "format=json").out)
    assert [(row["k_a"], row["n_a"], row["k_b"], row["n_b"]) for row in decided["rows"]] == [
        (8, 8, 0, 8)
    ]
    assert (decided["planned"], decided["verdict"]) == (True, "supported")
    states = json.loads(here("plan", "check=plan.yaml", "format=json").out)["rows"]
    assert len(states) == 16
    # What the leaderboard says of the shipped runs, in the words of compare.
    rows = file.shipped_rows(suite_of_made())[0]
    found = scores(suite_of_made(), rows, rows.clear())
    note = next(n for n in closing_notes(found, ["flipflop"], None) if "planned" in n)
    assert note.startswith(f"planned: 16 of 16 runs, by {plan.digest[:12]}. The planned test")
    # With the tuning runs.
    of_compare = note.replace("16 of 16", "16 of 32")
    compared = here("compare", "a=path", "b=rope").out.replace("; the rest is exploratory", "")
    assert of_compare in compared


@pytest.mark.parametrize("began", [-60.0, None])
def test_a_shipped_run_from_before_the_plan_makes_it_exploratory(
    here: Here, small: None, monkeypatch: pytest.MonkeyPatch, began: float | None
) -> None:
    assert here(*CLAIM).status == 0
    plan = read_plan(Path("plan.yaml"))
    for pe in ("path", "rope"):
        tuned(pe)
        for seed in range(8):
            early = pe == "rope" and seed == 3
            time = plan.time + 1 if not early else None if began is None else plan.time + began
            run_at(time, pe, seed, 0.5 * (pe == "rope"))
    ship(monkeypatch)
    checked = here("plan", "check=plan.yaml")
    assert checked.status == 1
    why = "did not record when they began" if began is None else "began before it was written"
    assert f"1 run {why}, such as flipflop-rope-seed3-" in checked.err
    decided = json.loads(here("plan", "result=plan.yaml", "format=json").out)
    assert not decided["planned"]


def test_what_is_missing_is_named(here: Here, small: None) -> None:
    assert here(*CLAIM).status == 0
    tuned("path")
    for seed in range(7):
        run_at(read_plan(Path("plan.yaml")).time + 1, "path", seed, 0.0)
    decided = json.loads(here("plan", "result=plan.yaml", "format=json").out)
    (row,) = decided["rows"]
    assert row["verdict"] == decided["verdict"] == "not enough runs"
    assert row["missing"] == (
        "path lacks seeds 7 at train.lr=0.003, which tuning chose; rope is not tuned, or failed at "
        "every rate"
    )


def test_runs_of_another_configuration_are_named(here: Here, small: None) -> None:
    assert here(*CLAIM).status == 0
    for base in (100, 1000):
        made("rope", 0, errors={"in_domain": 0.0, "sparse": 0.0, "dense": 0.0}, **{"pe.base": base})
    (row,) = json.loads(here("plan", "result=plan.yaml", "format=json").out)["rows"]
    assert row["missing"].endswith(
        "rope is not tuned, or failed at every rate (there are runs of rope base=100, rope "
        "base=1000: this plan is of rope as its yaml has it, keep other configurations in a "
        "runs_dir of their own)"
    )


def test_every_cell_has_to_be_supported() -> None:
    def decided(*verdicts: str) -> str:
        return verdict(pl.DataFrame({"verdict": verdicts}))

    assert decided(SUPPORTED, SUPPORTED) == SUPPORTED
    assert decided(SUPPORTED, NOT_SUPPORTED) == NOT_SUPPORTED
    assert decided(SUPPORTED, NOT_SUPPORTED, NOT_ENOUGH) == NOT_ENOUGH


def test_the_tests_are_exact_and_one_sided() -> None:
    low, high = [0.0, 0.1, 0.2], [0.3, 0.4, 0.5]
    assert p_value("mann_whitney", low, high, 0.25) == pytest.approx(1 / 20)
    assert p_value("mann_whitney", high, low, 0.25) == 1
    assert p_value("fisher", low, high, 0.25) == pytest.approx(1 / 20)
    assert p_value("fisher", high, low, 0.25) == 1
    # Ties: 4 of the 20 ways to part 0 0 0 0 1 1 give a none of the ones.
    assert p_value("mann_whitney", [0, 0, 0], [0, 1, 1], 0.5) == pytest.approx(4 / 20)
    assert least_p(3) == pytest.approx(1 / 20)
    # No p of twenty seeds is out of reach, and none is drawn at random.
    from scipy.stats import mannwhitneyu

    assert p_value("mann_whitney", [0] * 20, [1] * 20, 0.5) == pytest.approx(least_p(20))
    rng = np.random.default_rng(0)
    for n in (20, 70):
        a, b = rng.normal(0, 1, n), rng.normal(0.5, 1, n)
        method = "exact" if n == 20 else "asymptotic"
        for one, other in ((a, b), (b, a)):
            theirs = mannwhitneyu(one, other, alternative="less", method=method,
                                  use_continuity=False).pvalue  # fmt: skip
            assert p_value("mann_whitney", list(one), list(other), 0.5) == pytest.approx(theirs)


def test_no_more_than_level_of_true_nulls_are_rejected() -> None:
    """Errors of two clusters, drawn alike for a and b: at most 5 % of the tests find more."""
    rng = np.random.default_rng(0)
    for test in ("fisher", "mann_whitney"):
        n = 400
        drawn = np.where(rng.random((n, 2, 5)) < 0.5, 0.0, rng.random((n, 2, 5)))
        found = sum(p_value(test, list(a), list(b), 0.05) <= 0.05 for a, b in drawn)
        assert found <= n * 0.05 + 3 * (n * 0.05 * 0.95) ** 0.5


def test_three_seeds_can_support_a_plan_at_5_percent() -> None:
    """Its p is 1/20, which scipy rounds up."""
    plan = PLAN.model_copy(update={"seeds": (0, 1, 2), "tasks": {"parity": {"long_x2": 0.05}}})
    rows = [
        {"task": "parity", "entry": pe, "split": split, "phase": phase, "lr": rate, "seed": seed,
         "seed_init": seed, "error": float(pe == "rope"), "loss": 0.0}
        for pe in ("path", "rope")
        for split in ("in_domain", "long_x2")
        for phase, rate, seed in (
            *(("tuning", rate, seed) for rate in SUITE.protocol.rates
              for seed in SUITE.protocol.tuning_seeds),
            *(("score", min(SUITE.protocol.rates), seed) for seed in range(3)),
        )
    ]  # fmt: skip
    for test in ("fisher", "mann_whitney"):
        one = plan.model_copy(update={"test": test})
        found = evaluate(one, pl.DataFrame(rows), SUITE)
        assert found["verdict"].to_list() == [SUPPORTED]
        assert found.select("fits_a", "fits_b").row(0) == (3, 0)
        table = result_table(one, found)
        ((_, _, first, _, second, *_),) = table.rows
        assert (first.text, second.text) == ("3/3, median 0.0", "0/3°, median 100.0")
        assert "°: fewer than half of these seeds fit the task in domain" in table.caption
        says = {
            "fisher": "a generalises in more seeds",
            "mann_whitney": "a's errors tend to be lower",
        }
        assert f"Supported: {says[test]} than b" in table.caption


def test_many_plans_are_counted_few_are_named() -> None:
    digests = [f"{n:012d}{'0' * 52}" for n in range(4)]
    few = planned_note([*digests[:3], None])
    assert few.startswith("planned: 3 of 4 runs, by 000000000000, 000000000001, 000000000002 (a ")
    assert planned_note(digests).startswith("planned: 4 of 4 runs, by 4 plans (a run that two ")
