"""The command line as a person uses it."""

import inspect
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from program import ROOT, Here, assert_has, rows, state, succeeded, summary, the_run, tiny

from pe_lab.cli.completion import candidates
from pe_lab.cli.main import VERBS
from pe_lab.cli.run_argument import RunArgument
from pe_lab.config.choices import CHOICES, choices
from pe_lab.core.options import Options
from pe_lab.results.selection import FileOptions, RunOptions

ESCAPE = "\x1b"


def test_list_has_every_encoding_and_task(here: Here) -> None:
    ended = succeeded(here("list", "pe", "task"))
    listed = dict(re.split(" +", line, maxsplit=1) for line in ended.out.splitlines()[1:])
    expected = {}
    for group in ("pe", "task"):
        for path in (ROOT / "conf" / group).glob("*.yaml"):
            module, _, name = yaml.safe_load(path.read_text())["_target_"].rpartition(".")
            docstring = inspect.getdoc(getattr(import_module(module), name))
            expected[f"{group}={path.stem}"] = docstring.splitlines()[0]
    assert {key: line.strip() for key, line in listed.items()} == expected
    assert "experiment=paper/flipflop" in here("list").out


def test_cfg_shows_the_job_and_runs_nothing(here: Here, tmp_path: Path) -> None:
    ended = succeeded(here(*tiny("pe=rope", "seed=3"), "--cfg", "job"))
    shown = yaml.safe_load(ended.out)
    assert (shown["seed"], shown["pe"]["_target_"]) == (3, "pe_lab.pe.rope.RoPE")
    assert shown["train"]["steps"] == 20
    assert not (tmp_path / "runs").exists()


def table(out: str, title: str) -> dict[str, dict[str, str]]:
    """The rows of the table below this title, by their first cells."""
    lines = out[out.index(title) :].splitlines()[1:]
    end = next(i for i, line in enumerate(lines) if line.startswith("└"))
    cells = [[cell.strip() for cell in re.split("[┃│]", line)[1:-1]] for line in lines[:end]]
    header, *body = [row for row in cells if row]
    return {row[0]: dict(zip(header, row, strict=True)) for row in body if row[0]}


@pytest.mark.parametrize("sweep", [[], ["-m"]])
def test_splits_are_replaced_as_a_whole(here: Here, tmp_path: Path, sweep: list[str]) -> None:
    word = "task.splits={foo:{length: 8}}"
    assert here(*sweep, *tiny(word)).status == 0
    folder = the_run(tmp_path / "runs")
    assert list(summary(folder)["splits"]) == ["in_domain", "foo"]
    overrides = json.loads((folder / "summary.json").read_text())["overrides"]
    assert [w.replace(" ", "") for w in overrides if "splits" in w] == [word.replace(" ", "")]
    assert here(*tiny("task.splits={}", "runs_dir=none")).status == 0
    assert list(summary(the_run(tmp_path / "none"))["splits"]) == ["in_domain"]


def test_help_anywhere_on_the_line(here: Here) -> None:
    text = here("--help").out
    assert_has(text, "pe-lab task=flipflop pe=cope", "pe-lab -m ", "pe-lab results", "pe-lab list")
    for words in ([], ["help"], ["pe=none", "-h"], ["-h", "pe=none"]):
        assert here(*words).out == text
    for words in (["help", "resluts"], ["resluts", "--help"]):
        ended = here(*words)
        assert (ended.status, ended.out) == (2, "")
        assert "did you mean results?" in ended.err


