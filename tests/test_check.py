"""``pe-lab check``: the silent bugs of public code, each planted and each found (tasks and models:
test_new.py)."""

from pathlib import Path

import pytest
from program import Here, assert_refused

BUGS = '''
import torch
from torch import nn
from pe_lab.pe.base import PositionalEncoding, by_distance, by_position
from pe_lab.pe.rope import RoPE
from pe_lab.pe.functional import rotate_pairs, unit_factors


class Plain(PositionalEncoding):
    def __init__(self, dims):
        super().__init__()
        self.heads = dims.n_heads


class OneRoPE(RoPE):
    """Has no choices, each of which would be checked."""

    def __init__(self, dims):
        super().__init__(dims, base=10000.0, pairing="interleaved")


class HeadAxis(OneRoPE):
    """Rotates by the number of the head, not by the position (open_lm 4)."""

    @by_position
    def rotate(self, q, k, inputs):
        heads = torch.arange(q.shape[1])[None]
        factors = unit_factors(heads, self.frequencies).transpose(1, 2)
        return rotate_pairs(q, factors, self.halves), rotate_pairs(k, factors, self.halves)


class CountedRows(OneRoPE):
    """Counts rows in place of reading positions: with a cache every new key is number 0
    (x-transformers 242)."""

    @by_position
    def rotate(self, q, k, inputs):
        rows = torch.arange(k.shape[2])[None]
        factors = unit_factors(rows, self.frequencies)
        last = factors[:, :, -q.shape[2]:]
        return rotate_pairs(q, last, self.halves), rotate_pairs(k, factors, self.halves)


class OffByOne(PositionalEncoding):
    """In decoding the new token has the position of the one before it."""

    def __init__(self, dims, max_len: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(max_len, dims.d_model))

    def block_input(self, x, pos_q):
        return x + self.table[(pos_q - int(pos_q.shape[1] == 1)).clamp(min=0)]


class LooksAhead(Plain):
    """A gate over all keys, later ones too."""

    shift_invariant, reads_positions = True, None

    def logits(self, content, q, k, inputs):
        return content * content.mean(-1, keepdim=True)


class NotRead(PositionalEncoding):
    """``slope`` is not used, ``kind`` cannot be tried, ``unset`` is not in the yaml."""

    shift_invariant = True

    def __init__(self, dims, slope: float, kind: str, unset: int = 3):
        super().__init__()
        self.dead = nn.Parameter(torch.ones(dims.n_heads))

    def bias(self, pos_q, pos_k):
        return -(pos_q[:, None, :, None] - pos_k[:, None, None, :]).abs().to(self.dead)


class Overflows(Plain):
    """Infinite from position 20 on; claims to be invariant."""

    shift_invariant = True

    def bias(self, pos_q, pos_k):
        return torch.exp(pos_k.double() ** 3)[:, None, None, :] - pos_q[:, None, :, None]


class Wrong(Plain):
    """Claims a bias by distance that is none: the kernels rely on it."""

    @by_distance
    def bias(self, pos_q, pos_k):
        one = torch.sin(pos_k.double())[:, None, None, :] * pos_q[:, None, :, None]
        return one.expand(-1, self.heads, -1, -1)


class Drawn(PositionalEncoding):
    """What is drawn is not saved."""

    def __init__(self, dims):
        super().__init__()
        self.register_buffer("table", torch.randn(256, dims.d_model), persistent=False)

    def embed(self, x, tokens, pos):
        return x + self.table[pos].to(x)


class Crashes(Plain):
    """Fails for one token."""

    def bias(self, pos_q, pos_k):
        return (pos_q[:, None, :, None] * pos_k[:, 1, None, None, None]).double()


class Mixed(Plain):
    """Sums over the batch."""

    def embed(self, x, tokens, pos):
        return x + x.mean(0) * pos[..., None]


class Gated(Plain):
    """Adds the sum of the gates between a query and a key."""

    shift_invariant, reads_positions = True, None

    def __init__(self, dims):
        super().__init__(dims)
        self.gate = nn.Linear(dims.d_model, dims.n_heads)

    def gates(self, x):
        return self.gate(x).sigmoid()

    def logits(self, content, q, k, inputs):
        gates = self.gates(inputs.x_BSE)
        total = gates.cumsum(1, dtype=gates.dtype).transpose(1, 2)
        return content - 0.3 * (total[:, :, -q.shape[2]:, None] - total[:, :, None])


class Detached(Gated):
    """No gradient from the gates to the states."""

    def gates(self, x):
        x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        return self.gate(x).to(x.dtype).sigmoid()


class DetachedContent(Plain):
    """No gradient from the gates to queries and keys."""

    shift_invariant, reads_positions = True, None

    def logits(self, content, q, k, inputs):
        return content + content.detach().sigmoid()


class FarAhead(Plain):
    """Reads later keys in sequences of more than 100."""

    shift_invariant, reads_positions = True, None

    def logits(self, content, q, k, inputs):
        return content * content.mean(-1, keepdim=True) if content.shape[-1] > 100 else content


class OneRate(Plain):
    """All heads decay at the rate of the first."""

    shift_invariant = True

    def __init__(self, dims):
        super().__init__(dims)
        self.rate = nn.Parameter(torch.ones(dims.n_heads))

    @by_distance
    def bias(self, pos_q, pos_k):
        distance = (pos_q[:, None, :, None] - pos_k[:, None, None, :]).abs()
        return (-self.rate[0] * distance).expand(-1, self.heads, -1, -1)


class Dropped(Plain):
    """Drops a share of its bias, by itself."""

    def __init__(self, dims):
        super().__init__(dims)
        self.drop = nn.Dropout(0.1)

    def bias(self, pos_q, pos_k):
        distance = (pos_q[:, None, :, None] - pos_k[:, None, None, :]).abs()
        return self.drop(-distance.double()).expand(-1, self.heads, -1, -1)
'''
PLANTED = {
    "HeadAxis": ("", "reads positions"),
    "CountedRows": ("", "reads positions"),
    "OffByOne": ("max_len: 48\n", "cached equals uncached"),
    "LooksAhead": ("", "no look at the future", "cached equals uncached"),
    "NotRead": (
        "slope: 0.5\nkind: a\n",
        *("keys of yaml and class", "every key changes something", "gradient to every parameter"),
    ),
    "Overflows": ("", "finite"),
    "Wrong": ("", "fast equals plain"),
    "Drawn": ("", "state_dict round trip"),
    "Crashes": ("", "finite"),
    "Mixed": ("", "each sequence by itself"),
    "Detached": ("", "gradient by differences"),
    "DetachedContent": ("", "gradient by differences"),
    "FarAhead": ("", "no look at the future"),
    "OneRate": ("", "gradient to every parameter"),
    "Dropped": ("", "gradient by differences"),
}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine" / "pe").mkdir(parents=True)
    (tmp_path / "mine" / "bugs.py").write_text(BUGS)
    for name, (keys, *_) in PLANTED.items():
        text = f"_target_: bugs.{name}\n{keys}"
        (tmp_path / "mine" / "pe" / f"{name.lower()}.yaml").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    return tmp_path / "mine"


