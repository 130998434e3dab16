"""Bad input is refused in one sentence with value, key, limit and remedy, before any work."""

import re
from pathlib import Path

import pytest
import torch
from bad_words import ALWAYS, BAD
from program import Here, succeeded, summary, the_run, tiny

FILES = {
    "bad.txt": "w1i0i1r1\nw0xxi1r0\n",
    "conf/task/broken.yaml": (
        "_target_: pe_lab.tasks.flipflop.FlipFlop\nlength: [16\np_ignore: 0.5\n"
    ),
    "conf/task/bad_file.yaml": (
        "_target_: pe_lab.tasks.flipflop.FlipFlop\n"
        "length: 8\np_ignore: 0.5\nsplits: {}\nfiles: {in_domain: bad.txt}\n"
    ),
    "conf/pe/no_target.yaml": "base: 3\n",
    "conf/pe/syntax.yaml": "_target_: bad_syntax.PE\n",
    "conf/pe/name.yaml": "_target_: bad_name.PE\n",
    "conf/pe/raising.yaml": "_target_: raising.PE\n",
    "far.py": (
        "from pe_lab.pe.positions import Sequential\n"
        "class Far(Sequential):\n"
        "    def limit(self, length, *, training):\n"
        "        return length if training else 3 * length\n"
    ),
    "bad_syntax.py": "class PE(\n",
    "bad_name.py": "x = undefined\n",
    "raising.py": (
        "from pe_lab.pe.base import PositionalEncoding\n"
        "class PE(PositionalEncoding):\n"
        "    def __init__(self, dims, *args, **kwargs):\n"
        "        raise KeyError('lost')\n"
    ),
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "conf/pe/blob.yaml").write_bytes(b"\xff\xfe\x00\xd8")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        pytest.param(*case, id=name, marks=[] if name in ALWAYS else [pytest.mark.extended])
        for name, case in BAD.items()
    ],
)
def test_one_sentence_and_nothing_done(
    here: Here, tmp_path: Path, files: None, words: list[str], parts: list[str]
) -> None:
    if "device=cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    verb = words[0] in ("results", "list", "resluts")
    ended = here(*(words if verb else tiny(*words)))
    assert ended.status == 2
    assert ended.err.count("\n") == 1
    assert ended.err.endswith("\n")
    assert ended.out == ""
    for part in parts:
        assert part in ended.err
    assert "Traceback" not in ended.err
    assert not list(tmp_path.glob("runs/*/*"))


def test_debug_adds_the_traceback(here: Here) -> None:
    for yes in ("true", "True", "yes", "1"):
        ended = here(*tiny("pe=rop", f"debug={yes}"))
        assert ended.status == 2
        assert "Traceback" in ended.err
        assert ended.err.splitlines()[-1].startswith("pe-lab: unknown encoding pe=rop")


def test_too_long_a_split_can_be_left_out(here: Here, tmp_path: Path) -> None:
    ended = succeeded(here(*tiny("pe=learned", "pe.max_len=32", "eval.skip_too_long=true")))
    result = summary(the_run(tmp_path / "runs"))
    assert result["too_long"] == {"long_x4": 63, "sparse_x4": 63, "dense_x4": 63}
    assert result["splits"]["long_x4"] is None
    assert not [key for key in result["metrics"] if "_x4" in key]
    assert re.search(r"long_x4 .*not applicable .*needs 63", ended.out)
    assert re.search(r"learned .*n/a", here("results").out)


def test_in_domain_is_never_left_out(here: Here, tmp_path: Path, files: None) -> None:
    words = ("pe=learned", "pe.max_len=40", "eval.skip_too_long=true")
    ended = here(*tiny(*words, "positions._target_=far.Far"))
    assert ended.status == 2
    assert ended.err == (
        "pe-lab: pe.max_len=40 is too short: in_domain needs 45 positions; "
        "raise pe.max_len to 189\n"
    )
