"""The program runs from a wheel and from a checkout that is not installed, in any folder."""

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch
from made import made
from nbclient import NotebookClient
from program import ROOT, Here, assert_has, the_run, tiny
from rich.table import Table

import pe_lab
from benchmarks import __main__ as command
from benchmarks.gauges import peak
from benchmarks.listing import Listing
from benchmarks.main_job import checked_source
from benchmarks.ours import flipflop, model_of, sized
from benchmarks.parts import Measured, Scope
from benchmarks.side import answer
from benchmarks.sides import Side, SideError, Times
from pe_lab.kernels.cpu.build import cache_folder

LIBRARIES = sysconfig.get_path("purelib")


def bare(*words: str, cwd: Path, path: Path | None) -> subprocess.CompletedProcess[str]:
    """Python with this folder and the libraries on its path, without an installed pe-lab, editable
    ones included (``-S``: no .pth file is read)."""
    folders = [str(path)] if path else []
    return subprocess.run(
        [sys.executable, "-S", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*folders, LIBRARIES])},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that a clone would have."""
    folder = tmp_path_factory.mktemp("checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(out),
        ".",
    ]
    built = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with modules and yamls of the same names as those of pe-lab."""
    folder = tmp_path / "elsewhere"
    for name in ("conf/pe/none.yaml", "conf/task/flipflop.yaml", "conf/config.yaml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("_target_: somebody.Else\n")
    for name in ("tasks/__init__.py", "tasks/flipflop.py", "tasks.py", "conf/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("raise SystemExit('the wrong module')\n")
    return folder


WHERE = (
    "import pe_lab.cli, pe_lab.conf, pe_lab.tasks.flipflop as task\n"
    "print(task.__file__, pe_lab.conf.__file__, pe_lab.cli.__file__, sep='\\n')"
)


def assert_runs(cwd: Path, path: Path | None, program: list[str]) -> None:
    """All modules come from ``path`` (or the current folder), and a run works."""
    where = bare("-c", WHERE, cwd=cwd, path=path)
    assert where.returncode == 0, where.stderr
    for file in where.stdout.splitlines():
        assert Path(file).is_relative_to(path or cwd), file
    ran = bare(*program, *tiny("train.steps=3"), cwd=cwd, path=path)
    assert ran.returncode == 0, ran.stderr
    assert "in_domain" in ran.stdout
    assert (the_run(cwd / "runs") / "summary.json").exists()


def test_every_folder_with_a_yaml_or_a_module_is_a_package() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent for path in (ROOT / "conf").rglob("*.yaml")}
    folders |= {path.parent for top in ("pe_lab", "tasks") for path in (ROOT / top).rglob("*.py")}
    dotted = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    expected = {name if name.startswith("pe_lab") else f"pe_lab.{name}" for name in dotted}
    listed = tool["packages"]
    assert expected - set(listed) == set()
    assert len(listed) == len(set(listed))
    for name in listed:
        top = name.partition(".")[2].partition(".")[0]
        mapped = name.removeprefix("pe_lab.") if top in ("conf", "tasks") else name
        assert (ROOT / mapped.replace(".", "/")).is_dir(), name


@pytest.mark.extended
def test_the_wheel_holds_every_module_and_every_yaml(checkout: Path, wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    program = [
        (pattern, "pe_lab")
        for pattern in ("*.py", "*.cpp", "*.h", "*.txt", "*.parquet", "*.sha256")
    ]
    for pattern, top in (*program, ("*.py", "tasks"), ("*.yaml", "conf")):
        for path in (checkout / top).rglob(pattern):
            name = path.relative_to(checkout).as_posix()
            assert (name if top == "pe_lab" else f"pe_lab/{name}") in held
    assert not [name for name in held if name.startswith(("tasks/", "conf/", "tests/"))]


@pytest.mark.extended
def test_the_wheel_runs_in_another_folder(wheel: Path, tmp_path: Path, elsewhere: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "--no-deps", "--no-index", "--target", str(site), str(wheel)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    program = str(site / "bin" / "pe-lab")
    assert_runs(elsewhere, site, [program])
    # The version of the program, of the package and in what a run records.
    assert wheel.name.startswith(f"pe_lab-{pe_lab.__version__}-")
    said = bare(program, "--version", cwd=elsewhere, path=site)
    assert said.stdout == f"pe-lab {pe_lab.__version__}\n"
    (start,) = json.loads((the_run(elsewhere / "runs") / "environment.json").read_text())
    assert start["versions"]["pe-lab"] == pe_lab.__version__


@pytest.mark.extended
def test_a_checkout_runs_uninstalled(checkout: Path) -> None:
    assert_runs(checkout, None, ["-m", "pe_lab"])


@pytest.mark.extended
def test_a_checkout_runs_uninstalled_in_another_folder(checkout: Path, elsewhere: Path) -> None:
    assert_runs(elsewhere, checkout, ["-m", "pe_lab"])


@pytest.mark.parametrize(
    ("words", "slow"),
    [
        (["--help"], {"torch", "wandb", "numpy", "hydra", "omegaconf", "pydantic", "rich"}),
        (["-sc", "query=bash"], {"torch", "wandb"}),
        (["--cfg", "job", *tiny()], {"torch", "wandb"}),
        (["results"], {"torch", "wandb", "hydra"}),
        (["compare"], {"torch", "wandb", "hydra"}),
        pytest.param(
            ["report", "inspect=none"], {"torch", "wandb", "hydra"}, marks=pytest.mark.extended
        ),
    ],
)
def test_nothing_slow_is_imported(here: Here, words: list[str], slow: set[str]) -> None:
    made("rope")
    code = (
        "import sys; from pe_lab.cli.main import main; status = main(sys.argv[1:]); "
        "print(*{name.partition('.')[0] for name in sys.modules}); sys.exit(status)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "COMP_LINE": "pe-lab pe=r", "COMP_POINT": "11"},
        capture_output=True,
        text=True,
    )
    *shown, imported = ended.stdout.splitlines() or [""]
    assert (ended.returncode, bool(shown)) == (0, True), ended.stderr
    assert "pe_lab" in imported.split()
    assert not slow & {*imported.split()}


PATH = ROOT / "docs" / "first_steps.ipynb"
PROGRESS = """
from pe_lab.core import console

console.LINE_INTERVAL_S = 0
run("task=flipflop", "pe=none", **{**small, "steps": 3})
"""


def notebook() -> nbformat.NotebookNode:
    return nbformat.read(PATH, as_version=4)


def test_it_is_kept_without_outputs() -> None:
    """They would be those of some earlier version."""
    nbformat.validate(notebook())
    for cell in notebook().cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


@pytest.mark.extended
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "pe-lab"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pe_lab "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Not another compilation of the CPU kernels.
    monkeypatch.setenv("PE_LAB_CACHE", str(cache_folder()))
    # Files of the notebook's kernel that belong to a user.
    for key in ("HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(key, str(tmp_path / key))
        (tmp_path / key).mkdir()
    steps = notebook()
    steps.cells.append(nbformat.v4.new_code_cell(PROGRESS))
    NotebookClient(
        steps, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    text = [
        "".join(
            output.get("text", "") or output.get("data", {}).get("text/plain", "")
            for output in cell.get("outputs", [])
        )
        for cell in steps.cells
    ]
    assert len(notebook().cells) == 10
    assert_has(text[3], "runs/flipflop/rope/seed0", "in_domain")
    assert_has(text[5], "path", "long_x4", "8", "far competitors")
    assert_has(text[7], "distances clamped", "logits scaled")
    assert "alt.FacetChart" in text[9]
    assert (tmp_path / "recall.pdf").read_bytes().startswith(b"%PDF")
    # Progress is lines of text: a bar needs a terminal.
    assert_has(text[-1], "step 1/3", "step 3/3")
    assert "\x1b" not in text[-1]


def test_the_listing_computes_what_ours_does():
    length = 24
    attention = model_of(sized("cope", "small", 0.0), length).blocks[0].attention
    attention.qkv = attention.out = torch.nn.Identity()
    heads, width = attention.n_heads, 16
    listing = Listing(length, width, 0.0)
    table = attention.encoding.position.table
    with torch.no_grad():
        table.normal_()
        listing.table_DR.copy_(table.T)
    x = torch.randn(3, length, 3 * heads * width)
    mixed, _ = attention(x, torch.arange(length)[None])
    parts = (p.unflatten(-1, (heads, -1)).transpose(1, 2) for p in x.chunk(3, -1))
    torch.testing.assert_close(
        listing(*parts).transpose(1, 2).flatten(-2), mixed, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("length", [7, 16])
def test_data_have_the_length_asked_for(length):
    batch = flipflop(length, 64, "reads")
    assert batch.tokens.shape == (64, length)
    assert 0 < batch.scored.mean() < 0.3
    assert flipflop(length, 4, "all").scored.all()


def test_ratio_is_the_median_of_the_rounds():
    times = Times({"ours": [1, 2, 4], "theirs": [3, 4, 40]}, {"ours": [1], "theirs": [1]})
    assert times.ratio("theirs", "ours") == 3


def test_peak_memory_is_counted() -> None:
    """Of two tensors of 1 MiB that live at once, beside one that is freed before."""

    def step() -> float:
        torch.zeros(2**18)
        one, other = torch.zeros(2**18), torch.ones(2**18)
        return float(one[0] + other[0])

    assert 2 * 2**20 <= peak(step) < 2.1 * 2**20


def test_finished_parts_are_kept(tmp_path, monkeypatch):
    def part(name):
        if name == "benchmarks.decoding":
            raise KeyboardInterrupt
        return SimpleNamespace(measure=lambda scope: Measured(Table(), [{"found": 1}]))

    monkeypatch.setattr(command, "import_module", part)
    words = ["benchmarks", "--tiny", "--to", str(tmp_path), "--part", "attention", "decoding"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(KeyboardInterrupt):
        command.main()
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["parts"]["attention"]["rows"] == [{"found": 1}]


def test_without_the_peer_it_says_so(monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--part", "step"])
    with pytest.raises(SystemExit, match=r"not installed: pip install .*peers"):
        command.main()


def test_another_checkout_is_what_runs(tmp_path):
    other = tmp_path / "other"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(other)], check=True)
    assert checked_source(other) == other.resolve()
    with pytest.raises(SystemExit, match="give a checkout"):
        checked_source(tmp_path)


@pytest.fixture
def sides_in_this_process(monkeypatch):
    """Starting a process for each side would take most of the time."""

    def ask(self, do, **request):
        request = json.loads(json.dumps({"do": do, **request}))
        return json.loads(json.dumps(answer(request, vars(self).setdefault("here", []))))

    monkeypatch.setattr(Side, "ask", ask)


@pytest.mark.parametrize("part", ["attention", "decoding"])
def test_part_is_measured(part, sides_in_this_process):
    measured = import_module(f"benchmarks.{part}").measure(Scope("tiny"))
    assert measured.rows
    assert measured.table.row_count == len(measured.rows)
    json.dumps(measured.rows)


def test_step_is_compared_with_a_model_of_equal_size(sides_in_this_process):
    pytest.importorskip("x_transformers", reason="of the extra `peers`")
    from benchmarks import step

    (row,) = step.measure(Scope("tiny")).rows
    assert row["ratios"]["float32"][1] > 0
    assert row["facts"]["trunk"] > 0


@pytest.mark.extended
def test_side_is_a_process_that_answers():
    with Side("shipped") as side:
        runner = side.make("listing.attention", size="tiny", length=8, batch=1, dropout=0.0)
        assert all(ms > 0 for ms in runner.run(2))
        assert runner.peak() > 4 * 2 * 8 * 8
        with pytest.raises(SideError):
            side.make("listing.nothing")
