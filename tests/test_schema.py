"""V7 and V4: a run folder with anything in it is one sentence, and never hides the other runs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from edited import edit_summary
from program import Here, Outcome, tiny

from pe_lab.core.metrics import implausible
from pe_lab.store.run_folder import RunFolder

NESTED = "[" * 200_000
ALIASES = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
SELF = "task: &t {a: *t}\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pe_lab.cli.main import main

    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(tiny("-m", "pe=none,rope", "train.steps=2")) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """One of two runs in runs/ of the current folder; the other one stays as it is."""
    shutil.copytree(made / "runs", tmp_path / "runs")
    return next((tmp_path / "runs" / "flipflop" / "rope").glob("seed0-*"))


def shows(ended: Outcome, *parts: str) -> None:
    """Exit status 0 and these words, whatever the width of the terminal."""
    assert ended.status == 0, ended.err
    said = "".join((ended.out + ended.err).split())
    assert [part for part in parts if "".join(part.split()) not in said] == []
    assert "Traceback" not in said


def without(*keys: str) -> Callable[[dict[str, Any]], Any]:
    def change(summary: dict[str, Any]) -> None:
        for key in keys[:-1]:
            summary = summary[key]
        del summary[keys[-1]]

    return change


def having(value: Any, *keys: str) -> Callable[[dict[str, Any]], Any]:
    def change(summary: dict[str, Any]) -> None:
        for key in keys[:-1]:
            summary = summary[key]
        summary[keys[-1]] = value

    return change


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


SUMMARIES = {
    "no names": (without("names"), "names: Field required"),
    "no train": (without("config", "train"), "config.train: Field required"),
    "no model": (having(-1, "config", "model"), "config.model=-1: Input should be a valid dict"),
    "no metrics": (having([], "metrics"), "metrics=[]"),
    "a word": (having("low", "metrics", "in_domain/error"), "metrics.in_domain/error"),
    "490 %": (having(4.9, "metrics", "in_domain/error"), "error=4.9 is not between 0 and 1"),
    "below": (having(-0.1, "metrics", "in_domain/error_seq"), "seq=-0.1 is not between 0 and 1"),
    "interval": (having(0.0, "metrics", "in_domain/error_high"), "is outside of its interval"),
    "few": (having(-3, "metrics", "in_domain/n"), "in_domain/n=-3 is less than 0"),
    "seed": (having(2**70, "seed"), "seed="),
    "steps": (having(True, "steps"), "steps=True"),
    "splits": (having(["in_domain"], "splits"), "splits=['in_domain']"),
    "deep": (having(nested(500), "config", "pe", "base"), "nested more than 32 deep"),
}  # fmt: skip


def copies(run: Path, n: int) -> list[Path]:
    """The run as if it had had other seeds."""
    made = [run.with_name(f"seed{k}-{k:08x}") for k in range(1, n + 1)]
    for k, path in enumerate(made, start=1):
        shutil.copytree(run, path)
        RunFolder(path).set_status("finished", 2, 2)

        def change(summary: dict[str, Any], k: int = k) -> None:
            summary["identity"] = f"{k:08x}"
            summary["seed"] = summary["config"]["seed"] = k

        edit_summary(path, change)
    return made


def test_broken_summaries(here: Here, run: Path) -> None:
    runs = copies(run, len(SUMMARIES))
    for path, (change, part) in zip(runs, SUMMARIES.values(), strict=True):
        edit_summary(path, change)
        ended = here("inspect", f"run={path}")
        assert (ended.status, ended.err.count("\n")) == (1, 1)
        assert (
            f"{path.relative_to(Path.cwd())}/summary.json is not as pe-lab writes it" in ended.err
        )
        assert part in ended.err
    shows(here("results"), *(part for _, part in SUMMARIES.values()))
    shows(here("report", "inspect=none"), f"{len(SUMMARIES)} broken, 2 finished")
    ended = here("eval", "run=runs/flipflop", "lengths=8")
    assert ended.status == 1
    assert "none (trained)" in ended.out
    assert f"{len(SUMMARIES)} of {len(SUMMARIES) + 2} runs not evaluated" in ended.err


def test_a_broken_summary_is_not_trained_over(here: Here, run: Path) -> None:
    edit_summary(run, SUMMARIES["490 %"][0])
    before = (run / "summary.json").read_bytes()
    ended = here(*tiny("pe=rope", "train.steps=2"))
    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert (run / "summary.json").read_bytes() == before


def test_a_sweep_goes_on_beside_a_broken_run(here: Here, run: Path) -> None:
    (run / "environment.json").write_text("3")
    line = tiny("-m", "pe=none,rope", "train.steps=2")
    shows(here(*line, "seed=0"), "2 of them finished before")
    edit_summary(run, SUMMARIES["490 %"][0])
    ended = here(*line, "seed=0,1")
    assert ended.status == 1
    assert "is not as pe-lab writes it" in " ".join((ended.out + ended.err).split())
    assert len([*run.parent.parent.glob("*/seed1-*/summary.json")]) == 2


def test_broken_breakdowns_and_provenance(
    here: Here, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = {"in_domain": {"length": {"1": {"error": 7, "n": 1}}}}
    broken = [None, 3, {"in_domain": 3}, answers]
    runs = copies(run, len(broken) + 3)
    for path, by in zip(runs, broken, strict=False):
        edit_summary(path, lambda summary, by=by: summary.update(by=by))
    for path, versions in zip(runs[len(broken) :], [None, 3, {"torch": None}], strict=True):
        starts = json.loads((path / "environment.json").read_text())
        starts[-1]["versions"] = versions
        (path / "environment.json").write_text(json.dumps(starts))
    shows(here("report", "inspect=none"))
    assert caplog.text.count("summary.json is not as pe-lab writes it (by") == 2 * len(broken)
    shows(here("results"))


CONTENTS = [NESTED, '{"a":' * 100_000, "1" * 5000, "\0", b"\xff\xfe", "", "NaN"]
NAMES = ["summary.json", "status.json", "environment.json", "metrics.jsonl"]


def test_any_bytes(here: Here, run: Path) -> None:
    cases = [(name, content) for name in NAMES for content in CONTENTS]
    runs = copies(run, len(cases))
    for path, (name, content) in zip(runs, cases, strict=True):
        content = content if isinstance(content, bytes) else content.encode() + b"\n"
        if name == "status.json":
            (path / "summary.json").unlink()
        (path / name).write_bytes(content)
    shows(here("report", "inspect=none"), "14 broken")
    shows(here("results"), *(str(path.name) for path in runs[:14]))
    ended = here("compare", "none", "rope")
    assert ended.status in (0, 2)
    assert "Traceback" not in ended.err


def test_any_configuration(here: Here, run: Path) -> None:
    """An alias bomb of forty lines stands for 2^40 values."""
    contents = [NESTED, ALIASES, SELF, "a: [" * 100_000, "\0", "!!python/name:os.system"]
    runs = copies(run, len(contents))
    for path, content in zip(runs, contents, strict=True):
        (path / "summary.json").unlink()
        (path / "config.yaml").write_text(content)
    shows(here("results"), *(f"{path.name}/config.yaml" for path in runs))
    shows(here("report", "inspect=none"), "6 broken, 2 finished")


def test_metrics_that_were_edited_are_not_drawn(
    here: Here, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = run / "metrics.jsonl"
    path.write_text(path.read_text().replace('"step": 1', '"step": 2', 1))
    shows(here("report", "inspect=none"))
    assert "metrics.jsonl does not fit its digest in summary.json" in caplog.text


@pytest.mark.parametrize("edit", [('"error": ', '"error": 1'), ('"seconds": ', '"seconds": 1')])
def test_an_edited_evaluation_is_not_averaged(here: Here, run: Path, edit: tuple[str, str]) -> None:
    assert here("eval", f"run={run}", "lengths=8").status == 0
    path = run / "evaluations.jsonl"
    path.write_text(path.read_text().replace(*edit, 1))
    ended = here("results", "evaluations=true")
    shows(ended, "evaluations.jsonl does not fit its digest")
    ended = here("eval", f"run={run}", "lengths=8")
    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert "evaluations.jsonl does not fit its digest" in ended.err


def test_plausible_numbers() -> None:
    numbers = {"a/error": 0.5, "a/error_low": 0.5, "a/error_high": 0.5, "a/loss": 9.0, "a/n": 3}
    assert implausible(numbers) == ""
    assert implausible({"error": 0.2, "error_low": 0.1, "error_high": None}) == ""
    assert "outside" in implausible({"error_generated": 0.2, "error_low_generated": 0.3,
                                     "error_high_generated": 0.4})  # fmt: skip
