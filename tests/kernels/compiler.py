"""Which tests need a C++ compiler. One that is there and fails is no excuse."""

import pytest

from pe_lab.kernels.cpu import build


def _missing() -> str:
    try:
        build.find_compiler()
    except build.NoLibraryError as error:
        return str(error)
    return ""


needs_compiler = pytest.mark.skipif(_missing() != "", reason=_missing() or "a compiler is there")
