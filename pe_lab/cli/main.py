"""The command line: key=value overrides train a run; every other task has a command."""

import ast
import re
import shlex
import shutil
import sys
import textwrap
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from pe_lab import __version__
from pe_lab.config.choices import CHOICES, bare_word, choices
from pe_lab.core.errors import Interrupted, PeLabError, UsageError, sentence
from pe_lab.core.output import printable, tolerant_output
from pe_lab.core.suggest import did_you_mean

HELP = """\
pe-lab: compare how well positional encodings generalise.

Train, and measure in and out of domain:
  pe-lab task=flipflop pe=cope                          one run, into runs/flipflop/cope/
  pe-lab task=selective_copy pe=rope seed=1 train.steps=500
  pe-lab -m task=flipflop pe=cope,rope,learned seed=0,1,2    every combination
  pe-lab -m experiment=small/flipflop                   a published table, for a laptop
  pe-lab suite v2 dry=true                              twelve tasks over all encodings: the cost
A finished run is skipped and an unfinished one is resumed: every command can be repeated.

Look at the results (the keys of a command: pe-lab results --help):
  pe-lab results [task=..] [by=pe,model.d_model] [where=".."]   a table of all runs
  pe-lab runs                                           the run folders: state, age, size
  pe-lab verify                                         checks the files of all runs
  pe-lab compare                                        your numbers and the published ones
  pe-lab leaderboard                                    a suite over all encodings, and yours
  pe-lab submit pe=mine to=mine.zip                     a submission to it; check=mine.zip
  pe-lab report                                         charts and tables: runs/report/index.html
  pe-lab eval run=FOLDER pe=pi,rerope lengths=128,512   other lengths, other encodings
  pe-lab extrapolate task=text                          train short, test long: Su's table
  pe-lab why task=recall pe=rope                        the cause of a failure, by intervention
  pe-lab inspect run=FOLDER sample=3                    attention and encoding of one sequence
  pe-lab generate run=FOLDER prompt=".."                the model continues a prompt
  pe-lab dashboard                                      a wandb workspace with the same charts
  pe-lab list                                           every choice, one line each
  pe-lab show task=flipflop                             sequences of each split and their answers
  pe-lab new encoding NAME                              the files of an encoding of your own
  pe-lab data task=copy split=long_x2 to=FILE.jsonl     the sequences that a run reads, as a file
  pe-lab check pe=cope                                  tests that every encoding must pass
  pe-lab plan file=CLAIMS.yaml                          preregistered claims, and what the runs say
  pe-lab --cfg job task=.. pe=..                        every key of a run and its value
  pe-lab --version

Choices:
{choices}

Keys (pe-lab --cfg job shows all):
  task.* pe.* positions.* model.* train.* eval.* tracker.*
  seed=0           the seed; or seed.init=0 for the weights and seed.data=0 for the rest
  device=auto      auto, cpu or cuda
  threads=1        CPU threads of a run
  runs_dir=runs    the folder of the runs
  force=false      true: run again
  debug=false      true: tracebacks
  tracker=wandb    wandb, tensorboard or none; tracker.wandb.mode=offline, online or disabled

Your own encoding: pe-lab new encoding NAME, then pe-lab --config-dir NAME pe=NAME
(docs/extending.md). Tab completion: eval "$(pe-lab -sc install=bash)". Flags of Hydra:
pe-lab --hydra-help.
"""

VERBS = {
    "results": "pe_lab.cli.results",
    "runs": "pe_lab.cli.runs",
    "verify": "pe_lab.cli.verify",
    "compare": "pe_lab.cli.compare",
    "leaderboard": "pe_lab.cli.leaderboard",
    "report": "pe_lab.cli.report",
    "eval": "pe_lab.cli.eval",
    "extrapolate": "pe_lab.cli.extrapolate",
    "suite": "pe_lab.cli.suite",
    "submit": "pe_lab.cli.submit",
    "why": "pe_lab.cli.why",
    "inspect": "pe_lab.cli.inspect",
    "generate": "pe_lab.cli.generate",
    "dashboard": "pe_lab.cli.dashboard",
    "list": "pe_lab.cli.list",
    "show": "pe_lab.cli.show",
    "data": "pe_lab.cli.data",
    "check": "pe_lab.cli.check",
    "new": "pe_lab.cli.new",
    "plan": "pe_lab.cli.plan",
}
"""Each command and its module: ``show`` runs it, the docstring is its help."""

WIDEST = 100
"""Columns of a help text on a wider terminal, and in a file."""
NARROWEST = 28
"""The least columns of a description beside its command."""

SHOWING = {"-h", "--help", "--version", "-c", "--cfg", "-i", "--info"}
"""Flags that print something instead of training."""
# The spellings of true in YAML.
DEBUG = {f"debug={word}" for word in ("true", "yes", "on", "1", "t", "y")}


def entry() -> None:
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 done, 1 failed, 2 wrong usage,
    129, 130 and 143 stopped by SIGHUP, Ctrl-C and SIGTERM."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is not None:
        sys.argv = [sys.argv[0], *words]
    with tolerant_output() as output:
        status = _status(words)
    if output.error is None or isinstance(output.error, BrokenPipeError):
        return status
    # A run has its result in files; the other commands print theirs.
    shown = not words or words[0] in (*VERBS, "help") or bool(SHOWING & set(words))
    _say(f"the output cannot be written ({output.error.strerror}): send it elsewhere")
    return status or int(shown)


