"""Conditions over the columns of a table of runs: ``task=flipflop and train.steps>=1000``.

    = == != < <= > >=     pe.npos != 16, in_domain/error < 0.01 (errors are shares, not %)
    in, not in            pe in (cope, rope)
    and or not ( )        not binds before and, and before or
    'quoted', "quoted"    what holds blanks, commas or parentheses
    null true false       pe.npos = null

A key may be written without its group where that is clear (steps>=1000, d_model=128), and the
error on a split as the split: sparse<0.1 is ood/sparse/error<0.1, ood<0.1 the mean out of domain.
Numbers are compared as numbers: 1e-3 equals 0.001. A run without a key, or with null there, equals
no value and is neither below nor above one. Where the value does not exist yet, as a metric
of an unfinished run or a key of one without a configuration, the run is kept.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce

import polars as pl

from pe_lab.config.choices import choices
from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import OOD, PREFIXES
from pe_lab.core.suggest import did_you_mean
from pe_lab.results.reader import GROUPS

STATES = ("finished", "running", "interrupted", "failed", "killed", "not begun", "broken")
CHOICES: dict[str, Callable[[], Iterable[str]]] = {
    **{group: partial(choices, group) for group in GROUPS},
    "state": lambda: STATES,
}
"""Keys with a list of values -> a function that returns it."""


def column_of(key: str, columns: Sequence[str]) -> str | None:
    """The column that a key stands for: itself; the error on a split, ``sparse`` or ``ood``;
    another metric of a split, ``sparse/loss``; or the only one that ends alike, ``d_model``."""
    metrics = (key, f"{key}/error", f"{OOD}/{key}", f"{OOD}/{key}/error")
    found = [name for name in metrics if name in columns]
    found += [name for name in columns if name.count(".") == 1 and name.endswith(f".{key}")]
    return found[0] if found and (found[0] in metrics or len(found) == 1) else None


def check_choice(frame: pl.DataFrame, key: str, value: str) -> None:
    """ValueError for a task, an encoding, .. that no run has and that does not exist."""
    if key in CHOICES and value not in (choices := {*CHOICES[key](), *frame[key].drop_nulls()}):
        raise ValueError(f"there is no {key} {value}: {did_you_mean(value, choices)}")


def unknown(key: str, columns: list[str]) -> str:
    """The message for an unknown key, with its nearest siblings."""
    sign = "/" if "/" in key else "."
    parent = key.rpartition(sign)[0] + sign
    siblings = [c for c in columns if c.startswith(parent)] if sign in key else []
    if sign == "/":
        # The split alone stands for the error on it.
        siblings = sorted({"/".join(c.split("/")[: key.count("/") + 1]) for c in siblings})
    if not siblings:
        siblings = sorted({re.split("[./]", column)[0] for column in columns})
    lists = "pe-lab results" if sign == "/" else "pe-lab --cfg job"
    return f"none of the runs has a key {key}: {did_you_mean(key, siblings, lists)}"


_NAME = r"""(?:"[^"]*"|'[^']*'|(?:\[[^\]]*\]|[^\s=!<>(),"'\[])+)"""
_OPERAND = re.compile(_NAME)
_SIGN = re.compile(r"""\s*(==|!=|<=|>=|[=<>])\s*|\s+((?:not\s+)?in)(?=[\s(]|$)\s*""", re.IGNORECASE)
_LISTED = re.compile(rf"\(\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\)")
_LOGIC = re.compile(r"""[()]|(?:and|or|not)(?=[\s()"']|$)""", re.IGNORECASE)
SIGNS = "= == != < <= > >= in"
KEYWORDS = ("and", "or", "not", "in")


def condition(frame: pl.DataFrame, where: str) -> pl.Series:
    """Whether ``where`` holds for each row of ``frame``, or cannot be evaluated yet.

    Each comparison becomes a column, since its keys and values are ours; polars' SQL joins them.

    Raises:
        UsageError: a syntax error, with its position.
    """
    columns: dict[str, pl.Expr] = {}
    logic: list[str] = []
    at, depth, wants_key = 0, 0, True
    while (at := len(where) - len(where[at:].lstrip())) < len(where):
        word = _LOGIC.match(where, at) or _OPERAND.match(where, at)
        if word is None:
            raise _error(where, at, f"{where[at]} is out of place")
        text = word[0].lower() if _LOGIC.match(where, at) else ""
        depth += (text == "(") - (text == ")")
        if wants_key and text in ("and", "or", ")"):
            raise _error(where, at, "a key is missing")
        if depth < 0:
            raise _error(where, at, ") is out of place")
        if not wants_key and text not in ("and", "or", ")"):
            raise _error(where, at, f"{word[0]} is out of place: join conditions by and, or")
        if text:
            logic.append(text)
            at = word.end()
            wants_key = text != ")"
        else:
            logic.append(f'"{len(columns)}"')
            columns[f"{len(columns)}"], at = _comparison(frame, where, word)
            wants_key = False
    if not columns and not logic:
        raise UsageError("where is empty: give a condition, or leave it out")
    if wants_key or depth:
        missing = "a key is missing" if wants_key else "a closing parenthesis is missing"
        raise _error(where, len(where), missing)
    compared = frame.select(**columns)
    try:
        return compared.select(pl.sql_expr(" ".join(logic))).to_series().fill_null(True)
    except pl.exceptions.PolarsError:
        raise _error(where, 0, "it is nested too deep, write fewer parentheses") from None


