"""The commands that measure speed, at sizes that measure nothing: they run, and the sides that they
compare compute the same."""

import json
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from program import ROOT
from rich.table import Table

from benchmarks import __main__ as command
from benchmarks.listing import Listing
from benchmarks.main_job import checked_source
from benchmarks.ours import flipflop, model_of, sized
from benchmarks.parts import Measured, Scope
from benchmarks.side import answer
from benchmarks.sides import Side, SideError, Times


def test_the_listing_computes_what_ours_does():
    length = 24
    attention = model_of(sized("cope", "small", 0.0), length).blocks[0].attention
    attention.qkv = attention.out = torch.nn.Identity()
    heads, width = attention.n_heads, 16
    listing = Listing(length, width, 0.0)
    table = attention.encoding.position.table
    with torch.no_grad():
        table.normal_()
        listing.table_DR.copy_(table.T)
    x = torch.randn(3, length, 3 * heads * width)
    mixed, _ = attention(x, torch.arange(length)[None])
    parts = (p.unflatten(-1, (heads, -1)).transpose(1, 2) for p in x.chunk(3, -1))
    torch.testing.assert_close(
        listing(*parts).transpose(1, 2).flatten(-2), mixed, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("length", [7, 16])
def test_data_have_the_length_asked_for(length):
    batch = flipflop(length, 64, "reads")
    assert batch.tokens.shape == (64, length)
    assert 0 < batch.scored.mean() < 0.3
    assert flipflop(length, 4, "all").scored.all()


def test_ratio_is_the_median_of_the_rounds():
    times = Times({"ours": [1, 2, 4], "theirs": [3, 4, 40]}, {"ours": [1], "theirs": [1]})
    assert times.ratio("theirs", "ours") == 3


def test_finished_parts_are_kept(tmp_path, monkeypatch):
    def part(name):
        if name == "benchmarks.decoding":
            raise KeyboardInterrupt
        return SimpleNamespace(measure=lambda scope: Measured(Table(), [{"found": 1}]))

    monkeypatch.setattr(command, "import_module", part)
    words = ["benchmarks", "--tiny", "--to", str(tmp_path), "--part", "attention", "decoding"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(KeyboardInterrupt):
        command.main()
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["parts"]["attention"]["rows"] == [{"found": 1}]


def test_without_the_peer_it_says_so(monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--part", "step"])
    with pytest.raises(SystemExit, match=r"not installed: pip install .*peers"):
        command.main()


def test_another_checkout_is_what_runs(tmp_path):
    """``--before``: the whole program comes from the folder, or it is refused."""
    other = tmp_path / "other"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(other)], check=True)
    assert checked_source(other) == other.resolve()
    with pytest.raises(SystemExit, match="give a checkout"):
        checked_source(tmp_path)


@pytest.fixture
def sides_in_this_process(monkeypatch):
    """Starting a process for each side would take most of the time."""

    def ask(self, do, **request):
        request = json.loads(json.dumps({"do": do, **request}))
        return json.loads(json.dumps(answer(request, vars(self).setdefault("here", []))))

    monkeypatch.setattr(Side, "ask", ask)


@pytest.mark.parametrize("part", ["attention", "decoding"])
def test_part_is_measured(part, sides_in_this_process):
    measured = import_module(f"benchmarks.{part}").measure(Scope("tiny"))
    assert measured.rows
    assert measured.table.row_count == len(measured.rows)
    json.dumps(measured.rows)


def test_step_is_compared_with_a_model_of_equal_size(sides_in_this_process):
    pytest.importorskip("x_transformers", reason="of the extra `peers`")
    from benchmarks import step

    (row,) = step.measure(Scope("tiny")).rows
    assert row["ratios"]["float32"][1] > 0
    assert row["facts"]["trunk"] > 0


@pytest.mark.extended
def test_side_is_a_process_that_answers():
    with Side("shipped") as side:
        runner = side.make("listing.attention", size="tiny", length=8, batch=1, dropout=0.0)
        assert all(ms > 0 for ms in runner.run(2))
        assert runner.peak() > 4 * 2 * 8 * 8
        with pytest.raises(SideError):
            side.make("listing.nothing")
