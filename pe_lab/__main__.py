"""``python -m pe_lab``."""

from pe_lab.cli.main import entry

entry()