def failed(out: str) -> dict[str, str]:
    """Of a table: the checks that failed, and what was found."""
    found, name = {}, ""
    for line in out.splitlines():
        state, _, rest = line.partition("  ")
        if state:
            name = rest.strip().partition("  ")[0] if state == "fail" else ""
        if name:
            found[name] = f"{found.get(name, '')} {' '.join(rest.split())}".strip()
    return found


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(here: Here, mine: Path, name: str) -> None:
    ended = here("check", "--config-dir", "mine", f"pe={name.lower()}")
    found = failed(ended.out)
    _, *expected = PLANTED[name]
    assert set(expected) <= found.keys(), ended.out
    # Not because it cannot be built.
    assert not any("_target_" in sentence for sentence in found.values())
    assert_refused(ended, *expected, status=1)


def test_one_that_keeps_it_passes(here: Here) -> None:
    ended = here("check", "pe=alibi")
    assert (ended.status, ended.err) == (0, "")
    assert failed(ended.out) == {}
    assert [line.split("  ")[0] for line in ended.out.splitlines()[2:]].count("pass") == 12


def test_several_in_a_line_each(here: Here, mine: Path) -> None:
    ended = here("check", "--config-dir", "mine", "pe=sinusoidal,drawn")
    first, second = ended.out.splitlines()
    assert (first[:13], " 0 fail" in first, second[:8]) == ("pe=sinusoidal", True, "pe=drawn")
    assert_refused(ended, "pe=drawn state_dict round trip", status=1)
    assert "sinusoidal" not in ended.err
