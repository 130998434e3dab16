"""The program runs from a wheel and from a checkout that is not installed, in any folder."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from program import ROOT, TINY, the_run, tiny

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
    assert_runs(elsewhere, site, [str(site / "bin" / "pe-lab")])


@pytest.mark.extended
def test_a_checkout_runs_uninstalled(checkout: Path) -> None:
    assert_runs(checkout, None, ["-m", "pe_lab"])


@pytest.mark.extended
def test_a_checkout_runs_uninstalled_in_another_folder(checkout: Path, elsewhere: Path) -> None:
    assert_runs(elsewhere, checkout, ["-m", "pe_lab"])


def test_help_imports_nothing_slow_and_shows_examples() -> None:
    code = (
        "import sys; from pe_lab.cli.main import main; status = main(['--help']); "
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)\n"
        "sys.exit(status)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0
    imported = ended.stderr.split()
    assert "pe_lab" in imported
    assert not {"torch", "wandb", "numpy", "hydra", "omegaconf", "pydantic", "rich"} & set(imported)
    for part in ("pe-lab task=flipflop pe=cope", "pe-lab -m ", "pe-lab results", "pe-lab list"):
        assert part in ended.stdout


def test_completion_and_configuration_import_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from pe_lab.cli.main import main; status = main(sys.argv[1:]); "
        "sys.exit(status or 10 * ('torch' in sys.modules or 'wandb' in sys.modules))"
    )
    line = {"COMP_LINE": "pe-lab pe=r", "COMP_POINT": "11"}
    for words in (["-sc", "query=bash"], ["--cfg", "job", *(f"{k}={v}" for k, v in TINY.items())]):
        ended = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=tmp_path,
            env={**os.environ, **line},
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.strip()