@pytest.mark.parametrize("width", [60, 80, 200])
def test_help_is_as_wide_as_the_terminal(
    here: Here, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for words in ([], *([verb] for verb in VERBS)):
        lines = here(*words, "--help").out.splitlines()
        assert 50 < max(map(len, lines)) <= min(width, 100), words
    # A description stays beside or below its command.
    assert "\n    pe-lab show task=flipflop task.length=16" in here("show", "--help").out


@pytest.mark.parametrize(
    "words", [["list"], pytest.param(tiny("train.steps=60"), marks=pytest.mark.extended)]
)
def test_closed_output_is_no_failure(tmp_path: Path, words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    program = [sys.executable, "-m", "pe_lab", *words]
    ended = subprocess.run(
        program, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")
    if words != ["list"]:
        assert state(the_run(tmp_path / "runs"))["state"] == "finished"


def keys_of(verb: str) -> list[str]:
    """The keys of a command's options."""
    if verb == "list":
        return list(CHOICES)
    import_module(VERBS[verb])
    bases = (Options, RunOptions, FileOptions, RunArgument)
    models = [model for base in bases for model in base.__subclasses__()]
    (model,) = (model for model in models if getattr(model, "command", None) == verb)
    return [key for key in model.model_fields if key not in RunOptions.model_fields]


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_each_command_has_its_keys(here: Here, verb: str) -> None:
    text = here(verb, "--help").out
    assert text.startswith(f"pe-lab {verb}: ")
    assert text == here("help", verb).out == here(verb, "-h", "runs_dir=none").out
    for key in keys_of(verb):
        assert re.search(rf"\b{key}\b" if verb == "list" else rf"\b{key}=", text), key


def test_a_job_of_a_sweep_is_the_job_alone(here: Here, tmp_path: Path) -> None:
    words = ("model.dropout=0.1", "train.steps=12")
    # The first job must leave nothing behind for the second: seeds, threads, deterministic mode.
    assert here("-m", *tiny(*words, "pe=learned,rope", "seed=0,1")).status == 0
    swept = {path.name: path for path in (tmp_path / "runs").glob("flipflop/*/seed*")}
    assert len(swept) == 4
    assert here(*tiny(*words, "pe=rope", "seed=1", "runs_dir=alone")).status == 0
    alone = the_run(tmp_path / "alone")
    assert rows(alone) == rows(swept[alone.name])
    assert summary(alone) == summary(swept[alone.name])
    before = (swept[alone.name] / "summary.json").stat().st_mtime_ns
    assert "finished already" in here(*tiny(*words, "pe=rope", "seed=1")).out
    assert (swept[alone.name] / "summary.json").stat().st_mtime_ns == before


# Runs its arguments on a terminal and copies what they write there.
TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


@pytest.mark.extended
def test_on_a_terminal(tmp_path: Path) -> None:
    # So many steps that a fast machine takes longer than two pictures of the progress.
    words = tiny("train.steps=300", "train.log_every=5")
    ended = subprocess.run(
        [sys.executable, "-c", TERMINAL, sys.executable, "-m", "pe_lab", *words],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    out = ended.stdout.decode()
    assert ended.returncode == 0, out
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", out)
    assert len(re.findall(r" \d+/300 loss \d\.\d{4}  \d+\.\d steps/s \d:\d\d:\d\d", plain)) >= 2
    # The bar is erased, and what follows can be read.
    last = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", out[out.rindex("\x1b[2K") :])
    assert "/300" not in last
    found = table(last, "flipflop, none, seed 0: error in %")
    result = summary(the_run(tmp_path / "runs"))["metrics"]
    assert list(found) == ["in_domain", "sparse", "dense", "long_x2", "long_x4", "sparse_x4",
                           "dense_x4"]  # fmt: skip
    for split, row in found.items():
        where = "in_domain" if split == "in_domain" else f"ood/{split}"
        assert float(row["error"]) == pytest.approx(100 * result[f"{where}/error"], abs=0.051)
        assert float(row["guessing"]) == pytest.approx(100 * result[f"{where}/guess"], abs=0.051)
        assert int(row["scored"]) == result[f"{where}/n"]
    assert f"written to  runs/flipflop/none/{the_run(tmp_path / 'runs').name}" in last
    assert ESCAPE in out
    for name in ("log.txt", "metrics.jsonl", "status.json"):
        path = the_run(tmp_path / "runs") / name
        assert not path.exists() or ESCAPE not in path.read_text()


PROGRAM = Path(sys.executable).with_name("pe-lab")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/flipflop/cope/seed0-01234567").mkdir(parents=True)
    (tmp_path / "runs/report").mkdir()
    (tmp_path / "book.txt").touch()
    (tmp_path / "mine/pe").mkdir(parents=True)
    (tmp_path / "mine/pe/mine.yaml").touch()


def completed(line: str) -> set[str]:
    *before, current = line.split(" ")
    return set(candidates(before, current, VERBS))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("line", "expected"),
    {
        "resu": {"results"},
        "tr": {"train.", "train=", "train/optimizer=", "tracker.", "tracker="},
        "train.ste": {"train.steps="},
        "train.opt": {"train.optimizer="},
        "tracker.wandb.mo": {"tracker.wandb.mode="},
        "task=text task.fi": {"task.file=", "task.files="},
        "pe=rope pe.ba": {"pe.base="},
        "pe=re": {"pe=recurrent", "pe=relative", "pe=repo", "pe=rerope"},
        "-m pe=cope,ro": {"pe=cope,rope", "pe=cope,rope_2d", "pe=cope,rove"},
        "check pe=f": {"pe=fire", "pe=floater", "pe=fope", "pe=fox"},
        "data task=copy split=": {
            f"split={name}" for name in ("train", "in_domain", "long_x2", "long_x4")
        },
        "data spl": {"split="},
        "data task=copy task.max": {"task.max_letters="},
        "data pe=fo": {"pe=fope", "pe=fox"},
        "show splits=sp": {"splits=sparse", "splits=sparse_x4"},
        "show splits=sparse,dense_": {"splits=sparse,dense_x4"},
        "show task=copy_unique splits=l": {"splits=long_x2", "splits=long_x3"},
        "new ": {"encoding", "task", "model", "to="},
        "experiment=small/t": {"experiment=small/text"},
        "device=": {"device=auto", "device=cpu", "device=cuda"},
        "train.schedule=l": {"train.schedule=linear"},
        "train.fast=": {"train.fast=true", "train.fast=false"},
        "task.file=b": {"task.file=book.txt"},
        "--conf": {"--config-dir"},
        "--cfg j": {"job"},
        "list po": {"positions"},
        "help ins": {"inspect"},
        "results form": {"format="},
        "results runs_dir=r": {"runs_dir=runs/"},
        "results file=b": {"file=book.txt"},
        "compare fi": {"file="},
        "results format=m": {"format=markdown"},
        "results evaluations=": {"evaluations=true", "evaluations=false"},
        "results spread=r": {"spread=rates"},
        # As the run is composed: with its recipe and the user's folder.
        "experiment=paper/copy_repeat task.splits.": {
            "task.splits.long_x2.",
            "task.splits.long_x3.",
        },
        "--config-dir mine pe=mi": {"pe=mine"},
        "-m task=copy,flipflop train.ste": {"train.steps="},
        "inspect run=": {"run=flipflop/"},
        "inspect run=flipflop/cope/": {"run=flipflop/cope/seed0-01234567"},
        "eval run=runs/flipflop/": {"run=runs/flipflop/cope/"},
        "eval pe=pi,ya": {"pe=pi,yarn"},
        "report inspect=flip": {"inspect=flipflop/"},
    }.items(),
)
def test_candidates(line: str, expected: set[str]) -> None:
    assert completed(line) == expected


@pytest.mark.usefixtures("folder")
def test_every_command_and_its_keys() -> None:
    assert set(VERBS) <= completed("")
    assert {f"{group}=" for group in CHOICES} <= completed("")
    assert completed("experiment=") == {f"experiment={name}" for name in choices("experiment")}
    for verb, name in VERBS.items():
        classes = {key.lower(): value for key, value in vars(import_module(name)).items()}
        model = classes.get(f"{verb}options")
        if model is not None:
            assert {f"{key}=" for key in model.model_fields} <= completed(f"{verb} ")


@pytest.mark.parametrize("line", ["", "pe-lab", "pe-lab x.y.z", "pe-lab 'a", "pe-lab help =", "="])
def test_never_a_message_in_the_prompt(
    here: Here, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    assert succeeded(here("-sc", "query=bash")).err == ""


def test_in_bash() -> None:
    """Bash splits words at = and :, and replaces only what follows."""
    script = (
        f'PATH={PROGRAM.parent}:$PATH; eval "$(pe-lab -sc install=bash)"\n'
        "for line in 'pe-lab task=flipflop pe=re' 'pe-lab train.ste'; do\n"
        "  COMP_LINE=$line COMP_POINT=${#line}\n"
        "  _pe_lab_completion pe-lab; echo ${COMPREPLY[@]}\n"
        "done\n"
    )
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert ended.stdout.splitlines() == ["recurrent relative repo rerope", "train.steps="]
    assert ended.stderr == ""
