"""What encodings share: facts about positions, computed once for all layers."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from variants import MAX_LEN, SECTIONS, TRAIN_LEN, model, scattered, sequential, tokens

from pe_lab.pe.functional import consecutive, span


class Reads(TorchDispatchMode):
    """Counts numbers that are taken out of a tensor: on a GPU each waits for all work before it."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "facts"), [("alibi", 1), ("t5", 1), ("transformer_xl", 2)])
def test_positions_are_read_once_for_all_layers(name: str, facts: int) -> None:
    """Once for each fact: without a kernel, transformer_xl needs the farthest distance too."""
    built, seen = model(SECTIONS[name], n_layers=3), tokens(2, TRAIN_LEN)
    for pos, n in ((sequential(TRAIN_LEN), 1), (scattered(2, TRAIN_LEN, MAX_LEN), facts)):
        # The first time kernels are proved.
        built(seen, pos)
        again = pos.clone()
        other = again + 1
        with Reads() as reads:
            # Two models, or two threads, in turn.
            for given in (again, other, again, other):
                built(seen, given)
        assert reads.count == 2 * n


@pytest.mark.parametrize("inference", [False, True])
def test_facts_are_those_of_the_positions(inference: bool) -> None:
    with torch.inference_mode(inference):
        close, apart = torch.tensor([[0, 1, 2], [4, 5, 6]]), torch.tensor([[0, 1, 2], [4, 6, 9]])
        for _ in range(2):
            assert (consecutive(close), span(close)) == (True, 2)
            assert (consecutive(apart), span(apart)) == (False, 5)
            assert consecutive(close[:, :1])
    apart = apart.clone()
    assert span(apart) == 5
    apart[1, 2] = 20
    assert span(apart) == 16
