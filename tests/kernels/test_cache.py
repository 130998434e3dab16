"""A compiled kernel is used again where it is whole, and where only this user could write it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from builds import Place

from pe_lab.kernels.cpu import build


@pytest.mark.parametrize("fault", ["cut short", "not whole", "not a library", "no digest"])
def test_a_broken_library_is_compiled_again(
    fault: str, place: Place, answer: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not loaded yet: the loader would know the file again by its name.
    with monkeypatch.context() as patched:
        patched.setattr(build.ctypes, "CDLL", lambda path: object())
        build.library("question")
    kept, digest = place.kept(), place.kept().with_suffix(".sha256")
    whole = kept.read_bytes()
    if fault == "cut short":
        kept.write_bytes(whole[:4096])
    elif fault == "not whole":
        kept.write_bytes(whole[:2000] + bytes(len(whole) - 2000))
    elif fault == "not a library":
        kept.write_bytes(b"nonsense")
        digest.write_bytes(build._digest(kept))
    else:
        digest.unlink()
    assert answer() == (42, [])
    assert place.compiled() == 2


def test_a_cache_that_cannot_be_written_costs_a_build_a_process(
    place: Place, answer: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    place.cache.write_text("a file where a folder should be")
    for built in (1, 2):
        found, (warning,) = answer()
        assert found == 42
        assert "compiled again by every process" in warning
        assert place.compiled() == built


def test_a_library_that_others_could_have_put_there_is_not_loaded(
    place: Place, answer: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer() == (42, [])
    assert place.cache.stat().st_mode & 0o777 == 0o700
    for built, mode in ((2, 0o777), (3, 0o770)):
        place.cache.chmod(mode)
        found, (warning,) = answer()
        assert (found, place.compiled()) == (42, built)
        assert f"other users may write to {place.cache}" in warning
    place.cache.chmod(0o755)
    assert answer() == (42, [])
    mine = os.geteuid()
    if mine == 0:
        os.chown(place.cache, 12345, -1)
    else:
        monkeypatch.setattr(build.os, "geteuid", lambda: mine + 1)
    found, (warning,) = answer()
    assert (found, place.compiled()) == (42, 4)
    assert f"{place.cache} belongs to another user" in warning


@pytest.mark.parametrize("suffix", [".so", ".sha256"])
@pytest.mark.parametrize("fault", ["owner", "mode", "link"])
def test_a_file_that_others_could_have_written_is_compiled_again(
    suffix: str, fault: str, place: Place, answer: Callable, tmp_path: Path
) -> None:
    """V15."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(build.ctypes, "CDLL", lambda path: object())
        build.library("question")
    file = place.kept().with_suffix(suffix)
    if fault == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(file, 12345, -1)
    elif fault == "mode":
        file.chmod(0o660)
    else:
        file.symlink_to(file.rename(tmp_path / "elsewhere"))
    assert answer() == (42, [])
    assert place.compiled() == 2


def test_the_folder_of_a_killed_build_is_removed(
    place: Place, answer: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V14."""
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    old, new = tmp_path / f"{build.BUILD}old", tmp_path / f"{build.BUILD}new"
    for folder in (old, new):
        folder.mkdir()
    os.utime(old, (0, 0))
    assert answer() == (42, [])
    assert (old.exists(), new.exists()) == (False, True)


def test_a_full_disk_costs_a_build_a_process(
    place: Place, answer: Callable, disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = disk("64k")
    folder.chmod(0o700)
    monkeypatch.setenv("PE_LAB_CACHE", str(folder))
    with pytest.raises(OSError, match="No space left"):
        (folder / "filling").write_bytes(bytes(10**6))
    found, (warning,) = answer()
    assert found == 42
    assert "No space left" in warning
    assert not list(folder.glob("*.so"))


def test_a_user_without_a_home_compiles_every_time(
    answer: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(build, "cache_folder", homeless)
    found, (warning,) = answer()
    assert found == 42
    assert "Could not determine home directory" in warning


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PE_LAB_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert build.cache_folder() == Path("/home/me/.cache/pe-lab")
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
    assert build.cache_folder() == Path("/scratch/pe-lab")
