"""Files are written whole or not at all, rows come back exactly, and no stranger's code runs."""

import errno
import json
import math
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from made import edit_summary, made
from program import Here, assert_refused, ran, succeeded, the_run, tiny

from pe_lab.core.errors import RunError
from pe_lab.core.files import read_file, replace_file, write_new_file
from pe_lab.store.metrics_log import MetricsLog, read_metrics


def _write(path: Path, letter: bytes, times: int) -> None:
    for _ in range(times):
        replace_file(path, letter * 20_000)


def test_two_writers_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    replace_file(path, b"a" * 20_000)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(path, x, 60)) for x in (b"a", b"b")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        content = path.read_bytes()
        assert content in (b"a" * 20_000, b"b" * 20_000)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert [file.name for file in tmp_path.iterdir()] == ["status.json"]


def test_a_link_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    for name in ("status.json", ".status.json.part"):
        (tmp_path / name).symlink_to(target)
    replace_file(tmp_path / "status.json", b"{}")
    assert target.read_text() == "mine"
    assert not (tmp_path / "status.json").is_symlink()


def test_nothing_is_appended_through_a_link(here: Here, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / "metrics.jsonl").symlink_to(target)
    with pytest.raises(RunError, match="is a link, and nothing is written through links: remove"):
        MetricsLog(tmp_path / "metrics.jsonl", 0)
    assert here(*tiny("train.steps=2")).status == 0
    run = the_run(tmp_path / "runs")
    (run / "evaluations.jsonl").symlink_to(target)
    assert_refused(here("eval", f"run={run}", "lengths=8"), status=1)
    # The log, which a run writes first.
    (run / "summary.json").unlink()
    (run / "log.txt").unlink()
    (run / "log.txt").symlink_to(target)
    assert here(*tiny("train.steps=2")).status == 0
    assert target.read_text() == "mine"


def test_a_new_file_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output"):
            write_new_file(path, b"1,2\n")
    assert list(tmp_path.iterdir()) == []
    write_new_file(path, b"1,2\n")
    with pytest.raises(FileExistsError):
        write_new_file(path, b"3,4\n")
    assert path.read_bytes() == b"1,2\n"


def test_what_a_killed_writer_left_is_removed(here: Here, tmp_path: Path) -> None:
    assert here(*tiny("train.steps=2")).status == 0
    run = the_run(tmp_path / "runs")
    (run / "summary.json").unlink()
    (run / ".checkpoint.pt.0123abcd.part").write_text("half")
    assert here(*tiny("train.steps=2")).status == 0
    assert list(run.glob(".*")) == []


def test_what_a_killed_command_left_outside_of_runs_is_removed(here: Here, tmp_path: Path) -> None:
    """By the next command that writes there, an hour later; files of others stay."""
    assert here(*tiny("train.steps=2")).status == 0
    run = the_run(tmp_path / "runs")
    folders = [tmp_path / "runs" / name for name in ("evaluations", "report")]
    for folder in folders:
        folder.mkdir()
        for name in (".a.csv.0123abcd.part", ".b.csv.0123abcd.part", ".mine.part"):
            (folder / name).write_text("half")
            if not name.startswith(".b"):
                os.utime(folder / name, (0, 0))
    assert here("eval", f"run={run}", "lengths=8").status == 0
    assert here("report", "inspect=none").status == 0
    for folder in folders:
        assert sorted(p.name for p in folder.glob(".*")) == [".b.csv.0123abcd.part", ".mine.part"]


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_not_read(here: Here, tmp_path: Path, kind: str) -> None:
    made("a")
    path = made("b").path / "summary.json"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(OSError, match="directory" if kind == "folder" else "regular"):
        read_file(path)
    shown = succeeded(here("results"))
    assert "cannot be read" in " ".join(shown.out.split())


def write_rows(path: Path, rows: list[dict[str, Any]]) -> int:
    with closing(MetricsLog(path, 0)) as log:
        for row in rows:
            log.write(row)
        log.sync()
        return log.size


