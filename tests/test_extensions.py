"""Classes from outside, each one file and one yaml. Encodings, tasks and models
are in test_new.py."""

import json
import platform
import sys
from pathlib import Path

import pytest
from program import Here, assert_refused, rows, the_run, tiny

LINES = '''
import json
from pydantic import PositiveInt
from pe_lab.core.tracker import Tracker

class Lines(Tracker):
    """Every n-th row as a line of a file."""
    def __init__(self, every: PositiveInt):
        self.every, self.rows = every, []
    def start(self, run):
        self.file = run.folder / "lines.txt"
        self.rows += run.rows
        self.name_of_run = f"{run.config['names']['pe']} {run.environment['python']}"
    def log(self, row):
        self.rows.append(row)
    def finish(self, summary, exit_code):
        kept = [self.name_of_run, *self.rows[:: self.every], summary["steps"], exit_code]
        self.file.write_text("".join(json.dumps(one) + "\\n" for one in kept))
'''


def test_a_tracker(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("lib", "mine/tracker"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "lib/lines.py").write_text(LINES)
    (tmp_path / "mine/tracker/lines.yaml").write_text("_target_: lines.Lines\nevery: 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    words = ["--config-dir", "mine", *tiny("tracker=lines", "train.steps=4")]
    assert here(*words).status == 0
    folder = the_run(tmp_path / "runs")
    first, *logged, steps, code = map(json.loads, (folder / "lines.txt").open())
    assert first == f"none {platform.python_version()}"
    assert (steps, code) == (4, 0)
    assert [{k: v for k, v in row.items() if k != "time/train_s"} for row in logged] == rows(folder)
    assert_refused(here(*words, "tracker.every=0"), "tracker.every=0")
    # A recorded run needs no tracker.
    (tmp_path / "lib" / "lines.py").write_text("raise SystemExit")
    sys.modules.pop("lines")
    assert here("eval", f"run={folder}", "lengths=16").status == 0
