"""A folder of runs for the report: two that were trained, small, and many that are copies of them
with other encodings, seeds and errors."""

import copy
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from html_page import Page
from program import the_run, tiny, working_in

from pe_lab.cli.main import main
from pe_lab.store.run_folder import RunFolder, seal_object
from pe_lab.store.run_id import identity

ENCODINGS = [f"enc_{n}" for n in range(10)]
SEEDS = (0, 1, 2)
EVIL = "</script><img src=x onerror=\"document.title='pwned'\">"


def error_of(encoding: int, seed: int, split: int) -> float:
    """What the copies' errors are: greater for later encodings, splits and seeds."""
    return round(0.002 * encoding * (split + 1) * (1 + 0.2 * seed), 6)


def shared_runs(factory: pytest.TempPathFactory) -> Path:
    """The folder, once a session; nobody writes in it."""
    folder = factory.getbasetemp() / "report-runs"
    if not folder.is_dir():
        folder.mkdir()
        make_runs(folder)
    return folder / "runs"


def make_runs(folder: Path) -> Path:
    """``folder``/runs: flipflop with ENCODINGS and SEEDS beside a real cope, selective_copy with a
    real cope only, one failed run and one not begun."""
    with working_in(folder):
        assert main(tiny("pe=cope")) == 0
        real = the_run(folder / "runs")
        assert main(tiny("pe=cope", "task=selective_copy", "task.n_copy=4", "task.n_blank=4")) == 0
    runs = folder / "runs"
    for number, pe in enumerate(ENCODINGS):
        for seed in SEEDS:
            _copy(real, runs, number, pe, seed)
    failed = runs / "flipflop" / "enc_0" / "seed9-00000000"
    failed.mkdir()
    RunFolder(failed).set_status("failed", 3, 20, f"no good: {EVIL}")
    (runs / "flipflop" / "enc_0" / "seed8-00000000").mkdir()
    return runs


def _copy(real: Path, runs: Path, number: int, pe: str, seed: int) -> None:
    summary: dict[str, Any] = copy.deepcopy(json.loads((real / "summary.json").read_text()))
    summary["pe"] = summary["names"]["pe"] = pe
    summary["seed"] = summary["config"]["seed"] = seed
    # A value of a configuration is data too.
    summary["config"]["pe"] = {"_target_": f"mine.{pe}", "evil": f"{EVIL} {number}"}
    for split, place in enumerate(summary["splits"].values()):
        error = error_of(number, seed, split)
        for name in ("error", "error_low", "error_high"):
            summary["metrics"][f"{place}/{name}"] = error
    summary["metrics"]["params/total"] += 1000 * number
    del summary["digest"]
    summary["identity"] = identity(summary["config"])
    path = runs / "flipflop" / pe / f"seed{seed}-{summary['identity']}"
    path.mkdir(parents=True)
    (path / "summary.json").write_text(seal_object(summary))
    for name in ("metrics.jsonl", "environment.json"):
        (path / name).write_bytes((real / name).read_bytes())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_runs(tmp_path_factory)


@pytest.fixture(scope="module")
def text(runs: Path) -> str:
    """The page of these runs, made once a session."""
    out = runs.parent / "page"
    if not out.exists():
        with working_in(runs.parent), redirect_stdout(StringIO()) as said:
            assert main(["report", f"to={out}"]) == 0
        assert "32 finished, 1 failed, 1 not begun" in said.getvalue()
    return (out / "index.html").read_text()


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)
