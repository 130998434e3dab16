"""``pe-lab verify`` (issue 15, part 4): what is wrong in run folders, and nothing else."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from made import edit_summary
from program import Here, assert_has, assert_refused, ran, succeeded, the_run, tiny

from pe_lab.core.errors import RunError
from pe_lab.evaluate.evaluate import evaluate
from pe_lab.evaluate.verify import problems
from pe_lab.results.presentation.evaluations import evaluation_tables
from pe_lab.store import checkpoint
from pe_lab.store.run_folder import RunFolder

WORDS = tiny("train.steps=4", "train.checkpoint_every=2")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory, WORDS, ["eval", "run=runs/flipflop", "lengths=8,12"])


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "runs", tmp_path / "runs")
    return the_run(tmp_path / "runs")


def flip(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def test_a_run_as_it_was_written(here: Here, run: Path) -> None:
    assert problems(run) == []
    for words in ([], [f"{run}"], [f"run={run}"], [f"run={run.name}"], ["pe=none"]):
        ended = here("verify", *words)
        assert (ended.status, ended.err) == (0, "")
    # Interrupted, too.
    (run / "summary.json").unlink()
    (run / "evaluations.jsonl").unlink()
    RunFolder(run).set_status("interrupted", 4, 9)
    assert problems(run) == []


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["run=notes"], ["there is no run in notes"]),
        (
            ["/nonexistent/folder"],
            ["verify /nonexistent/folder: this is not a folder", "run= with"],
        ),
        (["format"], ["give key=value"]),
        # A wrong folder must not pass as one in which nothing is wrong.
        (["pe=cope"], ["verify: no runs in runs pe=cope: leave out a filter"]),
        *(
            (["runs_dir=notes", *more], ["verify: no runs in notes: give runs_dir=", "or make one"])
            for more in ([], ["format=json"], ["set_aside=true"])
        ),
    ],
)
def test_no_run_to_check_is_no_success(
    here: Here, run: Path, words: list[str], parts: list[str]
) -> None:
    Path("notes").mkdir()
    assert_refused(here("verify", *words), *parts)


NAMES = ("checkpoint.pt", "summary.json", "metrics.jsonl", "evaluations.jsonl")


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_found(here: Here, run: Path, name: str) -> None:
    rng, whole = random.Random(name), (run / name).read_bytes()
    for _ in range(40):
        flip(run / name, rng.randrange(len(whole)), rng.randrange(8))
        assert any(name in problem.sentence for problem in problems(run))
        (run / name).write_bytes(whole)
    assert problems(run) == []


def last_line(run: Path) -> None:
    path = run / "metrics.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def earlier_checkpoint(run: Path) -> None:
    state = checkpoint.load(run / "checkpoint.pt", None)
    checkpoint.save(run / "checkpoint.pt", state["run"], {**state, "step": 2})


def unfinished(run: Path) -> None:
    (run / "summary.json").unlink()
    flip(run / "metrics.jsonl", 20)


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no checkpoint": (lambda run: (run / "checkpoint.pt").unlink(), "checkpoint.pt is missing"),
    "another checkpoint": (earlier_checkpoint, "not the one that summary.json was measured with"),
    "a row less": (last_line, "metrics.jsonl does not fit its digest in summary.json"),
    "unfinished": (unfinished, "metrics.jsonl does not fit its digest in the checkpoint"),
    "no metrics": (
        lambda run: (run / "metrics.jsonl").unlink(),
        "metrics.jsonl is missing",
    ),
    "another configuration": (
        lambda run: edit_summary(run, lambda s: s["config"]["train"].update(lr=1.0)),
        "has the configuration of ",
    ),
    "no digest": (
        lambda run: (run / "summary.json").write_text(
            (run / "summary.json").read_text().partition(',\n "digest"')[0] + "}"
        ),
        "summary.json does not fit its digest",
    ),
    "status": (
        lambda run: (run / "status.json").write_text("{}"),
        "status.json does not fit its digest",
    ),
    "environment": (
        lambda run: (run / "environment.json").write_text("3"),
        "environment.json does not fit",
    ),
    "config": (
        lambda run: (run / "config.yaml").write_text("a: &a [*a]"),
        "config.yaml does not fit",
    ),
}


@pytest.mark.parametrize(("spoil", "part"), CASES.values(), ids=CASES)
def test_what_is_wrong(here: Here, run: Path, spoil: Callable[[Path], object], part: str) -> None:
    spoil(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    (problem,) = problems(run)
    assert (part in problem.sentence, problem.kind) == (True, "damaged")
    ended = here("verify", f"run={run}", "format=csv")
    assert (ended.status, ended.err) == (1, "pe-lab: 1 of 1 run: damaged\n")
    assert part in ended.out
    assert part in " ".join(here("verify").out.replace("│", " ").split())
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_one_damaged_run_does_not_stop_the_evaluation_of_others(here: Here, run: Path) -> None:
    assert here(*WORDS, "seed=1").status == 0
    assert [here(*WORDS, f"seed={seed}").status for seed in (2, 3)] == [0, 0]
    flip(run / "summary.json", 300)
    flip(next(run.parent.glob("seed2-*")) / "checkpoint.pt", 300)
    assert_refused(
        here("eval", "run=runs/flipflop", "lengths=8"),
        "2 of 4 runs not evaluated: ",
        f"{run.name}/summary.json does not fit its digest",
        "checkpoint.pt (",
        status=1,
    )
    assert [len(list(run.parent.glob(f"seed{n}-*/evaluations.jsonl"))) for n in (1, 3)] == [1, 1]
    assert not list(run.parent.glob("seed2-*/evaluations.jsonl"))


@pytest.mark.parametrize("cut", [',\n "digest"', '"digest"'])
def test_a_summary_without_its_digest_is_damaged_everywhere(
    here: Here, run: Path, cut: str
) -> None:
    """Cut out, or its key changed by a byte: every summary of this format has one."""
    path, part = run / "summary.json", "summary.json does not fit its digest"
    text = path.read_text()
    path.write_text(text.partition(cut)[0] + "}" if "," in cut else text.replace(cut, '"digast"'))
    assert part in " ".join(here("results", "where=state=broken").out.split())
    for words in (WORDS, ["inspect", f"run={run}"], ["eval", f"run={run}", "lengths=8"]):
        assert_refused(here(*words), part, status=1)
    assert part in here("-m", *WORDS, "seed=0,1").out


def test_damaged_runs_are_set_aside_and_made_again(here: Here, run: Path) -> None:
    assert here(*WORDS, "seed=1").status == 0
    other = next(run.parent.glob("seed1-*"))
    kept = (other / "checkpoint.pt").read_bytes()
    flip(run / "checkpoint.pt", 99)
    damaged = (run / "checkpoint.pt").read_bytes()
    assert here("verify").status == 1
    ended = here("verify", "set_aside=true")
    assert (ended.status, ended.err) == (0, "")
    aside = run.with_name(f"{run.name}.replaced-1")
    assert f"{run.relative_to(Path.cwd())} is now" in " ".join(ended.out.split())
    assert (aside / "checkpoint.pt").read_bytes() == damaged
    assert not run.exists()
    assert here("-m", *WORDS, "seed=0,1").status == 0
    assert here("verify").status == 0
    assert (other / "checkpoint.pt").read_bytes() == kept


def test_a_damaged_diagnosis_sets_no_model_aside(here: Here, run: Path) -> None:
    (run / "why.jsonl").write_text("no record\n")
    ended = here("verify", "set_aside=true")
    assert ended.err == "pe-lab: 1 of 1 run: with damaged diagnoses\n"
    assert_has(ended.out, "why.jsonl", "force=true")
    assert run.is_dir()


def test_a_damaged_row_of_evaluations_sets_no_model_aside(here: Here, run: Path) -> None:
    flip(run / "evaluations.jsonl", 30)
    ended = here("verify", "set_aside=true")
    assert ended.err == "pe-lab: 1 of 1 run: with damaged evaluations\n"
    assert (ended.status, run.exists()) == (1, True)


@pytest.mark.parametrize("name", [*NAMES, "status.json", "environment.json", "config.yaml"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "link to nothing", "link to itself"])
def test_what_is_no_file_is_named(here: Here, run: Path, name: str, kind: str) -> None:
    path = run / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(name if "itself" in kind else "nothing")
    ended = here("verify", "format=csv")
    assert (ended.status, f"{name} " in ended.out) == (1, True)
    assert here("results").status == 0


@pytest.mark.parametrize("name", ["config.yaml", "status.json"])
def test_files_of_another_run_are_named(here: Here, run: Path, name: str) -> None:
    """Copied into an unfinished run they would be shown as its settings and its state."""
    assert here(*WORDS, "seed=1", "train.lr=0.1").status == 0
    other = next(run.parent.glob("seed1-*"))
    shutil.copy(other / name, run)
    (problem,) = problems(run)
    assert name in problem.sentence
    (run / "summary.json").unlink()
    part = f"{name} is of the run {other.name[-8:]}, not of {run.name[-8:]}"
    (problem,) = problems(run)
    assert part in problem.sentence
    assert part in " ".join(here("results").out.split())


def test_the_report_names_the_curves_that_are_missing_or_were_edited(here: Here, run: Path) -> None:
    assert here(*WORDS, "seed=1").status == 0
    missing = run.relative_to(Path.cwd()) / "metrics.jsonl"
    missing.unlink()
    other = next(Path().glob("runs/*/*/seed1-*/metrics.jsonl"))
    other.write_text(other.read_text().replace('"step": 1', '"step": 2', 1))
    assert here("report", "inspect=none").status == 0
    text = Path("runs/report/index.html").read_text()
    assert_has(text, f"Left out: {missing} is missing", f"{other} does not fit its digest in summ")


def test_a_lock_that_is_no_file_is_named(here: Here, run: Path, tmp_path: Path) -> None:
    lock = run.relative_to(Path.cwd()).with_name(f".{run.name}.lock")
    lock.unlink(missing_ok=True)
    lock.symlink_to(tmp_path / "precious")
    said = f"pe-lab: {lock} is a link, and nothing is written"
    assert_refused(here(*WORDS), said, status=1)
    lock.unlink()
    lock.mkdir()
    assert_refused(here(*WORDS), f"pe-lab: {lock} is a folder in the place of a file", status=1)
    assert not (tmp_path / "precious").exists()
    # A pipe can be locked, and nothing waits for its writer.
    lock.rmdir()
    os.mkfifo(lock)
    (run / "summary.json").unlink()
    RunFolder(run).set_status("running", 2, 4)
    assert "killed" in here("results").out
    assert here(*WORDS).status == 0


def test_what_a_file_holds_cannot_steer_the_terminal(here: Here, run: Path) -> None:
    edit_summary(run, lambda s: s.update(identity="\x1b[31mred"))
    ended = here("verify")
    assert (ended.status, "\x1b" in ended.out + ended.err) == (1, False)


def test_a_record_that_cannot_be_read_is_named(here: Here, run: Path) -> None:
    (run / "evaluations.jsonl").unlink()
    (run / "evaluations.jsonl").mkdir()
    assert_refused(
        here("eval", f"run={run}", "lengths=8"),
        "evaluations.jsonl cannot be read (Is a directory): make it readable",
        status=1,
    )


def test_a_run_damaged_while_it_is_evaluated_is_named(run: Path) -> None:
    evaluated = evaluate([run], lengths=[8])
    flip(run / "summary.json", 300)
    with pytest.raises(RunError, match=r"its digest.*; what was measured is recorded"):
        evaluation_tables(evaluated)


def test_the_files_of_an_evaluation_are_in_its_runs_dir(
    here: Here, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    ended = succeeded(here("eval", f"run={run.name[-8:]}", "runs_dir=elsewhere", "lengths=8"))
    assert "written to elsewhere/evaluations/" in ended.out
    assert not (tmp_path / "runs").exists()


def test_filters_choose_among_the_runs_of_a_folder(here: Here, run: Path) -> None:
    (run / "metrics.jsonl").write_text("damaged")
    ended = here("verify", "runs/flipflop", "pe=cope", "set_aside=true")
    assert_refused(ended, "verify: no runs in runs/flipflop pe=cope: leave out a filter")
    assert run.exists()
    assert_refused(here("verify", "runs/flipflop", "pee=cope"), "pee=cope")
    assert here("verify", "runs/flipflop", "pe=none", "set_aside=true").status == 0
    assert not run.exists()


def refused(here: Here, *words: str, part: str) -> None:
    ended = here(*words)
    assert_refused(ended, part, "force=true", status=max(1, ended.status))


@pytest.mark.parametrize(
    ("size", "part"),
    [(None, "does not fit its digest"), (-1, "cut off"), (9, "(9 bytes)"), (0, "")],
)
def test_a_damaged_checkpoint_is_not_resumed_from(
    here: Here, run: Path, size: int | None, part: str
) -> None:
    (run / "summary.json").unlink()
    path = run / "checkpoint.pt"
    flip(path, path.stat().st_size // 2)
    content = path.read_bytes()[:size]
    path.write_bytes(content)
    refused(here, *WORDS, part=part)
    assert path.read_bytes() == content
    # Set aside, not destroyed.
    assert here(*WORDS, "force=true").status == 0
    assert (run.with_name(f"{run.name}.replaced-1") / "checkpoint.pt").read_bytes() == content


@pytest.mark.parametrize("name", ["checkpoint.pt", "summary.json"])
def test_a_file_of_another_run_is_refused(here: Here, run: Path, name: str) -> None:
    """Copied over, a checkpoint would be trained on and a summary would end the run."""
    assert here(*WORDS, "seed=1").status == 0
    other = next(run.parent.glob("seed1-*"))
    shutil.copy(other / name, run)
    part = f"of the run {other.name[-8:]}, not of"
    refused(here, "inspect", f"run={run}", part=part)
    if name == "checkpoint.pt":
        (run / "summary.json").unlink()
    refused(here, *WORDS, part=part)


def test_a_changed_digit_in_the_metrics_is_not_resumed_from(here: Here, run: Path) -> None:
    (run / "summary.json").unlink()
    path = run / "metrics.jsonl"
    changed = path.read_bytes().replace(b"3", b"4", 1)
    path.write_bytes(changed)
    refused(here, *WORDS, part="metrics.jsonl does not fit its digest in the checkpoint")
    assert path.read_bytes() == changed
