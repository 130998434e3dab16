"""HTML pages that load nothing: one style sheet, Vega and a table library, all within the page.

A chart is an element of the class ``chart`` that holds its specification as JSON; page.js draws it
when it comes into view. Tables of the class ``sortable`` are sorted by tablesort 5.7.1 (MIT).
"""

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from typing import Any

import orjson
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

SANS = "Liberation Sans, Arial, Helvetica, sans-serif"
"""vl-convert always has the first. In a browser, the next two are as wide."""
FONTS = {"inherit": SANS, "ui-monospace, monospace": "monospace"}
"""Those of the page -> those of a file."""

SCRIPTS = ("tablesort-5.7.1.min.js", "page.js")


def rendered(template: str, **values: Any) -> str:
    """The HTML of a template of pe_lab.report, which extends base.html and can use macros.html;
    strings are escaped."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(of, ".") for of in ("pe_lab.report", __name__)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_function"] = lambda value, **_: orjson.dumps(value).decode()
    scripts = [Markup(script) for script in (vega_script(), *map(asset, SCRIPTS))]
    hashes = Markup(" ".join(script_hash(script) for script in scripts))
    style = Markup(asset("page.css"))
    page = environment.get_template(template)
    return page.render(style=style, scripts=scripts, hashes=hashes, **values)


@cache
def asset(name: str) -> str:
    """A file of this folder."""
    return (resources.files(__name__) / name).read_text("utf-8")


@cache
def vega_script() -> str:
    """Vega, Vega-Lite and vega-embed as vl-convert ships them: ``window.vegaEmbed``."""
    # Imported here: it starts a JavaScript engine.
    import vl_convert

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script


def script_hash(script: str) -> str:
    """The source of a script for the page's Content-Security-Policy."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def drawn(spec: dict[str, Any], form: str) -> bytes:
    """A specification in Vega-Lite as a file in the light colours: svg, png or pdf."""
    # Imported here: it starts a JavaScript engine.
    import vl_convert

    draw = getattr(vl_convert, f"vegalite_to_{form}")
    light = _in_light(spec)
    image = draw(light, scale=2) if form == "png" else draw(light)
    return image.encode() if isinstance(image, str) else bytes(image)


def _in_light(spec: dict[str, Any]) -> str:
    """The specification as JSON, with the light colours of page.css in place of CSS variables."""
    text = orjson.dumps(spec).decode()
    for font, written in FONTS.items():
        text = text.replace(f'"{font}"', f'"{written}"')
    return re.sub(r"var\((--[\w-]+)\)", lambda match: light_colours()[match[1]], text)


@cache
def light_colours() -> dict[str, str]:
    """CSS variable -> colour on a light page, from ``--ink: light-dark(#1c1e22, #e9e7e3)``."""
    return dict(re.findall(r"(--[\w-]+): (?:light-dark\()?(#\w+)", asset("page.css")))
