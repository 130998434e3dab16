"""Files are written whole or not at all, under names of their own, and never through a link."""

import errno
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import IO

import pytest
from made import made
from program import Here, assert_refused, succeeded, the_run, tiny

from pe_lab.common.errors import RunError
from pe_lab.common.files import check_writable, read_file, replace_file, write_new_file
from pe_lab.store.metrics_log import MetricsLog


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


def test_the_probe_of_a_folder_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[list[Path]] = []
    create = tempfile.TemporaryFile

    def recorded(**where: Path) -> IO[bytes]:
        file = create(**where)
        names.append(list(tmp_path.iterdir()))
        return file

    monkeypatch.setattr(tempfile, "TemporaryFile", recorded)
    check_writable(str(tmp_path))
    assert names == [[]]
    assert list(tmp_path.iterdir()) == []


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