def _comparison(frame: pl.DataFrame, where: str, key: re.Match[str]) -> tuple[pl.Expr, int]:
    """The comparison that begins with this key, and where it ends."""
    sign = _SIGN.match(where, key.end())
    if sign is None:
        raise _error(where, key.end(), f"after {key[0]} one of {SIGNS} is missing")
    at, values = sign.end(), None
    if sign[2] is None:
        value = _OPERAND.match(where, at)
        if value is None or value[0].lower() in KEYWORDS:
            quoted = where[at : at + 1] in ("'", '"')
            raise _error(where, at, "the quote does not end" if quoted else "a value is missing")
        values, end, name = [value[0]], value.end(), sign[1]
    else:
        listed = _LISTED.match(where, at)
        if listed is None and where[at : at + 1] != "(":
            raise _error(where, at, f"{sign[2]} wants (A, B)")
        if listed is None:
            closed = ")" in where[at:]
            missing = "a value" if closed else "a closing parenthesis"
            raise _error(where, at + closed if closed else len(where), f"{missing} is missing")
        values, end, name = _OPERAND.findall(listed[0]), listed.end(), "="
    try:
        found = [_compared(frame, _bare(key[0]), name, _bare(v), v[0] in "\"'") for v in values]
    except ValueError as error:
        raise _error(where, key.start(), str(error)) from None
    either = reduce(pl.Expr.or_, found)
    return (~either if sign[2] and sign[2].lower() != "in" else either), end


def _bare(word: str) -> str:
    return word[1:-1] if word[0] in "\"'" else word


def _error(where: str, at: int, why: str) -> UsageError:
    return UsageError(f"where={where!r}, character {at + 1}: {why}")


def one_of(frame: pl.DataFrame, key: str, values: str) -> pl.Expr:
    """The rows whose ``key`` is one of the comma-separated values, or missing so far."""
    words = re.findall(r"(?:\[[^\]]*\]|\"[^\"]*\"|'[^']*'|[^,])+", values)
    if not words:
        raise UsageError(f"{key}={values} names no value: give one, or several joined by commas")
    try:
        equal = [
            _compared(frame, key, "=", word.strip().strip("\"'"), word.strip()[:1] in ('"', "'"))
            for word in words
        ]
    except ValueError as error:
        raise UsageError(f"{key}={values}: {error}") from None
    return reduce(pl.Expr.or_, equal).fill_null(True)


def _compared(frame: pl.DataFrame, key: str, sign: str, value: str, quoted: bool) -> pl.Expr:
    """True or false; null where the run has no value yet. ValueError for a wrong comparison."""
    found_key = column_of(key, frame.columns)
    if found_key is None:
        raise ValueError(unknown(key, frame.columns))
    key = found_key
    column, dtype = pl.col(key), frame.schema[key]
    number = None if quoted else _number(value)
    written = f"'{value}'" if quoted else value
    if sign in ("<", "<=", ">", ">="):
        if dtype == pl.Boolean or isinstance(dtype, pl.List) or number is None:
            raise ValueError(f"{sign} compares numbers, and {key}{sign}{written} has none")
        numbers = column.cast(pl.Float64, strict=False)
        compare = {"<": pl.Expr.lt, "<=": pl.Expr.le, ">": pl.Expr.gt, ">=": pl.Expr.ge}
        found = compare[sign](numbers, number)
    else:
        found = _equal(frame, key, value, quoted, number)
        if sign == "!=":
            found = ~found.fill_null(False)
    has_value = pl.lit(True)
    if key.startswith(PREFIXES):
        has_value = pl.col("state") == "finished"
    elif "." in key:
        has_value = pl.col("setting").is_not_null()
    return pl.when(has_value).then(found.fill_null(False)).otherwise(None)


def _equal(
    frame: pl.DataFrame, key: str, value: str, quoted: bool, number: float | None
) -> pl.Expr:
    column, dtype = pl.col(key), frame.schema[key]
    if not quoted and value.lower() == "null":
        return column.is_null()
    if isinstance(dtype, pl.List):
        return column.list.contains(value)
    if dtype == pl.Boolean:
        if value.lower() not in ("true", "false"):
            raise ValueError(f"{key} is true or false, not {value}")
        return column == (value.lower() == "true")
    if dtype == pl.String:
        check_choice(frame, key, value)
        same = column == value
        if value.startswith("["):
            # [0.9,0.999] is [0.9, 0.999], and [a] is ["a"].
            same = column.str.replace_all('[ "]', "") == re.sub('[ "]', "", value)
        return same if number is None else same | (column.cast(pl.Float64, strict=False) == number)
    if number is None:
        written = f"'{value}', in quotes," if quoted else value
        raise ValueError(f"{key} holds numbers, and {written} is none")
    return column == number


def _number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return None if math.isnan(number) else number
