"""Names as they are on the terminal, and output that is full, closed or in another encoding."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from program import Here, ran, state, succeeded, the_run, tiny

from pe_lab.store.run_folder import RunFolder

PROGRAM = [sys.executable, "-m", "pe_lab"]


def test_markup_in_a_folder_is_shown_as_it_is(here: Here, tmp_path: Path) -> None:
    ended = succeeded(here(*tiny("train.steps=2", "runs_dir='m[/b]x[y]'")))
    assert "written to  m[/b]x[y]/flipflop/none/seed0-" in ended.out
    (path,) = Path("m[/b]x[y]").glob("*/*/seed*/status.json")
    path.with_name("summary.json").unlink()
    RunFolder(path.parent).set_status("failed", 1, 2, "[red]x")
    assert "[red]x" in here("results", "runs_dir=m[/b]x[y]").out


@pytest.mark.parametrize("module", ["pe_lab.core.errors", "numpy", "torch"])
def test_ctrl_c_amid_an_import_leaves_no_traceback(tmp_path: Path, module: str) -> None:
    program = tmp_path / "pe-lab"
    program.write_text(f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, *rest):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from pe_lab.cli.main import entry
entry()
""")
    words = [sys.executable, str(program), *tiny()]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory, tiny("train.steps=2"))


@pytest.mark.parametrize(
    "words",
    ["results", "runs", "compare", "leaderboard", "report", "suite quick dry=true"],
)
def test_ctrl_c_ends_each_command_amid_its_work(finished: Path, words: str) -> None:
    """The signal comes when it first reads a file after the import of polars, whose handler was
    once the end of ours."""
    program = finished / "pe-lab"
    program.write_text("""
import os, signal, sys
def stop(event, args):
    if event == "open" and "polars.dataframe" in sys.modules and (
        str(args[0]).endswith(("summary.json", ".yaml"))
    ):
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(stop)
from pe_lab.cli.main import entry
entry()
""")
    line = [sys.executable, str(program), *words.split()]
    ended = subprocess.run(line, cwd=finished, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ignored_at_the_start_stays_ignored(
    tmp_path: Path, number: signal.Signals
) -> None:
    running = subprocess.Popen(
        [*PROGRAM, *tiny("train.steps=400", "train.log_every=1")], cwd=tmp_path,
        stdout=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN),
    )  # fmt: skip
    while not list(tmp_path.glob("runs/*/*/*/metrics.jsonl")):
        assert running.poll() is None
        os.sched_yield()
    running.send_signal(number)
    assert running.wait(120) == 0
    assert state(the_run(tmp_path / "runs"))["state"] == "finished"
