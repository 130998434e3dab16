"""Sequences for models with an input and an output part."""

import torch
from torch import Tensor

VOCAB, SEPARATOR, MAX_LEN = 9, 8, 40


def sequences(places: list[int], length: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Rows with their separator at these places, and increasing random positions."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, SEPARATOR, (len(places), length), generator=generator)
    tokens[torch.arange(len(places)), places] = SEPARATOR
    keys = torch.rand(len(places), MAX_LEN, generator=generator)
    return tokens, keys.argsort(-1)[:, :length].sort(-1).values
