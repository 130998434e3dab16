"""pe-lab: the bench on which positional encodings are compared."""

from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.2.0"

# In an uninstalled checkout (`python -m pe_lab`), pe_lab.tasks and pe_lab.conf are the
# repository's own folders; an install maps them itself.
_root = Path(__file__).resolve().parent.parent
if not (_root / "pe_lab" / "tasks").exists() and (_root / "tasks" / "flipflop.py").exists():
    __path__.append(str(_root))


_API = ("run", "sweep", "load", "why")


def __dir__() -> list[str]:
    return [*globals(), *_API]


def __getattr__(name: str) -> Any:
    """The functions of ``cli/api.py``, imported when they are used: torch takes a second."""
    if name in _API:
        return getattr(import_module("pe_lab.cli.api"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
