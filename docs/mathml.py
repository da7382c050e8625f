"""Formulas as MathML, so that pages need no script and no network. A hook of mkdocs; see `mkdocs.yml`.

Knows: what arithmatex leaves in a page. Does not know: any formula.
"""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">(?P<tex>.*?)</(?P=tag)>', re.DOTALL)


def on_page_content(content: str, /, **_: object) -> str:
    """Return the page with every formula converted. Called by mkdocs, once per page."""
    return _FORMULA.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    tex = html.unescape(match["tex"]).strip()
    return convert(tex[2:-2], display="block" if match["tag"] == "div" else "inline")
