"""Where the errors of a split are, and its losses."""

import json
import math

import numpy as np

from pe_lab.training.measure import Answers


def test_error_and_loss_by_the_tokens_read():
    """Buckets end at powers of two: positions 0, 1, 2-3, 4-7 have read 1, 2, 3-4, 5-8 tokens."""
    row, position = (axis.ravel() for axis in np.indices((2, 6)))
    loss = np.arange(12.0)
    loss[7] = math.inf
    answers = Answers(np.arange(12) % 4 == 0, loss, row, position, {"depth": position * 0})
    found = answers.breakdown()
    assert found["length"] == {
        "1": {"error": 0.5, "loss": 3.0, "n": 2},
        "2": {"error": 0.0, "loss": None, "n": 2},
        "3-4": {"error": 0.25, "loss": 5.5, "n": 4},
        "5-8": {"error": 0.25, "loss": 7.5, "n": 4},
    }
    assert found["depth"]["0"]["n"] == 12
    json.dumps(found, allow_nan=False)
