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
from dataclasses import dataclass
from functools import reduce

import polars as pl

from pe_lab.common.errors import UsageError
from pe_lab.core.metrics import PREFIXES
from pe_lab.results.keys import check_choice, column_of, unknown

_TOKEN = re.compile(
    r"""\s*(?: (?P<quoted>"[^"]*"|'[^']*')
             | (?P<sign>==|!=|<=|>=|[=<>(),])
             | (?P<word>(?:\[[^\]]*\]|[^\s=!<>(),"'\[])+)
             | (?P<end>$) )""",
    re.VERBOSE,
)
COMPARISONS = ("=", "==", "!=", "<", "<=", ">", ">=")
KEYWORDS = ("and", "or", "not", "in")


@dataclass(frozen=True)
class _Token:
    text: str
    kind: str
    at: int

    def is_(self, *words: str) -> bool:
        """Whether this is one of these operators or keywords, not quoted."""
        return self.kind != "quoted" and self.text.lower() in words


def condition(frame: pl.DataFrame, where: str) -> pl.Expr:
    """The rows of ``frame`` for which ``where`` holds, or cannot be evaluated yet.

    Raises:
        UsageError: a syntax error, with its position.
    """
    return _Parser(frame, where).parsed().fill_null(True)


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


class _Parser:
    def __init__(self, frame: pl.DataFrame, where: str) -> None:
        self.frame, self.where = frame, where
        self.tokens = list(self._tokens())
        self.next = 0

    def _tokens(self) -> list[_Token]:
        tokens, at = [], 0
        while True:
            found = _TOKEN.match(self.where, at)
            if found is None:
                at += len(self.where[at:]) - len(self.where[at:].lstrip())
                raise self._error(f"{self.where[at]} is out of place", at)
            kind = str(found.lastgroup)
            tokens.append(_Token(found[kind], kind, found.start(kind)))
            if kind == "end":
                return tokens
            at = found.end()

    def parsed(self) -> pl.Expr:
        if self.tokens[0].kind == "end":
            raise UsageError("where is empty: give a condition, or leave it out")
        whole = self._any()
        left = self.tokens[self.next]
        if left.kind != "end":
            raise self._error(f"{left.text} is out of place: join conditions by and, or", left.at)
        return whole

    def _any(self) -> pl.Expr:
        found = self._all()
        while self._take("or"):
            found = found | self._all()
        return found

    def _all(self) -> pl.Expr:
        found = self._one()
        while self._take("and"):
            found = found & self._one()
        return found

    def _one(self) -> pl.Expr:
        if self._take("not"):
            return ~self._one()
        if self._take("("):
            inside = self._any()
            if not self._take(")"):
                raise self._error("a closing parenthesis is missing", self.tokens[self.next].at)
            return inside
        return self._comparison()

    def _comparison(self) -> pl.Expr:
        key = self._operand("a key")
        excluded = self._take("not")
        if self._take("in"):
            found = reduce(pl.Expr.or_, [self._compare(key, "=", v) for v in self._values()])
            return ~found if excluded else found
        sign = self.tokens[self.next]
        if excluded or not sign.is_(*COMPARISONS):
            signs = " ".join(COMPARISONS)
            raise self._error(f"after {key.text} one of {signs} in is missing", sign.at)
        self.next += 1
        return self._compare(key, sign.text, self._operand("a value"))

    def _values(self) -> list[_Token]:
        if not self._take("("):
            raise self._error("in wants (A, B)", self.tokens[self.next].at)
        values = [self._operand("a value")]
        while self._take(","):
            values.append(self._operand("a value"))
        if not self._take(")"):
            raise self._error("a closing parenthesis is missing", self.tokens[self.next].at)
        return values

    def _operand(self, what: str) -> _Token:
        token = self.tokens[self.next]
        if token.kind not in ("word", "quoted") or token.is_(*KEYWORDS):
            raise self._error(f"{what} is missing", token.at)
        self.next += 1
        if token.kind == "quoted":
            return _Token(token.text[1:-1], "quoted", token.at)
        return token

    def _take(self, *words: str) -> bool:
        taken = self.tokens[self.next].is_(*words)
        self.next += taken
        return taken

    def _compare(self, key: _Token, sign: str, value: _Token) -> pl.Expr:
        try:
            return _compared(self.frame, key.text, sign, value.text, value.kind == "quoted")
        except ValueError as error:
            raise self._error(str(error), key.at) from None

    def _error(self, why: str, at: int) -> UsageError:
        return UsageError(f"where={self.where!r}, character {at + 1}: {why}")


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
