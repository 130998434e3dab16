"""The commands that measure speed, at sizes that measure nothing: that they run, and what they
compare is the same."""

import json
import math
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from program import ROOT

from benchmarks import __main__ as command
from benchmarks import flops, formulas
from benchmarks.alternating import Side, SideError, Times
from benchmarks.commands import checked_source
from benchmarks.found import Asked, Found, Goal
from benchmarks.ours import dims, flipflop, sized, transformer
from benchmarks.scale import watched
from benchmarks.side import answer
from pe_lab.models.attention import MultiHeadAttention
from pe_lab.training.encodings import build_encodings


@pytest.mark.parametrize("encoding", formulas.FORMULAS)
def test_formula_is_what_ours_computes(encoding):
    """The peer of the attention rows does the same maths, its own weights copied from ours."""
    length, config = 24, sized(encoding, "small", 0.0)
    cfg = transformer(config)
    (layer, *_) = build_encodings(config.pe, dims(cfg, 1, length))
    ours = MultiHeadAttention(cfg, layer)
    ours.qkv = ours.out = torch.nn.Identity()
    heads, width = cfg.n_heads, cfg.d_model // cfg.n_heads
    theirs = formulas.FORMULAS[encoding](length, heads, width, 0.0)
    with torch.no_grad():
        for own in layer.parameters():
            own.normal_()
    own = dict(layer.named_parameters())
    copied = {
        "t5": {"table.weight": "table"},
        "relative": {"table_RD": "table"},
        "transformer_xl": {"project.weight": "project.weight", "u": "biases.u", "v": "biases.v"},
        "cope": {"table_DR": "position.table"},
    }.get(encoding, {})
    for name, given in theirs.named_parameters():
        source = own.pop(copied[name]).data
        given.data = source if given.shape == source.shape else source.T
    assert not own
    x = torch.randn(3, length, 3 * cfg.d_model)
    mixed, _ = ours(x, torch.arange(length)[None])
    parts = (p.unflatten(-1, (heads, -1)).transpose(1, 2) for p in x.chunk(3, -1))
    torch.testing.assert_close(
        theirs(*parts).transpose(1, 2).flatten(-2), mixed, rtol=1e-4, atol=1e-5
    )


def test_flops_of_a_step_as_counted_by_hand():
    """2 layers, d 64: 12 d^2 weights a layer, 6 operations a weight and token; 2 products of
    L (L + 1) / 2 pairs, 2 d operations each, and their backward."""
    cfg = transformer(sized("cope", "small", 0.0))
    assert flops.linear(cfg, 100) == 6 * 100 * 2 * 12 * 64**2
    assert flops.attention(cfg, "rope", 10, 3) == 2 * 3 * 2 * 3 * 55 * 2 * 64
    assert flops.attention(cfg, "cope", 10, 3) == 3 * flops.attention(cfg, "rope", 10, 3) // 2
    made = flops.products("small", 10, 10)
    assert made.facts["flop"] == flops.linear(cfg, 100)


@pytest.mark.parametrize("length", [7, 16])
def test_data_have_the_length_asked_for(length):
    batch, _ = flipflop(length, 64, "reads")
    assert batch.tokens.shape == (64, length)
    assert 0 < batch.scored.mean() < 0.3
    assert flipflop(length, 4, "all")[0].scored.all()


def test_ratio_is_the_median_of_the_rounds():
    times = Times({"ours": [1, 2, 4], "theirs": [3, 4, 40]}, {"ours": [1], "theirs": [1]})
    assert times.ratio("theirs", "ours") == 3


def test_goals_tell_what_is_missed():
    assert Goal("", 3.9, least=4).missed
    assert not Goal("", 4.0, least=4, aim=5).missed
    assert Goal("", 1.3, most=1.2).missed
    assert Goal("", math.nan, least=4).missed
    assert Goal("", math.nan, most=4).missed
    found = Found(goals=[Goal("speed", 3.9, least=4)])
    assert found.kept()["goals"][0]["missed"]
    assert Asked("whole").pick(1, 2, 3) == 3


