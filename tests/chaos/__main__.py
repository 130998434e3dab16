"""``make test-chaos``: attacks on runs and their folders for some minutes.

    python -m tests.chaos [minutes=10] [seed=N] [jobs=2] [case=KIND-NUMBER]

Runs, sweeps and evaluations are killed at random moments, file operations fail, configurations are
drawn at random: docs/reliability.md says what must hold. ``tests.chaos.corruption`` damages files.
A violation is printed with the command that repeats it.
Linux, with a C compiler.
"""

import os
import random
import sys
import tempfile
from pathlib import Path


def main() -> int:
    """Start again with the library preloaded, then attack; 1 if a promise was broken."""
    defaults = {"minutes": "10", "seed": str(random.randrange(10**6)), "jobs": "2",
                "case": ""}  # fmt: skip
    options = dict(word.partition("=")[::2] for word in sys.argv[1:])
    if wrong := options.keys() - defaults.keys():
        raise SystemExit(f"{', '.join(wrong)}: the options are {', '.join(defaults)}")
    options = defaults | options
    shm = Path("/dev/shm")
    if "LD_PRELOAD" not in os.environ:
        from tests.chaos.preload import build

        folder = tempfile.mkdtemp(prefix="pe-lab-chaos-", dir=shm if shm.is_dir() else None)
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment = {**os.environ, **one, "LD_PRELOAD": str(build(Path(folder)))}
        words = [f"{key}={value}" for key, value in options.items()]
        os.execve(sys.executable, [sys.executable, "-m", "tests.chaos", *words], environment)
    from tests.chaos.campaign import campaign, repeat

    folder = Path(os.environ["LD_PRELOAD"]).parent
    if options["case"]:
        return repeat(folder, int(options["seed"]), options["case"])
    return campaign(folder, float(options["minutes"]), int(options["seed"]), int(options["jobs"]))


if __name__ == "__main__":
    sys.exit(main())
