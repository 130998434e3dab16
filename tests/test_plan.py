"""``pe-lab plan``: claims about a suite, registered before the runs that decide them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from made import made
from program import Here, assert_has, assert_refused, succeeded
from suites import suite_of_made

from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.claims import (
    NOT_ENOUGH,
    NOT_SUPPORTED,
    SUPPORTED,
    Claim,
    Decided,
    digest_of,
    evaluate,
    least_p,
    p_value,
    planned,
    read_claims,
    registered,
    tuned_rates,
)
from pe_lab.results.leaderboard.rows import SCHEMA, started, suite_rows
from pe_lab.results.presentation.leaderboard_details import (
    claims_table,
    details_table,
    planned_note,
)
from pe_lab.results.suite import Suite, load_suite

SUITE = load_suite("v1")
CLAIM = {
    "hypothesis": "rope generalises to sparse instructions",
    "encodings": ["rope", "none"],
    "tasks": {"flipflop": {"sparse": 0.02}},
    "seeds": [0, 1, 2],
}
FILE = Path("claims.yaml")
RATES = SUITE.protocol.rates


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """A suite of the runs that ``made`` makes; nothing of it is shipped."""
    monkeypatch.chdir(tmp_path)
    return load_suite("mine", suite_of_made(Path("mine")))


def write(suite: Suite, **values: Any) -> None:
    """A file with one claim that is not registered."""
    content = {"suite": suite.version, "claims": {"sparse": {**CLAIM, **values}}}
    FILE.write_text(yaml.safe_dump(content))


def plan(here: Here, *words: str) -> Any:
    return here("plan", f"file={FILE}", "--config-dir", "mine", *words)


def result(here: Here) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(succeeded(plan(here, "format=json")).out)
    return content


def register(here: Here, suite: Suite, **values: Any) -> Claim:
    write(suite, **values)
    succeeded(plan(here, "preregister=true"))
    return read_claims(FILE).claims["sparse"]


def run_at(time: float | None, pe: str, seed: int, error: float, lr: float = 0.003) -> Path:
    """A finished run that began at this time."""
    folder = made(pe, seed, errors={"in_domain": 0.0, "sparse": error}, **{"train.lr": lr})
    folder.write_json("environment.json", [{} if time is None else {"time": time}, {"time": 1.0}])
    return folder.path


def tuned(pe: str, best: float = 0.003) -> None:
    for rate in RATES:
        for seed in SUITE.protocol.tuning_seeds:
            errors = {"in_domain": 0.1 * (rate != best), "sparse": 0.0}
            made(pe, seed, errors=errors, **{"train.lr": rate})


def ship(monkeypatch: pytest.MonkeyPatch, suite: Suite) -> None:
    """The runs as the shipped file; their folders are then gone."""
    rows = suite_rows(Path("runs"), suite)
    Path("runs").rename("elsewhere")
    file.write(rows, Path("mine.parquet"))
    monkeypatch.setattr(file, "shipped", lambda _: Path("mine.parquet"))


def test_a_claim_that_came_before_its_runs_is_decided(here: Here, mine: Suite) -> None:
    claim = register(here, mine)
    assert claim.time is not None
    assert 0 <= datetime.now().timestamp() - claim.time < 60
    assert claim.digest == digest_of(mine.version, vars(claim))
    content = result(here)
    assert content["verdicts"] == {"sparse": NOT_ENOUGH}
    assert content["notes"] == [
        "sparse: rope is not tuned, or failed at every rate; none is not tuned, or failed at every "
        "rate"
    ]
    for pe, error in {"rope": 0.0, "none": 0.5}.items():
        tuned(pe)
        for seed in range(3):
            run_at(claim.time + 1, pe, seed, error)
            # At a rate that tuning did not choose.
            run_at(claim.time + 1, pe, seed, 0.5 - error, lr=0.001)
        # Of a seed that the claim does not name.
        run_at(1.0, pe, 3, 0.5)
    content = result(here)
    (row,) = content["rows"]
    assert (row["k_a"], row["n_a"], row["k_b"], row["n_b"]) == (3, 3, 0, 3)
    assert (row["lr_a"], row["fits_b"], row["median_b"]) == (0.003, 3, 0.5)
    assert row["p"] == pytest.approx(1 / 20)
    assert (row["verdict"], row["exploratory"]) == (SUPPORTED, None)
    table = " ".join(plan(here).out.split())
    assert "sparse rope over none flipflop: sparse 3/3, others ≤ 0/3 1 of 1 0.05 supp" in table
    tests = " ".join(plan(here, "claim=sparse").out.split())
    assert "rope 3/3, median 0.0 none 0/3, median 50.0 0.05 supported" in tests
    # The leaderboard looks for claims in runs_dir.
    planned_runs = suite_rows(Path("runs"), mine).filter(pl.col("planned").is_not_null())
    assert planned_runs.is_empty()
    FILE.rename("runs/claims.yaml")
    rows = suite_rows(Path("runs"), mine).unique("run_id")
    assert {*rows.filter(planned=claim.digest)["seed"]} == {0, 1, 2}
    assert rows.filter(planned=claim.digest).height == 12


@pytest.mark.parametrize("began", [-60.0, None])
@pytest.mark.parametrize("lr", [0.003, 0.001])
def test_a_run_that_began_before_makes_it_exploratory(
    here: Here, mine: Suite, monkeypatch: pytest.MonkeyPatch, began: float | None, lr: float
) -> None:
    claim = register(here, mine)
    assert claim.time
    early = run_at(None if began is None else claim.time + began, "none", 1, 0.5, lr)
    run_at(claim.time + 1, "rope", 1, 0.0)
    name = "-".join(early.parts[-3:])
    (note, *_) = result(here)["notes"]
    assert note == (
        "sparse is exploratory: 1 run began before it was registered or did not record when, such "
        f"as {name}"
    )
    ship(monkeypatch, mine)
    assert name in result(here)["notes"][0]
    assert "exploratory" in plan(here).out


def test_shipped_runs_count_once(here: Here, mine: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = register(here, mine)
    assert claim.time
    for pe, error in (("rope", 0.0), ("none", 0.5)):
        tuned(pe)
        for seed in range(3):
            run_at(claim.time + 1, pe, seed, error)
    ship(monkeypatch, mine)
    alone = result(here)
    Path("elsewhere").rename("runs")
    assert result(here) == alone
    assert alone["verdicts"] == {"sparse": SUPPORTED}


def test_a_claim_that_is_not_registered_is_exploratory(here: Here, mine: Suite) -> None:
    write(mine)
    assert "sparse is exploratory: it is not registered" in plan(here).out


def test_registering_prints_what_to_run(here: Here, mine: Suite) -> None:
    write(mine)
    out = plan(here, "preregister=true").out
    assert_has(
        out,
        "registered in claims.yaml: sparse",
        "pe-lab suite mine pe=rope,none tasks=flipflop --config-dir mine",
    )
    before = FILE.read_bytes()
    assert "nothing new" in plan(here, "preregister=true").out
    assert FILE.read_bytes() == before
    # Of other seeds than the suite's: at the chosen rates, where there are any.
    write(mine, seeds=[5, 6, 7])
    out = plan(here, "preregister=true").out
    assert "phases=tuning" in out
    assert out.count("train.lr=RATE seed=5,6,7") == 2
    tuned("rope", 0.006)
    tuned("none", 0.001)
    write(mine, seeds=[5, 6, 7])
    out = plan(here, "preregister=true").out
    assert "phases=tuning" not in out
    assert_has(out, "pe=rope train.lr=0.006 seed=5,6,7", "pe=none train.lr=0.001 seed=5,6,7")


def test_numbers_that_are_known_decide_nothing(
    here: Here, mine: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_at(None, "none", 2, 0.3)
    write(mine)
    refused = "claims.sparse.seeds: the numbers of seed 2 are known", "such as 1002 or more"
    assert_refused(plan(here, "preregister=true"), *refused)
    ship(monkeypatch, mine)
    assert_refused(plan(here, "preregister=true"), *refused)
    write(mine, seeds=[998, 999, 1000])
    assert_refused(plan(here, "preregister=true"), "seed 1000 are known or for tuning")
    assert read_claims(FILE).claims["sparse"].digest is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hypothesis", "none does"), ("encodings", ["none", "rope"]), ("seeds", [0, 1, 2, 3]),
        ("tasks", {"flipflop": {"sparse": 0.5}}), ("level", 0.1),
        ("written", "2026-11-01T00:00:00+00:00"), ("git_revision", "a"), ("digest", "0" * 64),
    ],
)  # fmt: skip
def test_a_changed_claim_is_refused(
    here: Here, mine: Suite, caplog: pytest.LogCaptureFixture, key: str, value: Any
) -> None:
    register(here, mine)
    content = yaml.safe_load(FILE.read_text())
    content["claims"]["sparse"][key] = value
    FILE.write_text(yaml.safe_dump(content))
    assert_refused(plan(here), "claims.yaml: sparse does not fit its digest", status=1)
    FILE.rename("mine/claims.yaml")
    assert registered(Path("mine"), mine) == []
    assert "does not fit its digest" in caplog.text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"hypothesis": ""}, "claims.sparse.hypothesis= is not allowed"),
        ({"encodings": ["rope"]}, 'claims.sparse.encodings=["rope"] is not allowed'),
        ({"encodings": ["rope", "rope"]}, "encodings: rope is there 2 times"),
        (
            {"encodings": ["rope", "nnoe"]},
            "claims.sparse.encodings: nnoe is unknown: did you mean n",
        ),
        (
            {"tasks": {"flipflap": {"sparse": 0.1}}},
            "tasks: flipflap is unknown: did you mean flipf",
        ),
        ({"tasks": {"flipflop": {"dense": 0.1}}}, "tasks.flipflop: dense is unknown: choose from"),
        ({"tasks": {"flipflop": {"sparse": 1}}}, "tasks.flipflop.sparse=1 is not allowed"),
        ({"tasks": {}}, "claims.sparse.tasks={} is not allowed"),
        ({"seeds": [0, 1]}, "no outcome of 2 seeds a side has a p of at most 0.05: list 3 seeds"),
        ({"test": "t"}, "claims.sparse.test="),
        ({"level": 0}, "claims.sparse.level=0 is not allowed"),
        ({"level": 0.5}, "claims.sparse.level=0.5 is not allowed"),
        (
            {"levl": 0.1},
            "levl=0.1 is not a key of claims.sparse: did you mean level?",
        ),
        (
            {"written": "2026-11-01T00:00:00+00:00"},
            "written and digest are set by preregister=true",
        ),
    ],
)
def test_what_is_no_claim(here: Here, mine: Suite, values: dict[str, Any], said: str) -> None:
    write(mine, **values)
    assert_refused(plan(here), said)


def test_other_files_and_options_are_refused(here: Here, mine: Suite) -> None:
    assert_refused(plan(here), "claims.yaml cannot be read as YAML: ", "docs/plans.md")
    FILE.write_text("[1, 2]")
    assert_refused(plan(here), "claims.yaml: the file: [1, 2] is not allowed")
    FILE.write_text("[" * 50_000)
    assert_refused(plan(here), "claims.yaml")
    write(replace(mine, digest="00000000"))  # type: ignore[type-var]
    assert_refused(plan(here), f"suite: it is {mine.version} now, and not mine-00000000")
    write(mine)
    assert_refused(plan(here, "claim=spars"), "claim=spars: did you mean sparse?")
    assert_refused(here("plan", "preregister=true"), "preregister=true needs file=FILE.yaml")
    assert_refused(here("plan", "suite=quick"), "no claims about it ship: choose from v1, v2")
    of_v1 = here("plan", "claim=path-cycle-1dac")
    assert_refused(of_v1, "claim=path-cycle-1dac is about suite v1: add suite=v1")


def test_what_is_missing_is_named(here: Here, mine: Suite) -> None:
    claim = register(here, mine)
    tuned("rope")
    assert claim.time
    for seed in (0, 2):
        run_at(claim.time + 1, "rope", seed, 0.0)
    content = result(here)
    assert content["verdicts"] == {"sparse": NOT_ENOUGH}
    assert content["notes"] == [
        "sparse: rope lacks seeds 1 at train.lr=0.003, which tuning chose; none is not tuned, or "
        "failed at every rate"
    ]


def test_an_encoding_of_the_users(here: Here, mine: Suite) -> None:
    Path("mine/pe").mkdir()
    write(mine, encodings=["decay", "rope"])
    assert_refused(plan(here), "decay is unknown")
    Path("mine/pe/decay.yaml").write_text("_target_: decay.Decay")
    assert plan(here).status == 0


def test_the_shipped_claims(here: Here) -> None:
    of_v2 = json.loads(succeeded(here("plan", "format=json")).out)
    assert len(of_v2["verdicts"]) == 9
    assert of_v2["verdicts"]["conv-copy"] == SUPPORTED
    content = json.loads(succeeded(here("plan", "suite=v1", "format=json")).out)
    assert len(content["verdicts"]) == 22
    assert not any(row["exploratory"] for row in content["rows"])
    assert content["verdicts"]["path-cycle-1dac"] == NOT_SUPPORTED
    one = json.loads(here("plan", "suite=v1", "claim=cope-flipflop-74d8", "format=json").out)
    (row,) = one["rows"]
    assert (row["k_a"], row["n_a"], row["k_b"], row["n_b"]) == (9, 12, 0, 12)
    # By hand: C(12, 9) of the C(24, 9) ways to part nine that generalise have k_a = 9.
    assert row["p"] == pytest.approx(220 / 1307504)


def test_the_shipped_runs_are_those_that_the_shipped_claims_name(tmp_path: Path) -> None:
    suite = load_suite("v2")
    rows, _ = file.shipped_rows(suite)
    claims = registered(tmp_path, suite)
    assert len(claims) == 9
    named = rows.with_columns(named=planned(claims))
    assert named["named"].equals(named["planned"])
    assert 100 < named.drop_nulls("planned")["run_id"].n_unique() < 300


def claim_at(time: str, **values: Any) -> Claim:
    content: Any = {**CLAIM, **values, "written": time}
    return Claim(**content, digest=digest_of("v1-0", content))


EARLY, LATE = (claim_at(f"2026-11-22T17:00:0{s}+00:00") for s in (0, 1))
RUN = {"task": "flipflop", "entry": "rope", "phase": "score", "seed": 1, "seed_init": 1}
RUN_SCHEMA = {name: SCHEMA[name] for name in RUN}


def digest_for(claims: Sequence[Claim], began: float | None, **values: Any) -> str | None:
    run = pl.DataFrame([{**RUN, **values, "started": began}], {**RUN_SCHEMA, "started": pl.Float64})
    found: str | None = run.select(planned(claims)).item()
    return found


def test_a_run_is_planned_by_the_earliest_claim_before_it() -> None:
    assert EARLY.time
    after, before = EARLY.time + 60, EARLY.time - 1
    assert digest_for([LATE, EARLY], after) == EARLY.digest
    assert digest_for([EARLY, LATE], after) == EARLY.digest
    assert digest_for([EARLY], after, phase="other_seeds") == EARLY.digest
    assert digest_for([EARLY], before) is None
    assert digest_for([EARLY], None) is None
    assert digest_for([Claim(**CLAIM)], after) is None  # type: ignore[arg-type]
    for key, value in {
        "task": "recall", "entry": "rope base=100", "seed": 8, "phase": "tuning", "seed_init": 4,
    }.items():  # fmt: skip
        assert digest_for([EARLY], after, **{key: value}) is None


def test_the_note_counts_planned_runs() -> None:
    assert planned_note(["a", "a", "b", None]) == "planned: 3 of 4 runs, by 2 claims"
    assert planned_note([None]) == "exploratory: no claim (pe-lab plan) names any of these 1 run"


def test_a_run_made_again_by_force_began_when_the_first_one_did(here: Here) -> None:
    first = run_at(1000.0, "rope", 3, 0.3)
    first.rename(f"{first}.replaced-1")
    assert started(run_at(2000.0, "rope", 3, 0.0)) == 1000.0


def test_every_test_has_to_support_it() -> None:
    def decided(*verdicts: str) -> str:
        return Decided("", EARLY, pl.DataFrame({"verdict": verdicts}), None).verdict

    assert decided(SUPPORTED, SUPPORTED) == SUPPORTED
    assert decided(SUPPORTED, NOT_SUPPORTED) == NOT_SUPPORTED
    assert decided(SUPPORTED, NOT_SUPPORTED, NOT_ENOUGH) == NOT_ENOUGH


def test_counts_of_a_claim_of_which_a_part_is_run() -> None:
    """Counts are of one pair, and of pairs that both have runs."""
    sides = {"rope": (0, 3, 3), "t5": (2, 5, 5), "alibi": (0, 5, 0), "none": (0, 0, 0)}
    pairs = [
        {"k_a": 5, "n_a": 5, "fits_a": 5, "b": b, "k_b": k, "n_b": n, "fits_b": fits, "p": None,
         "verdict": NOT_ENOUGH}
        for b, (k, n, fits) in sides.items()
    ]  # fmt: skip
    claim = replace(EARLY, encodings=("cope", *sides))  # type: ignore[type-var]
    ((_, _, _, counts, fit, p, said),) = claims_table(
        [Decided("x", claim, pl.DataFrame(pairs), None)]
    ).rows
    texts = (counts.text, fit.text, p.text, said.text)
    assert texts == ("5/5, others ≤ 2/5", "2 of 4", "", NOT_ENOUGH)


def test_the_test_is_exact_and_one_sided() -> None:
    low, high = [0.0, 0.1, 0.2], [0.3, 0.4, 0.5]
    assert p_value(low, high, 0.25) == pytest.approx(1 / 20)
    assert p_value(high, low, 0.25) == 1
    # 3 + 1 of 6 generalise: C(3, 3) C(3, 1) of the C(6, 4) ways have as many of a.
    assert p_value([0, 0, 0], [0, 1, 1], 0.5) == pytest.approx(3 / 15)
    assert least_p(3) == pytest.approx(1 / 20)
    # No p of twenty seeds is out of reach.
    assert p_value([0] * 20, [1] * 20, 0.5) == pytest.approx(least_p(20))


def test_three_seeds_can_support_a_claim_at_5_percent() -> None:
    """Its p is 1/20, which scipy rounds up; of a task that is not learned the table says so."""
    scored: Sequence[tuple[str, float, int]] = [("score", min(RATES), seed) for seed in range(3)]
    rows = pl.DataFrame([
        {"task": "parity", "entry": pe, "split": split, "phase": phase, "lr": rate, "seed": seed,
         "seed_init": seed, "error": float(pe == "none"), "loss": 0.0}
        for pe in ("rope", "none")
        for split in ("in_domain", "long_x2")
        for phase, rate, seed in (
            *(("tuning", rate, seed) for rate in RATES for seed in SUITE.protocol.tuning_seeds),
            *scored,
        )
    ])  # fmt: skip
    # Runs of other initial weights are not of the claim.
    rows = pl.concat(
        [rows.with_columns(seed_init=pl.lit(99, pl.Int64), error=1 - pl.col("error")), rows]
    )
    claim = replace(EARLY, tasks={"parity": {"long_x2": 0.05}})  # type: ignore
    found = evaluate(claim, rows, tuned_rates(rows, SUITE), SUITE)
    assert found["verdict"].to_list() == [SUPPORTED]
    assert found.select("fits_a", "fits_b").row(0) == (3, 0)
    table = details_table(Decided("x", claim, found, None))
    ((_, _, first, _, second, *_),) = table.rows
    assert (first.text, second.text) == ("3/3, median 0.0", "0/3°, median 100.0")
    assert "°: fewer than half of these seeds fit the task in domain" in table.caption
