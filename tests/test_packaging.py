"""The program runs from a wheel and from a checkout that is not installed, in any folder."""

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import nbformat
import pytest
from made import made
from nbclient import NotebookClient
from program import ROOT, Here, the_run, tiny

import pe_lab
from pe_lab.kernels.build import cache_folder

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
def test_a_checkout_runs_uninstalled_in_another_folder(checkout: Path, elsewhere: Path) -> None:
    assert_runs(elsewhere, checkout, ["-m", "pe_lab"])


@pytest.mark.parametrize(
    ("words", "slow"),
    [
        (["--help"], {"torch", "wandb", "numpy", "hydra", "omegaconf", "pydantic", "rich"}),
        (["--cfg", "job", *tiny()], {"torch", "wandb"}),
        (["results"], {"torch", "wandb", "hydra"}),
        (["compare"], {"torch", "wandb", "hydra"}),
        # It would take a run as long as torch itself.
        (tiny("pe=learned", "tracker=none"), {"torch._dynamo"}),
        pytest.param(
            ["report", "inspect=none"], {"torch", "wandb", "hydra"}, marks=pytest.mark.extended
        ),
    ],
)
def test_nothing_slow_is_imported(here: Here, words: list[str], slow: set[str]) -> None:
    made("rope")
    code = (
        "import sys; from pe_lab.cli.main import main; status = main(sys.argv[1:]); "
        "print(*sys.modules); sys.exit(status)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
    )
    *shown, imported = ended.stdout.splitlines() or [""]
    assert (ended.returncode, bool(shown)) == (0, True), ended.stderr
    assert "pe_lab" in imported.split()
    assert not slow & {*imported.split()}


PATH = ROOT / "docs" / "first_steps.ipynb"


def notebook() -> nbformat.NotebookNode:
    return nbformat.read(PATH, as_version=4)


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
    NotebookClient(
        steps, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert (tmp_path / "recall.pdf").read_bytes().startswith(b"%PDF")
    # The site and GitHub show what is stored: execute the notebook again where this fails.
    stored = notebook().cells
    shown = [[bool(cell.get("outputs")) for cell in cells] for cells in (stored, steps.cells)]
    assert shown[0] == shown[1]
    tables = [cells[5].outputs[0].data["text/plain"] for cells in (stored, steps.cells)]
    assert tables[0] == tables[1]
