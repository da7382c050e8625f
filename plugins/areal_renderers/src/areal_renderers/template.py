"""The renderer `template`: any model with a chat template.

Knows: what its options name.
Does not know: families, or how a template becomes a renderer (`bound`).
"""

from __future__ import annotations

from typing import Any

from areal_renderers.bound import BoundTemplate, Style
from areal_renderers.config import TemplateConfig
from areal_renderers.proof import prove
from areal_renderers.reading import CALLS, THOUGHTS


class TemplateRenderer:
    """Role `renderer`, contract 1.0: reads content only, unless the options name ways of thoughts and calls."""

    def __init__(self, config: TemplateConfig | None = None) -> None:
        """Hold the options."""
        self._config = config or TemplateConfig()

    def bind(self, tokenizer: Any) -> BoundTemplate:  # Any: a Hugging Face tokenizer
        """Return the renderer of a tokenizer, proven on it as far as it reads answers.

        Raises:
            DatasetError: it has no chat template, or its template writes thoughts or calls in another way.
        """
        config = self._config
        style = Style(name="template", thoughts=THOUGHTS[config.thoughts], calls=CALLS[config.calls])
        bound = BoundTemplate(tokenizer, style, config)
        prove(bound, reads_thoughts=config.thoughts != "none", reads_calls=config.calls != "none")
        return bound
