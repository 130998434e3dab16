"""The processor's model name, as it is recorded of each start of a run."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from pe_lab.experiment import provenance


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD: 9654\nmodel name\t: other\n", "AMD: 9654"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", None),
        (None, None),
    ],
)  # fmt: skip
def test_on_linux_it_is_that_of_cpuinfo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cpuinfo: str | None, name: str | None
) -> None:
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(provenance, "Path", lambda _: path)
    assert provenance.processor() == name


@pytest.mark.parametrize(
    ("output", "name"), [(b"Apple M2\n", "Apple M2"), (b"", None), (FileNotFoundError(), None)]
)
def test_on_macos_it_is_that_of_sysctl(
    monkeypatch: pytest.MonkeyPatch, output: Any, name: str | None
) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        assert command[0] == "sysctl"
        if isinstance(output, Exception):
            raise output
        return subprocess.CompletedProcess(command, 0, output)

    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(provenance.subprocess, "run", run)
    assert provenance.processor() == name
