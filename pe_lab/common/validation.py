"""What pydantic checks: closed dataclasses, and its errors in words."""

import re

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from pe_lab.common.suggest import did_you_mean

closed = dataclass(
    frozen=True, kw_only=True, config=ConfigDict(extra="forbid", allow_inf_nan=False)
)
"""A class decorator: a frozen dataclass that refuses unknown keys and values of other types."""

_ALLOWED = {
    "greater_than": "a value greater than {gt}",
    "greater_than_equal": "a value of at least {ge}",
    "less_than": "a value less than {lt}",
    "less_than_equal": "a value of at most {le}",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "a text",
    "string_too_short": "a text of {min_length} characters or more",
    "tuple_type": "a list: [A,B]",
    "list_type": "a list: [A,B]",
    "too_short": "{min_length} values or more",
    "too_long": "{max_length} values",
    "dict_type": "a mapping: {{KEY: VALUE}}",
    "dataclass_type": "a mapping: {{KEY: VALUE}}",
}


def remedy(error: ErrorDetails) -> str:
    """``set it to a whole number``, or ``did you mean cosine?`` where there is a list of choices;
    pydantic's own message for a kind of error not listed here."""
    if error["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'|(\d+)", error["ctx"]["expected"])
        return did_you_mean(str(error["input"]), [word or number for word, number in choices])
    allowed = _ALLOWED.get(error["type"])
    return f"set it to {allowed.format(**error.get('ctx', {}))}" if allowed else error["msg"]
