"""A run's folder may come from a stranger; nothing that its configuration names is imported."""

import shutil
import sys
from pathlib import Path

import pytest
from edited import edit_summary
from program import Here, assert_refused, the_run, tiny

EVIL = "from pathlib import Path\nPath('imported').touch()\nraise SystemExit(0)\n"
WAVES = """
from pe_lab.pe.base import PositionalEncoding
class Waves(PositionalEncoding):
    '''Nothing at all.'''
    def __init__(self, dims):
        super().__init__()
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pe_lab.cli.main import main

    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(tiny("pe=cope", "train.steps=2")) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run, beside a module that must not be imported."""
    shutil.copytree(made / "runs", tmp_path / "runs")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "evil.py").write_text(EVIL)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    return the_run(tmp_path / "runs")


@pytest.mark.parametrize(
    ("section", "name"),
    [("pe", "evil.X"), ("task", "evil.X"), ("model", "unittest.__main__.X"), ("train", "evil.X")],
)
@pytest.mark.parametrize("command", ["inspect", "eval", "report"])
def test_no_foreign_module_is_imported(
    here: Here, run: Path, section: str, name: str, command: str
) -> None:
    key = "optimizer" if section == "train" else "_target_"
    edit_summary(run, lambda summary: summary["config"][section].update({key: name}))
    where = [] if command == "report" else [f"run={run}"]
    ended = here(command, *where)
    if command == "report":
        # Not chosen by the user, and so shown on the page.
        assert ended.status == 0
        message = Path("runs/report/index.html").read_text()
    else:
        assert (ended.status, ended.err.count("\n")) == (2, 1)
        message = ended.err
    assert f"names the class {name}, which is not of pe_lab" in message
    assert not Path("imported").exists()


def test_a_module_that_exits_is_one_sentence(here: Here, run: Path) -> None:
    assert_refused(here(*tiny("pe._target_=evil.X")), "evil.X fails at")


def test_what_the_command_line_names_is_trusted(here: Here, run: Path) -> None:
    Path("lib/ripples.py").write_text(WAVES)
    Path("mine/pe").mkdir(parents=True)
    Path("mine/pe/waves.yaml").write_text("_target_: ripples.Waves\n")
    words = ["--config-dir", "mine"]
    assert here(*words, *tiny("pe=waves", "train.steps=2")).status == 0
    del sys.modules["ripples"]
    (path,) = Path("runs/flipflop/waves").glob("seed*")
    for command in (["inspect"], ["eval"], ["generate", "prompt=w1"]):
        assert_refused(
            here(*command, f"run={path}"),
            "give --config-dir FOLDER with a yaml whose _target_ is ripples.Waves",
        )
    assert here("inspect", f"run={path}", *words).status == 0
