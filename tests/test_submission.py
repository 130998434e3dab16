"""``pe-lab submit``: a submission to the leaderboard, and its check."""

import json
import shutil
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from program import Here, assert_has, assert_refused, succeeded, working_in
from suites import tiny_suite

from pe_lab.cli.main import main
from pe_lab.core.errors import DamagedError, UsageError
from pe_lab.results.leaderboard.submission import unpacked
from pe_lab.results.suite import load_suite
from pe_lab.store.schema import digest_of, sealed

DECAY = """
import torch
from torch import nn
from pe_lab.pe.base import Dims, PositionalEncoding

class Decaying(PositionalEncoding):
    shift_invariant = True
    def __init__(self, dims: Dims, start: float) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.full((dims.n_heads,), start))
    def bias(self, pos_q_BT, pos_k_BS):
        return -self.rate[:, None, None] * (pos_q_BT[:, None, :, None] - pos_k_BS[:, None, None])
"""
MINE = ("--config-dir", "mine")
BOTH = ["alone", "conv"]
PARTS = {
    "columns": {"alone": {}, "conv": {"words": ["model.conv=3"]}},
    "parts": {1: [{"tasks": ["flipflop"], "entries": ["alibi"], "columns": BOTH, "seeds": 1}]},
}
"""Of the suite: two columns, whose score has one seed and not the protocol's two."""
pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a suite's runs of an encoding, and their submission."""
    folder = tmp_path_factory.mktemp("submission")
    with working_in(folder):
        words = tiny_suite(folder, more=PARTS)
        (folder / "mine" / "pe").mkdir()
        (folder / "mine" / "decaying_of_tests.py").write_text(DECAY)
        yaml = "_target_: decaying_of_tests.Decaying\nstart: 0.2\n"
        (folder / "mine" / "pe" / "decaying.yaml").write_text(yaml)
        assert main([*words, "pe=decaying,alibi"]) == 0
        assert main(["submit", "pe=decaying", "suite=tiny", "to=one.zip", *MINE]) == 0
    return folder


