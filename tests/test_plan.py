"""``pe-lab plan``: a claim and its test, written down before the runs that decide it."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from program import Here, assert_refused

from pe_lab.common.errors import DamagedError, UsageError
from pe_lab.results.plans import Plan, planned, plans_in, read_plan, suite_of, write_plan
from pe_lab.results.suite import load_suite

SUITE = load_suite("v1")
PLAN = Plan(
    hypothesis="path tracks parity beyond its length",
    suite=suite_of(SUITE),
    encodings=("path", "rope"),
    tasks={"parity": {"long_x2": 0.05, "long_x4": 0.05}},
    seeds=8,
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
    assert (content["seeds"], content["test"], content["level"]) == (8, "fisher", 0.05)
    age = datetime.now().timestamp() - datetime.fromisoformat(content["written"]).timestamp()
    assert 0 <= age < 60
    assert read_plan(path).digest == content["digest"]
    assert plans_in(path.parent) == [read_plan(path)]


def test_splits_threshold_seeds_and_a_file_can_be_chosen(here: Here) -> None:
    words = ("splits=in_domain,long_x8", "threshold=0.01", "seeds=20", "test=mann_whitney")
    path, content = written(here, *words, "level=0.01", "to=mine/plan.yaml")
    assert path == Path("mine/plan.yaml")
    assert content["tasks"] == {"parity": {"in_domain": 0.01, "long_x8": 0.01}}
    assert (content["seeds"], content["test"], content["level"]) == (20, "mann_whitney", 0.01)


def test_what_is_printed(here: Here) -> None:
    out = here(*LINE, "to=plan.yaml").out
    assert "pe-lab suite v1 pe=path,rope tasks=parity" in out
    # As a sum over all outcomes with scipy's fisher_exact, one-sided, has it too.
    assert "8 seeds a side tell P(generalises) 0.9 from 0.2 or less at level 0.05" in out


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
    ],
)  # fmt: skip
def test_what_is_refused(here: Here, words: tuple[str, ...], parts: list[str]) -> None:
    assert_refused(here(*words), *parts)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hypothesis", "rope does"), ("encodings", ["rope", "path"]), ("seeds", 7),
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


@pytest.mark.parametrize("text", ["", "[1, 2", "hypothesis: a", "a: !!python/object:os.x {}"])
def test_other_files_are_no_plans(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(DamagedError, match="is no plan"):
        read_plan(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_plan(tmp_path / "none.yaml")


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
