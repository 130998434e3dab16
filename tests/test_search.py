"""A search over the learning rate and the width, by in-domain error alone."""

import json
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from program import TINY, Here, succeeded

SMALL = [f"{key}={value}" for key, value in TINY.items() if key != "model.d_model"]
SEARCH = ("-m", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=5", "train.clip=null", *SMALL)


@pytest.mark.extended
def test_a_search_finds_the_least_in_domain_error(here: Here, tmp_path: Path) -> None:
    # Most rates of this range lead to no number: such a trial is reported, and the search goes on.
    words = (*SEARCH, "train.lr=tag(log,interval(1e-4,1e12))", "model.d_model=choice(16,32)")
    ended = succeeded(here(*words))
    said = " ".join(ended.out.split())
    assert len(re.findall(r"\[\d/5\]", said)) == 5
    assert ": failed: " in said
    summaries = [json.loads(p.read_text()) for p in tmp_path.glob("runs/*/*/*/summary.json")]
    assert len(summaries) == said.count(": in_domain ")
    errors = {
        (s["config"]["train"]["lr"], s["config"]["model"]["d_model"]): s["metrics"]
        for s in summaries
    }
    best = min(errors, key=lambda key: errors[key]["in_domain/error"])
    least = errors[best]["in_domain/error"]
    (file,) = tmp_path.glob("runs/.sweeps/*/*/optimization_results.yaml")
    results = OmegaConf.load(file)
    assert results.best_value == least
    chosen = (results.best_params["train.lr"], results.best_params["model.d_model"])
    assert errors[chosen]["in_domain/error"] == least
    line = re.search(r"command: pe-lab (.*?) written to", said)
    assert line is not None
    assert "is finished already" in here(*line[1].split()).out

    # The same command draws the same trials and trains none anew.
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("runs/*/*/*/summary.json")}
    succeeded(here(*words))
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert sorted(tmp_path.glob("runs/*/*/*/summary.json")) == sorted(before)


def test_a_search_in_which_all_fails(here: Here) -> None:
    ended = here(*SEARCH, "train.lr=tag(log,interval(1e30,1e31))")
    assert ended.status == 1
    assert ended.err.splitlines()[-1].startswith("pe-lab: no trial of the search ended well")
    assert "Traceback" not in ended.err


@pytest.mark.extended
def test_a_trial_that_is_refused_is_reported_and_the_search_goes_on(
    here: Here, tmp_path: Path
) -> None:
    ended = succeeded(here(*SEARCH, "train.lr=interval(1e-3,2e-3)", "model.d_model=choice(15,16)"))
    said = " ".join(ended.out.split())
    assert "model.d_model=15: failed: model: d_model=15 is not divisible" in said
    assert "Error executing job" not in ended.err
    (sweep,) = tmp_path.glob("runs/.sweeps/*")
    assert sweep.name.startswith("flipflop--train.lr+model.d_model--")


def test_a_sweep_is_named_by_what_the_search_draws_by_default(here: Here, tmp_path: Path) -> None:
    words = [word.replace("n_trials=5", "n_trials=1") for word in SEARCH]
    assert here(*words).status == 0
    (sweep,) = tmp_path.glob("runs/.sweeps/*")
    assert sweep.name.startswith("flipflop--train.lr+model.d_model--")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hydra.sweeper.direction=maximize"], "direction=maximize is not allowed"),
        (["hydra.sweeper.n_trials=0"], "n_trials=0 is not allowed: set it to a whole number"),
        (["train.lr=interval(1e-2,1e-3)"], r"train.lr=interval(1e-2,1e-3) holds no value"),
        (["train.lr=tag(log,interval(0,1))"], "train.lr=tag(log,interval(0,1)) holds no value"),
    ],
)
def test_a_search_that_has_no_meaning(
    here: Here, tmp_path: Path, words: list[str], message: str
) -> None:
    base = [w for w in SEARCH if w.partition("=")[0] != words[0].partition("=")[0]]
    ended = here(*base, *words)
    assert ended.status == 2
    assert message in ended.err
    assert not list(tmp_path.glob("runs/flipflop"))


def test_without_the_sweeper(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    from pe_lab.sweeps import launchers as plugins

    monkeypatch.setattr(plugins, "find_spec", lambda module: None if "optuna" in module else 1)
    ended = here(*SEARCH)
    assert ended.status == 2
    assert "hydra-optuna-sweeper" in ended.err
