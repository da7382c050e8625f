"""Images in prompts of token ids: as many as were sent, among exactly these tokens, seen with the weights that serve.

SGLang decodes the tokens, looks for the text of placeholders, and encodes the text again. Images whose placeholder
stands in other text than the model's chat template are passed over, and other tokens may change. Features of images
it keeps across updates.

Knows: how SGLang's processors take media in, its cache of image features.
Does not know: how an image is processed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sglang.srt.managers import mm_schedule
from sglang.srt.runtime_context import get_serving

Original = Callable[..., Any]  # Any: SGLang's own
_seen_with: str | None = None


async def among_tokens(original: Original, processor: Any, **media: Any) -> Any:
    """Hook of BaseMultimodalProcessor.load_mm_data: show it placeholders alone, which SGLang puts among the tokens."""
    ids, images = media.get("prompt"), media.get("image_data")
    placeholder = getattr(media.get("multimodal_tokens"), "image_token", None)
    if not (isinstance(ids, list) and images and isinstance(placeholder, str)):
        return await original(processor, **media)
    loaded = await original(processor, **{**media, "prompt": placeholder * len(images)})
    loaded.input_ids = ids
    return loaded


async def all_of_them(original: Callable[..., Awaitable[Any]], manager: Any, request: Any) -> Any:
    """Hook of TokenizerManager._tokenize_one_request: refuse what came out with fewer images or other tokens.

    Raises:
        ValueError: which SGLang answers with status 400.
    """
    ids, images = request.input_ids, request.image_data
    made = await original(manager, request)
    if not images or ids is None:
        return made
    taken, count = made.mm_inputs, len(images) if isinstance(images, list) else 1
    num_taken = sum(len(item.offsets or ()) for item in taken.mm_items) if taken is not None else 0
    if num_taken != count:
        raise ValueError(f"SGLang's processor of this model took {num_taken} of {count} images")
    placeholder = taken.im_token_id
    if [token for token in made.input_ids if token != placeholder] != [token for token in ids if token != placeholder]:
        raise ValueError("SGLang's processor of this model changes the tokens around images")
    return made


def with_these_weights(original: Original, *arguments: Any, **options: Any) -> Any:
    """Hook of mm_schedule.get_embedding_and_mask: forget what other weights saw."""
    global _seen_with
    version = get_serving().weight_version
    if version != _seen_with:
        _seen_with = version
        mm_schedule.embedding_cache.clear()
    return original(*arguments, **options)
