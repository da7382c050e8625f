"""The renderer `auto`: the family whose proof holds on the run's tokenizer.

Knows: in which order renderers are tried.
Does not know: how one is proven.
"""

from __future__ import annotations

import logging
from typing import Any

from areal_agentic.renderer import BoundRenderer
from areal_core.contract.errors import DatasetError
from areal_renderers.config import ChatOptions, TemplateConfig
from areal_renderers.families import FAMILIES, FamilyRenderer
from areal_renderers.plain import PlainRenderer
from areal_renderers.template import TemplateRenderer

logger = logging.getLogger(__name__)


class AutoRenderer:
    """Role `renderer`, contract 1.0. What it binds says in `name` which renderer it took."""

    def __init__(self, config: ChatOptions | None = None) -> None:
        """Hold the options."""
        self._config = config or ChatOptions()

    def bind(self, tokenizer: Any) -> BoundRenderer:  # Any: a Hugging Face tokenizer
        """Return the renderer of a tokenizer: `plain` if it has no chat template.

        Raises:
            DatasetError: an option has no effect on the model's template, or a base model has no end token.
        """
        config = self._config
        if not getattr(tokenizer, "chat_template", None) and not config.variables:
            return PlainRenderer().bind(tokenizer)
        for family in FAMILIES:
            if family.recognises(tokenizer):
                try:
                    return FamilyRenderer(family, config).bind(tokenizer)
                except DatasetError as exc:
                    logger.warning("the renderer %r does not hold for this model: %s", family.style.name, exc)
        options = TemplateConfig(template=config.template, enable_thinking=config.enable_thinking)
        return TemplateRenderer(options).bind(tokenizer)
