"""Text that is safe on a terminal."""

# C0 and C1 without tab and newline, and the marks that reorder bidirectional text.
_UNSAFE = [*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F),
           *range(0x2066, 0x206A)]  # fmt: skip
_ESCAPED = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _UNSAFE}


def printable(text: str) -> str:
    """The text with control characters escaped: a terminal would obey them."""
    return text.translate(_ESCAPED)


def counted(n: int, what: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
