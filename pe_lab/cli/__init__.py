"""The command line.

Ctrl-C ends the program at once and without a traceback, also during an import. A run that is being
trained stops by itself (common.signals). SIGINT stays ignored where it was. It is set here, before
the imports of ``main``, and for the program only: a library leaves signals alone.
"""

import signal
import sys

PROGRAMS = ("pe-lab", "pe_lab/__main__.py")

if sys.argv[0].endswith(PROGRAMS) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