def test_floats_come_back_exactly_and_every_line_is_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    floats = [0.1, 1 / 3, math.pi * 1e-300, 5e-324, -0.0, 2.0**53 + 2, 1e22]
    rows = [{"step": step, "train/loss": value} for step, value in enumerate(floats)]
    size = write_rows(path, rows)
    assert size == path.stat().st_size
    assert [row["train/loss"].hex() for row in read_metrics(path)] == [f.hex() for f in floats]

    write_rows(path, [{"step": 1, "a": math.nan, "b": -math.inf, "c": None}])
    strict = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert strict == {"step": 1, "a": None, "b": None, "c": None}


def test_a_resumed_run_cuts_back_to_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": step, "train/loss": 1.0} for step in range(5)]
    keep = write_rows(path, rows[:2])
    with path.open("ab") as file:
        file.write(b'{"step": 2, "train/loss": 1.0}\n{"step": 5, "tra')

    with closing(MetricsLog(path, keep)) as log:
        assert log.size == keep == path.stat().st_size
        log.write({"step": 2, "train/loss": 2.0})
    assert read_metrics(path) == [*rows[:2], {"step": 2, "train/loss": 2.0}]


def test_a_new_run_starts_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsLog(path, 0)) as log:
        assert log.size == 0
    write_rows(path, [{"step": 3}])
    MetricsLog(path, 0).close()
    assert path.read_bytes() == b""


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    # A crash of the machine can leave zeros where the last row was to be.
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n\0\0\0\0')
    assert read_metrics(path) == [{"step": 1}, {"step": 2}]


def test_a_broken_line_before_the_last_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(RunError, match=r"line 2 .*force=true"):
        read_metrics(path)


@pytest.mark.parametrize("keep", [1, 5, 13, 10_000])
def test_a_file_that_is_not_the_checkpoints_is_refused_and_left_alone(
    tmp_path: Path, keep: int
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n')
    with pytest.raises(RunError, match=rf"12 bytes.* {keep} bytes.*force=true"):
        MetricsLog(path, keep)
    assert path.read_bytes() == b'{"step": 1}\n'


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        RunError, match=r"file/metrics.jsonl cannot be written \(Not a directory\): .*runs_dir"
    ):
        MetricsLog(tmp_path / "file" / "metrics.jsonl", 0)


@pytest.fixture
def small_disk(disk: Callable[[str], Path]) -> Path:
    return disk("64k")


def test_a_full_disk_is_one_sentence_and_leaves_whole_rows(small_disk: Path) -> None:
    path = small_disk / "metrics.jsonl"
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 40_000)
    with closing(MetricsLog(path, 0)) as log:

        def fill() -> None:
            for step in range(1000):
                log.write({"step": step, "x" * 100: 1.0})

        with pytest.raises(
            RunError,
            match=r"metrics.jsonl cannot be written \(No space left .*: make room",
        ):
            fill()
        assert log.size == path.stat().st_size
        written = len(read_metrics(path))
        filler.unlink()
        log.write({"step": written})
    assert [row["step"] for row in read_metrics(path)] == list(range(written + 1))
    assert written > 50


def test_a_row_half_written_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"

    class Full:
        def __init__(self, file: Any) -> None:
            self.file, self.room = file, 7

        def write(self, data: bytes) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written, self.room = self.file.write(data[: self.room]), 0
            return int(written)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    with closing(MetricsLog(path, 0)) as log:
        log.write({"step": 1})
        monkeypatch.setattr(log, "_file", Full(log._file))
        with pytest.raises(RunError, match="No space left"):
            log.write({"step": 2})
    assert path.read_bytes() == b'{"step": 1}\n'


EVIL = "from pathlib import Path\nPath('imported').touch()\nraise SystemExit(0)\n"
WAVES = """
from pe_lab.pe.base import PositionalEncoding
class Waves(PositionalEncoding):
    '''Nothing at all.'''
    def __init__(self, dims):
        super().__init__()
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory, tiny("pe=cope", "train.steps=2"))


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run, beside a module that must not be imported."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
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
    said = f"names the class {name}, which is not of pe_lab"
    ended = here(command, *where)
    if command == "report":
        # Not chosen by the user, and so shown on the page.
        succeeded(ended)
        assert said in Path("runs/report/index.html").read_text()
    else:
        assert_refused(ended, said)
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
            "give --config-dir FOLDER with a yaml whose _target_ or factory is ripples.Waves",
        )
    assert here("inspect", f"run={path}", *words).status == 0
