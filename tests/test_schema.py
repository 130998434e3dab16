"""A run folder with anything in it is one sentence, and never hides the other runs."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made import edit_summary, errors_of
from omegaconf import OmegaConf
from program import Here, Outcome, assert_refused, ran, tiny

import pe_lab.train.plan
from pe_lab.config import compose
from pe_lab.config.compose import CommandLine
from pe_lab.config.hydra_internals import Hydra
from pe_lab.config.schema import register_resolvers
from pe_lab.core.metrics import implausible
from pe_lab.store.run_folder import RunFolder
from pe_lab.sweeps.launchers import register_choices

NESTED = "[" * 200_000
ALIASES = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
SELF = "task: &t {a: *t}\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory, tiny("-m", "pe=none,rope", "train.steps=2"))


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


def having(value: Any, *keys: str) -> Callable[[dict[str, Any]], Any]:
    """Sets a key of a summary, or takes it out (...)."""

    def change(summary: dict[str, Any]) -> None:
        for key in keys[:-1]:
            summary = summary[key]
        summary[keys[-1]] = value
        if value is ...:
            del summary[keys[-1]]

    return change


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


SUMMARIES = {
    "no names": (having(..., "names"), "names: Field required"),
    "no train": (having(..., "config", "train"), "config.train: Field required"),
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
        assert_refused(
            ended,
            f"{path.relative_to(Path.cwd())}/summary.json is not as pe-lab writes it",
            part,
            status=1,
        )
    shows(here("results"), *(part for _, part in SUMMARIES.values()))
    shows(here("report", "inspect=none"), f"{len(SUMMARIES)} broken, 2 finished")
    ended = here("eval", "run=runs/flipflop", "lengths=8")
    assert ended.status == 1
    assert "none (trained)" in ended.out
    assert f"{len(SUMMARIES)} of {len(SUMMARIES) + 2} runs not evaluated" in ended.err


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


def test_plausible_numbers() -> None:
    numbers = {"a/error": 0.5, "a/error_low": 0.5, "a/error_high": 0.5, "a/loss": 9.0, "a/n": 3}
    assert implausible(numbers) == ""
    assert implausible({"error": 0.2, "error_low": 0.1, "error_high": None}) == ""
    assert "outside" in implausible({"error_generated": 0.2, "error_low_generated": 0.3,
                                     "error_high_generated": 0.4})  # fmt: skip


LINES = {
    "files and values": ["task=flipflop,brackets", "pe=cope,rope", "seed=0,1", "train.lr=1e-3"],
    "a mapping, a list, a launcher": [
        "pe=combined", "pe.parts=[cope,rope]", "seed=0,1", "task.splits={foo:{length: 8}}",
        "hydra/launcher=joblib", "hydra.launcher.n_jobs=3",
    ],
}  # fmt: skip


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_jobs_composed_together_are_those_composed_alone(
    monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    def plain() -> list[Any]:
        found: list[Any] = []
        for cfg in compose.compose(CommandLine.parse(["-m", *line])):
            found.append(OmegaConf.to_container(cfg, resolve=False))
            # Made of the words, for those who name folders by it.
            del found[-1]["hydra"]["job"]["override_dirname"]
        return found

    register_choices()
    register_resolvers()
    together = plain()
    # Every override counts as a choice of a file: each job is composed by itself.
    monkeypatch.setattr(compose, "_chooses_a_file", lambda hydra, override: True)
    assert together == plain()
    assert len(together) in (2, 8)


def test_a_single_run_is_composed_planned_and_built_once(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*words: Any, **options: Any) -> Any:
            calls.append(name)
            return original(*words, **options)

        monkeypatch.setattr(owner, name, call)

    counted(Hydra, "compose_config")
    counted(pe_lab.train.plan, "plan")
    counted(pe_lab.train.plan.Plan, "model")
    assert here(*tiny("pe=rope", "seed=3", "train.steps=3")).status == 0
    assert calls == ["compose_config", "plan", "model"]


HINTS = {
    # Keys of other groups, by their last part, in any case.
    "steps=100": "did you mean train.steps?",
    "lr=0.001": "did you mean train.lr?",
    "+steps=100": "did you mean train.steps?",
    "trian.steps=5": "did you mean train.steps?",
    "trian.stepz=5": "did you mean train.steps?",
    "train.optimizer.betas=[0.9,0.9]": "did you mean train.betas?",
    "train.d_model=64": "did you mean model.d_model?",
    "length=64": "did you mean task.length or train.length?",
    # A task without the key: what its longer splits change.
    "task=copy task.length=8": "did you mean task.min_letters or task.max_letters?",
    "task=counting length=8": "did you mean task.min_ops or task.max_ops or task.max_tokens?",
    "task=copy task.steps=8": "did you mean train.steps?",
    "wandb.mode=online": "did you mean tracker.wandb.mode?",
    "heads=2": "did you mean model.n_heads?",
    "Seed=3": "did you mean seed?",
    "pe=RoPE": "did you mean rope?",
    # Shapes of other programs.
    "train task=copy pe=rope": "training needs none: give pe-lab task=copy pe=rope",
    "sweep seed=0,1": "give pe-lab -m seed=0,1",
    "rope": "did you mean pe=rope?",
    "seed=0 flipflop": "did you mean task=flipflop?",
    "task = flipflop": "write task=NAME without spaces",
    "pe=rope,": "leave the last comma out, pe=rope;",
    "--pe rope": "keys have no dashes (pe=..)",
    "--seed=3": "keys have no dashes (seed=3)",
    "results --format csv": "keys have no dashes, format=csv;",
    "results --format=csv": "keys have no dashes, format=csv;",
    # Commands that also take the keys of a run.
    "show sequnces=2": "did you mean sequences? (choices: sequences, splits; of a run: debug, ",
    "show spits=sparse": "did you mean splits?",
    "show steps=3": "did you mean train.steps? (choices: sequences, splits; of a run: debug, ",
    "data spilt=train to=x.jsonl": "did you mean split? (choices: n, split, to; of a run: debug, ",
    "data xyz=3 to=x.jsonl": "choose from n, split, to; of a run: debug, ",
    "train.schedule=cosin": "did you mean cosine? (choices: constant, cosine, linear)",
    "list encoding": "did you mean pe?",
    # Names of the field or of other commands.
    "encoding=cope": "did you mean pe?",
    "task=copy layers=3": "did you mean model.n_layers?",
    "model.layers=2": "set it to a mapping: {KEY: VALUE}, or give model.n_layers=2",
    "compare to=x.csv": "leave to out, and give format=csv > x.csv",
    # Of one run and of a sweep alike, the name of a launcher comes first.
    "hydra/launcher=slrum": "did you mean slurm?",
    "-m hydra/launcher=slrum": "did you mean slurm?",
    "hydra/launcher=joblib": "has no effect on one run: add -m",
    "hydra/launchr=joblib": "did you mean hydra/launcher?",
    # Another task than the default is shown only where it is named.
    "show pe=cope": "show needs a task: give task=NAME",
    "data to=x.jsonl": "data needs a task: give task=NAME",
    "inspect runs/x": "did you mean run=runs/x?",
    "results .": "did you mean runs_dir=.?",
}


@pytest.mark.parametrize("line", HINTS)
def test_what_was_probably_meant(here: Here, line: str) -> None:
    assert_refused(here(*line.split()), HINTS[line])


@pytest.mark.parametrize("line", ["steps=1", "heads=1", "xyz=1", "resolution=1"])
def test_no_hint_leads_astray(here: Here, line: str) -> None:
    assert "did you mean threads" not in here(line).err


def test_a_long_list_of_choices_is_cut_and_says_how_to_see_all(here: Here) -> None:
    errors_of("rope", [0.1])
    assert "did you mean pe?" in here("results", "where=encoding=rope").err
    ended = here("results", "where=train.stpes>3")
    assert_refused(ended, "did you mean train.steps? (choices: ")
    assert ended.err.count(",") < 10
    assert ended.err.endswith("; pe-lab --cfg job lists all\n")


def test_one_of_a_kind_is_singular(here: Here) -> None:
    errors_of("rope", [0.1])
    for words in (["runs"], ["verify", "format=csv"], ["report", "inspect=none"]):
        ended = here(*words)
        assert not re.search(r"\b1 (runs|jobs)\b", ended.out + ended.err), words
    assert not re.search(r"\b1\s+runs\b", Path("runs/report/index.html").read_text())
    for _ in range(2):
        ended = here("-m", *tiny("train.steps=1", "train.warmup=0"))
        assert not re.search(r"\b1 (runs|jobs)\b", ended.out + ended.err)


def test_a_run_that_is_found_finished_is_not_said_to_be_written(here: Here) -> None:
    words = tiny("train.steps=1", "train.warmup=0")
    first, again, forced = here(*words), here(*words), here(*words, "force=true")
    assert "written to  runs/" in first.out
    assert "found in    runs/" in again.out
    assert "written to" not in again.out
    assert "written to  runs/" in forced.out
