"""Whether code runs to be traced for torch.compile: its tensors have sizes then, and no values."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_active: ContextVar[bool] = ContextVar("tracing", default=False)


def tracing() -> bool:
    """Whether what is computed now is only written down."""
    return _active.get()


@contextmanager
def traced() -> Iterator[None]:
    """What runs inside is traced."""
    token = _active.set(True)
    try:
        yield
    finally:
        _active.reset(token)
