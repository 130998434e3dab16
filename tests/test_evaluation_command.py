"""pe-lab eval: its words, its tables and files, and what is refused."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from made import edit_checkpoint
from program import Here, assert_has, assert_refused, ran, start, succeeded, tiny

from pe_lab.evaluate.record import NAME, REMEDY
from pe_lab.store.run_folder import RunFolder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs: rope with two seeds, learned, rope on copying, and one that is not finished."""
    copying = ["task=selective_copy", "task.n_copy=3", "task.n_blank=3"]
    lines = ["pe=rope"], ["pe=rope", "seed=1"], ["pe=learned"], ["pe=rope", *copying]
    folder = ran(tmp_path_factory, *(tiny(*words) for words in lines))
    begun = next(folder.glob("runs/flipflop/rope/seed0-*"))
    shutil.copytree(begun, begun.with_name("seed9-00000000"))
    (begun.with_name("seed9-00000000") / "summary.json").unlink()
    RunFolder(begun.with_name("seed9-00000000")).set_status("interrupted", 20, 20)
    return folder / "runs"


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """A copy of them, in the folder of ``here``."""
    shutil.copytree(trained, tmp_path / "runs")
    return tmp_path / "runs"


def first(runs: Path, pe: str = "rope", task: str = "flipflop") -> Path:
    return next((runs / task / pe).glob("seed0-*"))


def files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# What it prints and writes.


def cells(out: str) -> list[list[str]]:
    """The heads and rows of tables in markdown."""
    lines = [line for line in out.splitlines() if line.startswith("| ") and "---" not in line]
    return [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines]


def test_a_table_of_encodings_and_lengths(here: Here, runs: Path) -> None:
    words = ("run=runs/flipflop/rope/seed[01]*", "pe=none,pi", "lengths=15,48")
    ended = succeeded(here("eval", *words, "format=markdown"))
    assert "flipflop, in\\_domain: error in %" in ended.out
    head, *named = cells(ended.out)
    assert head == ["encoding", "n", "15", "48"]
    assert [row[0] for row in named] == ["rope (trained)", "none", "pi"]
    assert_has(ended.out + ended.err, "scale k of pi: 1 at 15, 3.133 at 48", "± ")
    frame = pl.read_csv(here("eval", *words, "format=csv").out.encode())
    assert frame.shape[0] == 2 * 3 * 2
    assert frame["encoding"].unique(maintain_order=True).to_list() == ["trained", "none", "pi"]
    assert sorted(frame["seed"].unique()) == [0, 1]
    assert frame["error"].is_not_null().all()


def test_each_split_at_its_own_length_is_one_table(here: Here, runs: Path) -> None:
    words = ("eval", f"run={first(runs)}", "splits=in_domain,sparse_x4", "format=markdown")
    head, row = cells(succeeded(here(*words)).out.replace("\\", ""))
    assert head == ["encoding", "n", "in_domain", "sparse_x4"]
    metrics = json.loads((first(runs) / "summary.json").read_text())["metrics"]
    assert row[2:] == [f"{100 * metrics[f'{p}/error']:.1f}" for p in ("in_domain", "ood/sparse_x4")]


def test_several_tasks_and_an_unfinished_run(here: Here, runs: Path) -> None:
    shutil.copytree(first(runs), first(runs).with_name(first(runs).name.replace("seed0", "seed8")))
    ended = succeeded(here("eval", "run=runs/*/*/*", "pe=none", "lengths=16"))
    assert [line.split(",")[0] for line in ended.out.splitlines() if ": error in %" in line] == [
        "flipflop",
        "selective_copy",
    ]
    assert_has(
        ended.out,
        "in place of",
        "none               rope         2 ",  # the copy does not count
        "runs/flipflop/rope/seed9-00000000",
        "is runs/flipflop/rope/seed0",
        "1,008 trained parameters of learned are left out under none",
    )
    assert not (runs / "flipflop/rope/seed9-00000000" / NAME).exists()


@pytest.mark.parametrize(
    ("run", "number"),
    [
        ("flipflop/rope", 3),
        ("runs/flipflop", 4),
        ("runs/flipflop/rope,runs/*/learned/*", 4),
        ("runs", 5),
        ("rope/seed0", 2),
        ("runs/flipflop/rope/seed1*,runs/flipflop/rope", 3),
    ],
)
def test_which_runs_are_meant(run: str, number: int, runs: Path, here: Here) -> None:
    from pe_lab.cli.arguments import split_finished

    done, others = split_finished(run, Path("runs"))
    assert len({*done, *others}) == len(done) + len(others) == number
    assert all((path / "summary.json").exists() for path in done)


# What is refused: one sentence, exit status 2, nothing written.


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["lengths=2"], ["lengths=2", "at least 3"]),
        (["lengths=1000000000000"], ["lengths=1000000000000", "GiB"]),
        (["pe=cope"], ["pe=cope", "position.table"]),
        (["pe=rerope:windw=3"], ["rerope:windw=3", "did you mean pe.window?"]),
        (["splits=spars"], ["splits=spars", "did you mean sparse?"]),
        (["generate=true"], ["generate=true", "not one run at the end"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_words(here: Here, runs: Path, words: list[str], parts: list[str]) -> None:
    before = files(runs.parent)
    assert_refused(here("eval", f"run={first(runs)}", *words), *parts)
    assert files(runs.parent) == before


OTHER_SIZE = {"head.weight": torch.zeros(5, 8)}
BAD_RUNS: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "gone": (shutil.rmtree, ["is not a folder"]),
    "unfinished": (lambda run: (run / "summary.json").unlink(), ["is not a finished run"]),
    "summary": (lambda run: (run / "summary.json").write_text("{"), ["summary.json"]),
    "no weights": (lambda run: (run / "checkpoint.pt").unlink(), ["checkpoint.pt"]),
    "other weights": (
        lambda run: edit_checkpoint(run, lambda s: s["model"].update(OTHER_SIZE)),
        ["do not fit", "head.weight"],
    ),
    "record": (lambda run: (run / NAME).write_bytes(b"{\n{}\n"), [NAME]),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "parts"), BAD_RUNS.values(), ids=BAD_RUNS)
def test_bad_runs(here: Here, runs: Path, spoil: Callable[[Path], Any], parts: list[str]) -> None:
    run = first(runs).relative_to(runs.parent)
    spoil(run)
    before = files(runs.parent)
    ended = here("eval", f"run={run}", "pe=pi", "lengths=16,32")
    assert (ended.status in (1, 2), ended.err.count("\n")) == (True, 1), ended.err
    assert_has(ended.err, *parts)
    assert files(runs.parent) == before


# Stopped.


def test_what_is_measured_stays_and_the_line_goes_on(runs: Path) -> None:
    run = first(runs)
    words = ("eval", f"run={run}", "pe=none,alibi,pi", "lengths=16,32,512", "sequences=2000")
    process = start(*words, cwd=runs.parent)
    process.wait_for(lambda: (run / NAME).exists() and (run / NAME).stat().st_size)
    process.send(signal.SIGTERM)
    assert process.status == 143
    kept = RunFolder(run).record(NAME, REMEDY)
    assert 0 < len(kept) < 12
    assert not (runs / "evaluations").exists()
    again = start(*words, cwd=runs.parent)
    assert again.status == 0, again.stderr
    whole = RunFolder(run).record(NAME, REMEDY)
    assert (whole[: len(kept)], len(whole)) == (kept, 12)
