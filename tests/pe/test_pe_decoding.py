"""Decoding with a key cache, and facts shared by layers."""

import pytest
import torch
from variants import (
    MAX_LEN,
    SECTIONS,
    TRAIN_LEN,
    VARIANTS,
    model,
    scattered,
    sequential,
    tokens,
)

from pe_lab.check.base import cache_gap
from pe_lab.models.config import LayerConfig
from pe_lab.pe import path
from pe_lab.pe.functional import consecutive, span


@pytest.mark.parametrize("name", SECTIONS)
def test_with_a_window_in_one_layer(name: str) -> None:
    built = model(SECTIONS[name], layers={1: LayerConfig(window=5)}).eval()
    n = TRAIN_LEN + 8
    if not any(encoding.whole_sequence for encoding in built.encodings):
        cache_gap(built, tokens(2, n), scattered(2, n, MAX_LEN), 3, 12)


@pytest.mark.parametrize("length", [path.CHUNK, path.CHUNK + 1, 2 * path.CHUNK + 3])
@pytest.mark.parametrize("name", ["path", "path-forget=true"])
def test_path_over_several_chunks(name: str, length: int) -> None:
    built = model(VARIANTS[name], train_len=length, max_len=length).eval()
    cache_gap(built, tokens(2, length), sequential(length), max(1, length - 20), 3)


@pytest.mark.parametrize("name", ["rope", "none", "cope", "combined"])
def test_a_cache_belongs_to_one_batch_from_its_first_token(name: str) -> None:
    built, seen = model(VARIANTS[name]).eval(), tokens(2, 8)
    # Begun again, one left out, another batch.
    for more, n in ((seen, 8), (seen[:, :1], 10), (seen[:1, :1], 9)):
        cache = built.empty_cache()
        built(seen, sequential(8), cache)
        with pytest.raises(ValueError, match="begin another sequence with an empty cache"):
            built(more, sequential(n), cache)


@pytest.mark.parametrize("inference", [False, True])
def test_facts_are_those_of_the_positions(inference: bool) -> None:
    with torch.inference_mode(inference):
        close, apart = torch.tensor([[0, 1, 2], [4, 5, 6]]), torch.tensor([[0, 1, 2], [4, 6, 9]])
        assert (consecutive(close), span(close)) == (True, 2)
        assert (consecutive(apart), span(apart)) == (False, 5)
    apart = apart.clone()
    assert span(apart) == 5
    apart[1, 2] = 20
    assert span(apart) == 16
