"""Vega, Vega-Lite and vega-embed as one script without network access, as vl-convert ships them."""


def vega_script() -> str:
    """Defines ``window.vegaEmbed``."""
    # Imported here: it starts a JavaScript engine.
    import vl_convert

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script
