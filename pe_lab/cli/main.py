"""The command line: key=value overrides train a run, commands do the rest."""

import ast
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

HELP = """\
pe-lab: compare positional encodings on tasks that ask whether they generalise.

Train, measure in and out of domain:
  pe-lab task=flipflop pe=cope                          one run, into runs/flipflop/cope/
  pe-lab task=selective_copy pe=rope seed=1 train.steps=500
  pe-lab -m task=flipflop pe=cope,rope,learned seed=0,1,2    every combination
  pe-lab -m experiment=small/flipflop                   a published table, for a laptop
A finished run is skipped, an unfinished one is resumed; the same command can always be run again.

Results (pe-lab results --help, and so on, describes each command's own keys):
  pe-lab results [task=..] [by=pe,model.d_model] [where=".."]   one table over all runs
  pe-lab compare                                        against the published numbers
  pe-lab report                                         plots and tables: runs/report/index.html
  pe-lab eval run=FOLDER pe=pi,rerope lengths=128,512   at any length, with other encodings
  pe-lab extrapolate task=text                          train short, test long, against Su's table
  pe-lab inspect run=FOLDER sample=3                    what the encoding did with a sequence
  pe-lab generate run=FOLDER prompt=".."                the model's continuation of a prompt
  pe-lab dashboard                                      a wandb workspace of the same plots
  pe-lab list                                           every choice, one line each
  pe-lab --cfg job task=.. pe=..                        every key of a run and its value

Choices:
{choices}

Keys: task.* pe.* positions.* model.* train.* eval.* tracker.* (pe-lab --cfg job shows all)
  seed=0  device=auto|cpu|cuda  threads=1  runs_dir=runs  force=false  debug=false
  tracker.wandb.mode=offline|online|disabled
Your own encoding or task: one class, one yaml, pe-lab --config-dir FOLDER pe=NAME (see README).
Tab completion: eval "$(pe-lab -sc install=bash)". Hydra's own flags: pe-lab --hydra-help.
"""

VERBS = {
    "results": "pe_lab.cli.results",
    "compare": "pe_lab.cli.compare",
    "report": "pe_lab.cli.report",
    "eval": "pe_lab.cli.eval",
    "extrapolate": "pe_lab.cli.extrapolate",
    "inspect": "pe_lab.cli.inspect",
    "generate": "pe_lab.cli.generate",
    "dashboard": "pe_lab.cli.dashboard",
    "list": "pe_lab.cli.list",
}
"""Each command and its module: ``show`` runs it, the docstring is its help."""

# The spellings of true in YAML.
DEBUG = {f"debug={word}" for word in ("true", "yes", "on", "1", "t", "y")}


def entry() -> None:
    """The console script."""
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 done, 1 failed, 2 wrong usage,
    130 and 143 stopped by Ctrl-C and SIGTERM."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is not None:
        sys.argv = [sys.argv[0], *words]
    from pe_lab.common.errors import Interrupted, PeLabError, sentence

    debug = any(word.lower() in DEBUG for word in words)
    try:
        _dispatch(words)
        return 0
    except PeLabError as error:
        return _say(error, error.exit_status, debug)
    except (KeyboardInterrupt, Interrupted) as stop:
        return getattr(stop, "exit_status", 130)
    except BrokenPipeError:
        # The reader of our output is gone (| head): keep the interpreter from reporting it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _say(Exception(f"{sentence(error)} (debug=true shows where)"), 1, debug)


def _say(error: Exception, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"pe-lab: {error}", file=sys.stderr)
    return status


def _dispatch(words: list[str]) -> None:
    wants_help = {"-h", "--help"} & set(words)
    verb, *rest = ["help", *words] if wants_help or not words else words
    if verb == "help":
        topic = [word for word in rest if word not in ("-h", "--help")][:1]
        print(_help(*topic), end="")
    elif verb in VERBS:
        import_module(VERBS[verb]).show(rest)
    elif _is_word(verb):
        raise _unknown(verb)
    else:
        for before, word in pairwise(words):
            # What follows a flag may be its value.
            if word in VERBS and not before.startswith("-"):
                raise _misplaced(word)
        from pe_lab.cli.train import launch

        launch(words)


def _is_word(word: str) -> bool:
    return not word.startswith(("-", "~", "+")) and "=" not in word


def _unknown(verb: str) -> Exception:
    from pe_lab.common.errors import UsageError
    from pe_lab.common.suggest import did_you_mean

    return UsageError(f"{verb} is neither a command nor key=value: " + did_you_mean(verb, VERBS))


def _misplaced(verb: str) -> Exception:
    from pe_lab.common.errors import UsageError

    return UsageError(f"{verb} is a command, and commands come first: give pe-lab {verb} ..")


def _help(topic: str = "key=value") -> str:
    """How the program is used, or one of its commands."""
    if topic in VERBS:
        spec = find_spec(VERBS[topic])
        assert spec is not None
        assert spec.origin is not None
        # Parsed, not imported: the imports of a command take a second.
        docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""
        return docstring.replace("``", "") + "\n"
    if _is_word(topic) and topic != "help":
        raise _unknown(topic)
    return HELP.format(choices=_choices())


def _choices() -> str:
    from pe_lab import __path__ as package

    conf = next(path for base in package if (path := Path(base) / "conf").is_dir())
    lines = []
    for group in ("task", "pe", "positions", "model", "train/optimizer", "experiment"):
        found = sorted(
            str(path.relative_to(conf / group).with_suffix(""))
            for path in (conf / group).rglob("*.yaml")
        )
        lines.append(f"  {group:<16}{' '.join(found)}")
    return "\n".join(lines)
