"""Code by others that cannot be imported as it stands."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def fla_naive(operation: str) -> ModuleType:
    """A reference of flash-linear-attention, by its file: the package itself imports Triton."""
    pytest.importorskip("einops")
    package = importlib.util.find_spec("fla")
    if package is None or not package.submodule_search_locations:
        pytest.skip("fla is not installed")
    file = Path(package.submodule_search_locations[0], "ops", operation, "naive.py")
    spec = importlib.util.spec_from_file_location(f"fla_naive_{operation}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
