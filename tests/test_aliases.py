"""docs/aliases.md: every line is a run that this program accepts, and is what the page says."""

import re
import shlex
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from numbers_task import Numbers
from program import ROOT, tiny

from pe_lab.cli.train import checked_jobs
from pe_lab.core.rng import generator
from pe_lab.pe.base import AttentionInputs, Dims
from pe_lab.pe.fox import FoX
from pe_lab.training import plan as planning
from pe_lab.training.plan import plan

PAGE = Path(ROOT, "docs", "aliases.md").read_text("utf-8")
LINES = re.findall(r"^\|[^|]+\|[^|]*\| `([^`]+)` \|", PAGE, re.MULTILINE)
LINES += re.findall(r"`(pe=[^`]+)` without", PAGE)


def test_every_row_has_a_line() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
    assert len(LINES) == len(rows) + 1


@pytest.mark.parametrize("line", LINES)
def test_every_line_is_a_model(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = shlex.split(line)
    keys = {word.partition("=")[0] for word in changed}
    words = [word for word in tiny("model.n_layers=2") if word.partition("=")[0] not in keys]
    if "coupled" in line or "rows" in line:
        monkeypatch.setattr(planning, "build_task", lambda section: Numbers(splits={}))
    (job,) = checked_jobs([*words, *changed])
    made = plan(job)
    data = made.task.sample(generator(0), 2)
    pos = made.positions.of_batch(generator(1), data, training=True)
    hidden = made.model()(torch.from_numpy(data.tokens), torch.from_numpy(pos))
    assert hidden.shape == (*data.tokens.shape, 16)
    assert hidden.isfinite().all()


def test_the_gates_of_cable_are_those_of_fox() -> None:
    """log sigmoid(-z) = -softplus(z): FoX with its map negated."""
    torch.manual_seed(0)
    fox = FoX(Dims(d_model=8, n_heads=2, n_layers=1, vocab_size=3, train_len=6, max_len=6))
    x = torch.randn(1, 6, 8)
    z = F.linear(x, fox.gate.weight, fox.gate.bias)
    with torch.no_grad():
        fox.gate.weight.neg_()
        fox.gate.bias.neg_()
    q, pos = torch.randn(1, 2, 6, 4), torch.arange(6)[None]
    found = fox.logits(torch.zeros(1, 2, 6, 6), q, q, AttentionInputs(x, q, q, q, pos, pos))
    for i in range(6):
        for j in range(i + 1):
            expected = -F.softplus(z[0, j + 1 : i + 1]).sum(0)
            torch.testing.assert_close(found[0, :, i, j], expected)
