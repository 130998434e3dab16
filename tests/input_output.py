"""What the tests of models with an input and an output part have in common."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pe_lab.models.input_output import InputOutput
from pe_lab.models.scored_positions import ScoredPositions

VOCAB, SEPARATOR, MAX_LEN = 9, 8, 40


def sequences(places: list[int], length: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Rows with their separator at these places, and scattered positions."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, SEPARATOR, (len(places), length), generator=generator)
    tokens[torch.arange(len(places)), places] = SEPARATOR
    keys = torch.rand(len(places), MAX_LEN, generator=generator)
    return tokens, keys.argsort(-1)[:, :length].sort(-1).values


def assert_is_the_formula(
    built: Callable[[bool], InputOutput],
    naive: Callable[[InputOutput], Callable[[list[int], list[int]], Tensor]],
    places: list[int],
    tolerance: float,
) -> None:
    """In value and in gradient, fast and not.

    Args:
        built: the model, the same weights each time.
        naive: the states of the output part of one row, (U, E), of its tokens and positions.
        tolerance: of the gradients.
    """
    tokens, pos = sequences(places, 6)
    model = built(True)
    width = model.tokens.weight.shape[1]
    direction = torch.randn(len(places), 6, width + VOCAB)

    def gradients(model: InputOutput, hidden: Tensor) -> tuple[Tensor, ...]:
        told = torch.cat([hidden, model.unembed(hidden)], -1)
        leaves = list(model.parameters())
        return torch.autograd.grad((told * direction).sum(), leaves, materialize_grads=True)

    states = naive(model)
    slow = torch.stack([
        torch.cat([torch.zeros(place, width), states(row.tolist(), at.tolist())])
        for place, row, at in zip(places, tokens, pos, strict=True)
    ])  # fmt: skip
    slow_gradients = gradients(model, slow)
    for fast in (True, False):
        model = built(fast)
        hidden = model(tokens, pos)
        torch.testing.assert_close(hidden, slow, rtol=1e-10, atol=1e-10)
        found = gradients(model, hidden)
        torch.testing.assert_close(found, slow_gradients, rtol=tolerance, atol=tolerance)


def assert_sees_nothing_ahead(model: InputOutput) -> None:
    """The input part knows nothing of the output, an output place nothing of those after it, and
    a row nothing of the others; the input is seen."""
    tokens, pos = sequences([4, 2, 4], 9)
    before = model(tokens, pos)
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % SEPARATOR
    after = model(changed, pos)
    torch.testing.assert_close(after[:, :6], before[:, :6], rtol=1e-10, atol=1e-10)
    assert not torch.allclose(after[:, 6], before[:, 6])
    assert not before[0, :4].any()
    for row in range(3):
        alone = model(tokens[row : row + 1], pos[row : row + 1])
        torch.testing.assert_close(alone[0], before[row], rtol=1e-10, atol=1e-10)
    for place in range(4):
        other = changed[:1].clone()
        other[:, place] = (other[:, place] + 1) % SEPARATOR
        assert not torch.isclose(model(other, pos[:1])[0, 4], after[0, 4]).any()


def assert_cache_changes_nothing(model: InputOutput) -> None:
    tokens, pos = sequences([3, 3], 9)
    expected = model(tokens, pos)
    for prompt in (4, 6):
        cache = model.empty_cache()
        steps = [model(tokens[:, :prompt], pos[:, :prompt], cache)]
        for end in range(prompt + 1, 10):
            steps.append(model(tokens[:, end - 1 : end], pos[:, :end], cache))
        torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=1e-10, atol=1e-10)


def assert_wanted_places_are_those_of_all(model: InputOutput) -> None:
    tokens, pos = sequences([4, 2, 3], 9)
    everywhere = model(tokens, pos, key=5)
    for places in ([(0, 5), (0, 6), (1, 2), (2, 4)], [(1, 1), (2, 3)], [(0, 0)], []):
        chosen = torch.zeros(3, 9, dtype=torch.bool)
        for place in places:
            chosen[place] = True
        scored = ScoredPositions.of(chosen.numpy(), tokens.device)
        some = model(tokens, pos, scored=scored, key=5)
        torch.testing.assert_close(some, everywhere[chosen], rtol=1e-10, atol=1e-10)


def assert_dropout_follows_its_key(
    model: InputOutput, plain: InputOutput, without: InputOutput
) -> None:
    """The fast and the plain model have one mask; in evaluation there is none."""
    tokens, pos = sequences([4, 2, 3], 9)
    first = model(tokens, pos, key=5)
    assert torch.equal(first, model(tokens, pos, key=5))
    assert not torch.allclose(first, model(tokens, pos, key=6))
    torch.testing.assert_close(plain(tokens, pos, key=5), first, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model.eval()(tokens, pos), without(tokens, pos), rtol=0, atol=0)


def assert_refuses_what_it_cannot_read(model: InputOutput) -> None:
    tokens, pos = sequences([4, 2], 6)
    with pytest.raises(ValueError, match="different positions in these rows"):
        model(tokens, pos, model.empty_cache())
    tokens[0, 4] = 0
    for cache in (None, model.empty_cache()):
        with pytest.raises(ValueError, match="holds no separator"):
            model(tokens, pos, cache)
