"""Where an encoding, a task or positions depart from the published code, they say so."""

import pytest
import torch
from agreement import first_layer
from variants import SECTIONS, dims

from docs import facts
from pe_lab.pe.base import PositionalEncoding
from pe_lab.training.plan import build_encodings


def tables(encodings: list[PositionalEncoding]) -> int:
    """How many tables of distances they have."""
    found = [p for e in encodings for n, p in e.named_parameters() if n.endswith("table")]
    return len({id(p) for p in found if len(p) == dims().max_len})


def test_a_table_of_distances_for_each_layer_or_for_the_model() -> None:
    """cope with combine=relative has one for each layer, the published code one for the model, as
    the combination of both encodings has."""
    alone = build_encodings({**SECTIONS["cope"], "combine": "relative"}, dims())
    parts = facts.parts({"pe": "cope", "every": 2}, "relative")
    together = build_encodings({**SECTIONS["combined"], "parts": parts}, dims())
    assert (tables(alone), tables(together)) == (3, 1)


@pytest.mark.parametrize(("window", "group"), [(3, 5), (7, 2), (6, 3)])
def test_self_extend_shifts_by_the_rounded_or_the_exact_number(window: int, group: int) -> None:
    """W - floor(W / G), or W - W / G as the authors' code; equal where G divides W."""
    keys = {"window": window, "group": group}
    pos = torch.arange(20)[None]
    factors = {}
    for shift, by in (("floored", window // group), ("exact", window / group)):
        encoding = first_layer("self_extend", {**keys, "shift": shift})
        factors[shift], _ = encoding.far_factors(pos, pos)
        angle = (pos[0, 7] // group).double() + window - by
        angles = angle * encoding.frequencies
        expected = torch.polar(torch.ones_like(angles), angles)
        torch.testing.assert_close(factors[shift][0, 0, 7], expected)
    assert torch.equal(factors["floored"], factors["exact"]) == (window % group == 0)