def _status(words: list[str]) -> int:
    debug = any(word.lower() in DEBUG for word in words)
    try:
        _dispatch(words)
        return 0
    except PeLabError as error:
        _say(str(error), debug)
        return error.exit_status
    except (KeyboardInterrupt, Interrupted) as stop:
        return getattr(stop, "exit_status", 130)
    except Exception as error:
        _say(f"{sentence(error)} (debug=true shows where)", debug)
        return 1


def _say(message: str, debug: bool = False) -> None:
    # The error output may be closed or full, too.
    with suppress(OSError):
        if debug:
            traceback.print_exc()
        print(f"pe-lab: {printable(message)}", file=sys.stderr, flush=True)


def _dispatch(words: list[str]) -> None:
    wants_help = {"-h", "--help"} & set(words)
    verb, *rest = ["help", *words] if wants_help or not words else words
    if verb == "help":
        topic = [word for word in rest if word not in ("-h", "--help")][:1]
        print(_help(*topic), end="")
    elif verb in ("-sc", "--shell-completion") and rest:
        from pe_lab.cli.completion import shell_completion

        shell_completion(rest[0], VERBS)
    elif verb in ("--version", "version"):
        print(f"pe-lab {__version__}")
    elif verb in VERBS:
        import_module(VERBS[verb]).show(rest)
    elif _is_word(verb):
        raise _unknown(verb, rest)
    else:
        for before, word in pairwise(words):
            # What follows a flag may be its value.
            if word in VERBS and not before.startswith("-"):
                raise UsageError(
                    f"{word} is a command, and commands come first: give pe-lab {word} .."
                )
        from pe_lab.cli.train import launch

        launch(words)


def _is_word(word: str) -> bool:
    return not word.startswith(("-", "~", "+")) and "=" not in word


def _unknown(verb: str, rest: Sequence[str] = ()) -> UsageError:
    if verb in ("train", "run", "sweep"):
        flag = ["-m"] if verb == "sweep" else []
        line = shlex.join(["pe-lab", *flag, *(rest or ["task=flipflop", "pe=cope"])])
        return UsageError(f"{verb} is not a command, training needs none: give {line}")
    if "=NAME" in (message := bare_word(verb)) or "did you mean" in message:
        return UsageError(message)
    return UsageError(f"{verb} is neither a command nor key=value: " + did_you_mean(verb, VERBS))


def _help(topic: str = "key=value") -> str:
    """The help of the program, or of one of its commands."""
    if topic in VERBS:
        spec = find_spec(VERBS[topic])
        assert spec is not None
        assert spec.origin is not None
        # Parsed, not imported: the imports of a command take a second.
        docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text("utf-8"))) or ""
        return _wrapped(docstring.replace("``", ""))
    if _is_word(topic) and topic != "help":
        raise _unknown(topic)
    lines = [f"  {group:<17}{' '.join(choices(group))}" for group in CHOICES]
    return _wrapped(HELP.format(choices="\n".join(lines)))


def _wrapped(text: str) -> str:
    """A help text, wrapped at the terminal's width.

    A line is prose, or a command with its description after two spaces or more. A description
    continues on indented lines; after a long command it begins there.
    """
    width = min(max(shutil.get_terminal_size((WIDEST, 24)).columns, NARROWEST), WIDEST)
    blocks: list[tuple[str, str]] = []
    for line in text.splitlines():
        words, begin = line.strip(), " " * (len(line) - len(line.lstrip()))
        before = blocks[-1] if words and blocks else ("", "")
        beside = re.match(r" +\S.*?  +(?=\S)", line)
        command = begin != "" and words.startswith("pe-lab ")
        deeper = len(begin) > len(before[0]) - len(before[0].lstrip()) > 0
        if beside or command or not before[1] or not (deeper or begin == before[0]):
            blocks.append((beside[0], line[len(beside[0]) :]) if beside else (begin, words))
        elif deeper and not before[0].strip():
            blocks[-1] = f"{before[0]}{before[1]}  ".ljust(len(begin)), words
        else:
            blocks[-1] = before[0], f"{before[1]} {words}"
    return "\n".join(line for begin, rest in blocks for line in _filled(begin, rest, width)) + "\n"


def _filled(begin: str, rest: str, width: int) -> list[str]:
    """The lines of a block; a description lies below its command where the terminal is narrow."""
    indent = " " * (len(begin) - len(begin.lstrip()))
    fill = partial(textwrap.wrap, width=width, break_on_hyphens=False, break_long_words=False)
    if not begin.strip():
        return fill(rest, initial_indent=indent, subsequent_indent=2 * indent) or [""]
    if width - len(begin) < NARROWEST:
        below = f"{indent}    "
        command = _filled(indent, begin.strip(), width)
        return command + fill(rest, initial_indent=below, subsequent_indent=below)
    return fill(rest, initial_indent=begin, subsequent_indent=" " * len(begin))
