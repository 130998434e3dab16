"""``python -m pe_lab``."""

from pe_lab.cli import entry

entry()