def test_a_class_that_no_yaml_names_is_refused_before_it_is_packed(
    there: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever checks the file could not make a run again."""
    monkeypatch.setattr("pe_lab.core.config_dir._named", set())
    sys.modules.pop("decaying_of_tests", None)
    Path("mine/pe/decaying.yaml").unlink()
    refused = there("submit", "pe=decaying", "suite=tiny", "to=two.zip", *MINE)
    assert_refused(refused, "a yaml whose _target_ or factory is decaying_of_tests.Decaying")
    assert not Path("two.zip").exists()


@pytest.fixture
def there(made: Path, here: Here, tmp_path: Path) -> Here:
    for name in ("mine", "runs", "one.zip"):
        (shutil.copy if name.endswith("zip") else shutil.copytree)(made / name, tmp_path / name)
    return here


def of_conv(files: Mapping[str, bytes]) -> set[str]:
    """The folders of the runs with the convolution."""
    summaries = {n: json.loads(c) for n, c in files.items() if n.endswith("summary.json")}
    return {n.split("/")[-2] for n, s in summaries.items() if s["config"]["model"]["conv"]}


def edited(folder: Path, change: str, to: str = "two.zip") -> None:
    """The submission with another content of a file; the digests are made to fit (a forger can)."""
    with zipfile.ZipFile(folder / "one.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files.pop("submission.json"))
    summaries = [n for n in files if "decaying/seed0-" in n and n.endswith("summary.json")]
    if change == "error":
        summary = json.loads(files[summaries[0]])
        summary.pop("digest")
        numbers, key = summary["metrics"], "ood/sparse/error"
        numbers[key] = (numbers[key] + numbers[f"{key}_low"]) / 2
        files[summaries[0]] = sealed(summary).encode()
    elif change == "left out":
        run = summaries[0].rpartition("/")[0]
        files = {name: content for name, content in files.items() if not name.startswith(run)}
    elif change == "rate":
        runs = {n.rpartition("/")[0] for n in files if "seed1000-" in n}
        files = {n: c for n, c in files.items() if n.rpartition("/")[0] != min(runs)}
    elif change == "identity":
        summary = json.loads(files[summaries[0]])
        summary.pop("digest")
        summary["config"]["pe"]["start"] = 0.9
        files[summaries[0]] = sealed(summary).encode()
    elif change == "column":
        files = {n: c for n, c in files.items() if n.split("/")[-2] not in of_conv(files)}
    elif change == "foreign":
        manifest["entry"] = "decaying"
        for path in folder.glob("runs/flipflop/alibi/seed*/*.*"):
            files[str(path.relative_to(folder))] = path.read_bytes()
    elif change == "outside":
        files["../gone.py"] = b""
    manifest["files"] = {name: digest_of(content) for name, content in files.items()}
    manifest.pop("digest")
    with zipfile.ZipFile(folder / to, "w") as archive:
        for name, content in {"submission.json": sealed(manifest).encode(), **files}.items():
            archive.writestr(name, content)


def test_a_submission_is_checked_and_two_runs_are_made_again(there: Here, tmp_path: Path) -> None:
    said = succeeded(there("submit", "check=one.zip", *MINE)).out
    assert_has(said, "10 runs of decaying: digests, identities and protocol as stated")
    assert said.count("made again with the same errors") == 2
    again = there("submit", "pe=decaying", "suite=tiny", "to=again.zip", *MINE)
    assert "again.zip: 10 runs" in succeeded(again).out
    succeeded(there("submit", "pe=decaying+conv", "suite=tiny", "to=conv.zip", *MINE))
    with zipfile.ZipFile(tmp_path / "conv.zip") as archive:
        assert json.loads(archive.read("submission.json"))["entry"] == "decaying"
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "one.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert {"code/decaying_of_tests.py", "code/pe/decaying.yaml"} <= {*archive.namelist()}
        assert not any(name.endswith(".pt") for name in archive.namelist())


def test_its_code_is_not_run(there: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pe_lab.core.config_dir._named", set())
    shutil.rmtree(tmp_path / "mine" / "pe")
    (tmp_path / "mine" / "decaying_of_tests.py").unlink()
    sys.modules.pop("decaying_of_tests", None)
    refused = there("submit", "check=one.zip", *MINE)
    assert_has(refused.err, "decaying_of_tests.Decaying, which is not of pe_lab")
    assert refused.status == 2
    assert "decaying_of_tests" not in sys.modules


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("column", "flipflop: decaying+conv has no run, and the suite scores it"),
        ("foreign", "it has runs of alibi, and is a submission of decaying"),
        ("error", "made again with other errors (sparse"),
        ("left out", "lacks seeds 0 at the chosen rate"),
        ("rate", "flipflop: 3 of 4 rates were tried for decaying"),
        ("identity", "has the configuration of"),
    ],
)
def test_a_forged_submission_is_found(change: str, said: str, there: Here, tmp_path: Path) -> None:
    edited(tmp_path, change)
    found = there("submit", "check=two.zip", *MINE)
    assert found.status == 1
    assert_has(found.out, said)
    assert_has(found.err, "submit check=two.zip: ", "fault")


def test_a_file_that_is_damaged_or_none_is_one_sentence(there: Here, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "one.zip", "a") as archive:
        archive.writestr("code/more.py", "")
    assert_refused(there("submit", "check=one.zip", *MINE), "code/more.py is not as it", status=1)
    shutil.copy(tmp_path / "mine" / "decaying_of_tests.py", tmp_path / "none.zip")
    assert_refused(there("submit", "check=none.zip"), "none.zip is not a submission")
    assert_refused(there("submit", "check=gone.zip"), "gone.zip is not a submission")


def test_a_name_outside_of_its_folder_is_refused(there: Here, tmp_path: Path) -> None:
    edited(tmp_path, "outside")
    refused = there("submit", "check=two.zip", *MINE)
    assert_refused(refused, "../gone.py would be written outside", status=1)


def written(path: Path, *names: str, **keys: object) -> Path:
    files = dict.fromkeys(names, digest_of(b""))
    manifest = {"suite": "tiny-00000000", "entry": "mine", "files": files, **keys}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("submission.json", sealed(manifest))
        for name in names:
            archive.writestr(name, b"")
    return path


@pytest.mark.parametrize(
    ("names", "keys", "said"),
    [
        ((), {"suite": 3}, "submission.json has no suite of type str"),
        ((), {"entry": None}, "submission.json has no entry of type str"),
        ((), {"files": []}, "submission.json has no files of type dict"),
        ((".",), {}, "outside of its folder"),
        (("/runs",), {}, "outside of its folder"),
        (("runs/a", "runs/a/b"), {}, "runs/a/b cannot be unpacked (File exists)"),
        (("code/" + 256 * "a",), {}, "cannot be unpacked (File name too long)"),
    ],
)
def test_a_forged_manifest_or_name_is_one_sentence(
    names: tuple[str, ...], keys: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises((UsageError, DamagedError)) as raised:
        unpacked(written(tmp_path / "two.zip", *names, **keys), tmp_path / "to")
    assert_has(str(raised.value), str(tmp_path / "two.zip"), said)


@pytest.mark.parametrize(
    ("at", "byte", "said"),
    [
        (6, 1, "encrypted"),  # A flag of the first file.
        (8, 99, "not supported"),  # Its compression.
        (30 + len("submission.json"), 255, "decompressing"),  # Its first byte.
    ],
)
def test_a_zip_that_cannot_be_read_is_one_sentence(
    at: int, byte: int, said: str, there: Here, tmp_path: Path
) -> None:
    content = bytearray((tmp_path / "one.zip").read_bytes())
    content[at] = byte
    if at < 30:  # The list at the end has it, too.
        content[content.index(b"PK\x01\x02") + at + 2] = byte
    (tmp_path / "two.zip").write_bytes(content)
    assert_refused(there("submit", "check=two.zip"), "two.zip is not a submission", said)


def test_a_submission_of_no_run_is_a_fault(there: Here, tmp_path: Path) -> None:
    suite = load_suite("tiny", tmp_path / "mine")
    written(tmp_path / "two.zip", suite=suite.version)
    found = there("submit", "check=two.zip", *MINE)
    assert_has(found.out, "wrong: it has no run of mine in suite tiny")
    assert found.status == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pe=decaying", "suite=tiny"), "submit needs an entry and a file"),
        (
            ("pe=gone", "suite=tiny", "to=x.zip"),
            "suite tiny has no runs of it (runs: alibi, alibi+conv, decaying, ",
        ),
        (("pe=decaying", "suite=tiny", "to=one.zip"), "exists and is not overwritten"),
        (("pe=decaying", "suite=tiny", "to=x.tar"), "to=x.tar is not a .zip"),
        (("check=one.zip", "pe=decaying"), "is given by itself"),
    ],
)
def test_bad_words_are_one_sentence(words: tuple[str, ...], said: str, there: Here) -> None:
    assert_refused(there("submit", *words, *MINE), said)
