"""A compiler that notes its calls, for tests of how kernels are built and cached."""

import subprocess
import sys
from pathlib import Path

SOURCE = 'extern "C" int answer() { return 42; }\n'
ASK = """
import logging, sys
from pathlib import Path
from pe_lab.kernels.cpu import build
logging.basicConfig(format="%(message)s", level=logging.INFO)
build.SOURCES = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(build.library("question").answer())
"""


class Place:
    """A folder of sources, a cache, and a compiler that notes its calls and may dawdle."""

    def __init__(self, folder: Path) -> None:
        self.sources, self.cache = folder / "sources", folder / "cache"
        self.calls, self.compiler = folder / "calls", folder / "compiler"
        self.sources.mkdir()
        self.write(SOURCE)
        self.set_compiler()

    def write(self, source: str) -> None:
        (self.sources / "question.cpp").write_text(source)

    def set_compiler(self, before: str = "") -> None:
        self.compiler.write_text(
            "#!/bin/sh\n"
            f'case "$*" in *-shared*) echo compiled >> "{self.calls}"; {before or ":"};; esac\n'
            'exec c++ "$@"\n'
        )
        self.compiler.chmod(0o755)

    def compiled(self) -> int:
        return len(self.calls.read_text().split()) if self.calls.exists() else 0

    def kept(self) -> Path:
        (path,) = self.cache.glob("*.so")
        return path

    def process(self) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", ASK, str(self.sources)]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
