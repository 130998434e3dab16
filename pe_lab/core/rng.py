"""Random streams: every purpose draws from its own, derived from a seed and a name.

Training data, each evaluation split, the weights, the encoding's weights, dropout and
random positions never share a stream, so that two encodings with one seed see the same
batches, and evaluation sets are the same in every run. A stream is a pure function of its
name: any batch can be drawn at any time, in any process, which makes resuming exact.
"""

import hashlib
import json

import numpy as np


def _digest(seed: int, path: tuple[str | int, ...]) -> bytes:
    return hashlib.sha256(json.dumps([seed, *path]).encode()).digest()


def generator(seed: int, *path: str | int) -> np.random.Generator:
    """A numpy generator (Philox: counter-based, equal on every machine) named by seed and path."""
    words = np.frombuffer(_digest(seed, path), dtype="<u4")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words.tolist())))


def torch_seed(seed: int, *path: str | int) -> int:
    """A 63-bit seed for a torch generator, named the same way."""
    return int.from_bytes(_digest(seed, path)[:8], "little") >> 1