def test_a_row_of_steps_shows_what_it_missed():
    """Of the two kinds of goals each at its number."""
    pytest.importorskip("x_transformers", reason="of the extra `peers`")
    from benchmarks import step

    row = {"encoding": "rope", "size": "paper", "length": 256, "batch": 16}
    names = ("float32", "float32, scored", "bfloat16, scored")
    row["cpu_ms"] = dict.fromkeys((*names, "shipped", "tuned"), 1.0)
    row["ratios"] = {name: {"shipped": 5.0, "tuned": 2.7} for name in names}

    def last_cells(**changes: float) -> list[str]:
        columns = step.shown([row | {"limits": dict.fromkeys(names, 1.0) | changes}]).columns
        return [next(iter(column.cells)) for column in columns[-2:]]

    assert last_cells() == ["2.70", "1.00"]
    assert last_cells(float32=1.4) == ["2.70", "1.40 !"]
    row["ratios"]["float32"]["tuned"] = 1.2
    assert last_cells() == ["1.20 !", "1.00"]


def test_parts_that_are_done_are_kept(tmp_path, monkeypatch):
    def part(name):
        if name == "benchmarks.memory":
            raise KeyboardInterrupt
        return SimpleNamespace(measure=lambda asked: Found([{"found": 1}]))

    monkeypatch.setattr(command, "import_module", part)
    given = ["benchmarks", "--tiny", "--to", str(tmp_path), "--part", "data", "memory"]
    monkeypatch.setattr(sys, "argv", given)
    with pytest.raises(KeyboardInterrupt):
        command.main()
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["parts"]["data"]["rows"] == [{"found": 1}]


def test_what_is_left_out_in_haste(monkeypatch):
    for words, left_out in (([], set()), (["--quick"], {"two_jobs", "tracking"})):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
        assert set(command.PARTS) - set(command.command_line().part) == left_out
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--part", "tracking"])
    assert command.command_line().part == ["tracking"]


def test_without_the_peer_it_says_so(monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--part", "step"])
    with pytest.raises(SystemExit, match=r"not installed: pip install .*peers"):
        command.main()


def test_other_checkout_is_what_runs(tmp_path):
    """``--before``: all of the program comes from the folder, or it is refused."""
    other = tmp_path / "other"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(other)], check=True)
    assert checked_source(other) == other.resolve()
    with pytest.raises(SystemExit, match="give a checkout"):
        checked_source(tmp_path)


@pytest.fixture
def sides_in_this_process(monkeypatch):
    """Starting and loading a process for each side would take most of the time."""

    def ask(self, do, **request):
        request = json.loads(json.dumps({"do": do, **request}))
        return json.loads(json.dumps(answer(request, vars(self).setdefault("here", []))))

    monkeypatch.setattr(Side, "ask", ask)


@pytest.mark.parametrize("part", ["matmul", "attention", "cope_step", "decoding", "memory", "data"])
def test_part_is_measured(part, sides_in_this_process):
    found = import_module(f"benchmarks.{part}").measure(Asked("tiny"))
    assert found.rows
    assert found.tables[0].row_count >= len(found.rows)
    json.dumps(found.kept())


def test_step_is_compared_with_a_model_of_equal_size(sides_in_this_process):
    pytest.importorskip("x_transformers", reason="of the extra `peers`")
    from benchmarks import step

    (row,) = step.measure(Asked("tiny")).rows
    assert row["ratios"]["float32"]["tuned"] > 0
    assert row["facts"]["float32"]["trunk"] == row["facts"]["tuned"]["trunk"] > 0


def test_side_is_a_process_that_answers():
    with Side("shipped") as side:
        runner = side.make("flops.product", rows=8, inner=8, columns=8)
        assert runner.facts["flop"] == 2 * 8**3
        assert all(ms > 0 for ms in runner.run(2))
        assert runner.peak() == 4 * 8 * 8
        with pytest.raises(SideError):
            side.make("flops.nothing")


def test_memory_is_watched_along_a_run():
    assert [step for step, size in watched(4) if size > 0] == [1, 2, 3, 4]


def test_command_measures_and_writes(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--tiny", "--to", str(tmp_path), "--part", "startup"],
        cwd=ROOT, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "written to" in done.stdout
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["parts"]["startup"]["rows"][0]["wall_s"][0] > 0
