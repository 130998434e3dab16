"""The windowed changes of RoPE: what bounds them."""

import pytest
import torch
from agreement import first_layer
from variants import SECTIONS, model, sequential, tokens


def test_limits_of_the_windowed_ones() -> None:
    """A leak of nothing, and a single group, leave the window's distance."""
    seen, pos = tokens(2, 48), sequential(48)
    rectified = model({**SECTIONS["rerope"], "window": 7})(seen, pos)
    leaky = model({**SECTIONS["leaky_rerope"], "window": 7, "k": 1e12})(seen, pos)
    grouped = model({**SECTIONS["self_extend"], "window": 7, "group": 48})(seen, pos)
    torch.testing.assert_close(leaky, rectified, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(grouped, rectified, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("train_len", "max_len", "window", "group"),
    [
        (512, 512, None, 1),
        (512, 100, 511, 1),
        (12, 48, 3, 5),
        (4096, 16384, None, 5),
        (4096, 16385, 1024, 6),
        (64, 256, 63, 193),
        (64, 256, 256, 1),
    ],
)
def test_self_extend_takes_the_smallest_group(
    train_len: int, max_len: int, window: int | None, group: int
) -> None:
    sizes = {"train_len": train_len, "max_len": max_len}
    assert first_layer("self_extend", {"window": window}, **sizes).group == group
