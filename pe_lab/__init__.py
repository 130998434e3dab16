"""pe-lab: the bench on which positional encodings are compared."""

from pathlib import Path

__version__ = "0.1.0"

# In an uninstalled checkout (`python -m pe_lab`), pe_lab.tasks and pe_lab.conf are the
# repository's own folders; an install maps them itself.
_root = Path(__file__).resolve().parent.parent
if not (_root / "pe_lab" / "tasks").exists() and (_root / "tasks" / "flipflop.py").exists():
    __path__.append(str(_root))
