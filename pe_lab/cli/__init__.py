"""The command line.

Ctrl-C ends the program at once and without a traceback, also during an import. A run that is being
trained stops by itself (experiment.signals). SIGINT stays ignored where it was. It is set here,
before the imports of ``main``, and for the program only: a library leaves signals alone.
"""

import signal
import sys

PROGRAMS = ("pe-lab", "pe_lab/__main__.py")


def _end(signum: int, frame: object) -> None:
    signal.signal(signum, signal.SIG_DFL)
    signal.raise_signal(signum)


if sys.argv[0].endswith(PROGRAMS) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Not SIG_DFL itself: polars puts a handler of its own before it, which then does nothing.
    signal.signal(signal.SIGINT, _end)
