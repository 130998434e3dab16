"""Text in which no character is a sign of markdown or of LaTeX."""

import re


def in_markdown(text: str) -> str:
    """The text as markdown shows it."""
    return re.sub(r"([\\`*_|<>\[\]~])", r"\\\1", text)


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "−": r"$-$",
    "≠": r"$\neq$",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
}


def in_latex(text: str) -> str:
    """The text as LaTeX sets it."""
    return "".join(_LATEX.get(letter, letter) for letter in text)
