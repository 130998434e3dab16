"""The command line: ``key=value`` words train a run; everything else has a command."""

import ast
import os
import sys
import textwrap
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.resources import files

from pe_lab import __version__
from pe_lab.core.config_dir import CHOICES, choices, refuse_bare
from pe_lab.core.errors import Interrupted, PeLabError, sentence

HELP = """\
pe-lab: does this positional encoding generalise to longer sequences, and if not, why?

The six commands to begin with:
  pe-lab task=flipflop pe=cope                train one model, measure it in and out of distribution
  pe-lab -m task=flipflop pe=cope,rope seed=0,1,2             train every combination
  pe-lab results                              a table of all runs
  pe-lab leaderboard                          encodings on a suite of tasks, and your runs
  pe-lab why run=flipflop/rope                the cause of a failure, by intervention
  pe-lab new encoding NAME                    the files of an encoding of your own

Results (pe-lab results --help shows a command's keys):
  pe-lab runs                                 the run folders: state, age, size; check=true
  pe-lab compare                              your numbers and published ones; a=cope b=rope: a test
  pe-lab report                               charts and tables: runs/report/index.html
  pe-lab dashboard                            a wandb workspace with the same charts
  pe-lab suite v2_1 dry=true                  what tuning and scoring an encoding would cost
Explanations:
  pe-lab inspect run=FOLDER sample=3          attention and encoding of one sequence
  pe-lab eval run=FOLDER pe=pi,yarn lengths=128,512           other lengths, other encodings
Tasks and encodings:
  pe-lab show                                 every choice, one line each
  pe-lab show task=flipflop                   sequences of each split and their answers
  pe-lab check pe=cope                        the tests that every encoding must pass

Choices:
{choices}

Keys of a run (pe-lab --cfg job shows all): task.* pe.* positions.* model.* train.* eval.* tracker.*
  seed=0 (or seed.init= seed.data=)   device=auto|cpu|cuda   threads=1   runs_dir=runs
  force=true: run again               debug=true: tracebacks   tracker=wandb|none
A finished run is skipped and an unfinished one resumes, so every line can be repeated.
Your own files: --config-dir FOLDER. Hydra's flags: pe-lab --hydra-help.
"""

COMMANDS = (
    *("results", "runs", "compare", "leaderboard", "suite", "report", "eval", "why", "inspect"),
    *("check", "show", "new", "dashboard"),
)
"""Each is a module of this package: ``show`` runs it, its docstring is its help."""


def entry() -> None:
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 done, 1 failed, 2 wrong usage,
    129, 130 and 143 stopped by SIGHUP, Ctrl-C and SIGTERM."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = any(word.lower() in ("debug=true", "debug=1") for word in words)
    try:
        _dispatch(words)
        sys.stdout.flush()
        return 0
    except (KeyboardInterrupt, Interrupted) as stop:
        return getattr(stop, "exit_status", 130)
    except BrokenPipeError:
        # The reader, such as head, has enough; the interpreter would flush once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        where = "" if isinstance(error, PeLabError) else " (debug=true shows where)"
        print(f"pe-lab: {sentence(error)}{where}", file=sys.stderr, flush=True)
        return getattr(error, "exit_status", 1)


def _dispatch(words: list[str]) -> None:
    if not words or {"-h", "--help", "help"} & set(words):
        topics = [word for word in words if word not in ("-h", "--help", "help")]
        print(help_text(topics[0] if topics else ""), end="")
    elif words[0] in ("--version", "version"):
        print(f"pe-lab {__version__}")
    elif words[0] in COMMANDS:
        # Imported here: the imports of a command take a second.
        from pe_lab.core.options import call

        call(words[0], import_module(f"pe_lab.cli.{words[0]}").show, words[1:])
    else:
        refuse_bare(words[0], COMMANDS)
        from pe_lab.cli.train import launch

        launch(words)


def help_text(topic: str = "") -> str:
    """The help of the program, or of one of its commands."""
    if topic in COMMANDS:
        # Parsed, not imported: the imports of a command take a second.
        source = files("pe_lab.cli").joinpath(f"{topic}.py").read_text("utf-8")
        return (ast.get_docstring(ast.parse(source)) or "").replace("``", "") + "\n"
    refuse_bare(topic, COMMANDS)
    lines = [
        textwrap.fill(" ".join(choices(group)), 100, initial_indent=f"  {group:<17}",
                      subsequent_indent=" " * 19, break_on_hyphens=False)
        for group in CHOICES
    ]  # fmt: skip
    return HELP.format(choices="\n".join(lines))
