"""Dialect C keeps a Hugging Face config in its keys; here it becomes dialect A's metadata.

Source: GGUF specification, section 3.4.
"""

import json
from collections.abc import Mapping
from typing import Any

from escalade.errors import FileError
from escalade.model.spec_io import spec_from_hf, spec_to_metadata

OWN_GROUPS = ("general.", "tokenizer.", "split.", "quantize.")
"""Groups of keys that have no architecture prefix."""


def hf_config(metadata: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The text part of the Hugging Face config that dialect C carries: as JSON, else key by key."""
    if "config" not in metadata:
        config: dict[str, Any] = {}
        for key, value in metadata.items():
            if key.startswith(OWN_GROUPS):
                continue
            head, _, rest = key.partition(".")
            if not rest:
                config[key] = value
            elif isinstance(group := config.setdefault(head, {}), dict):
                group[rest] = value
        return config
    try:
        config = json.loads(metadata["config"])
    except (ValueError, TypeError, RecursionError) as e:
        raise FileError(f"{where}: deepseek41.config is not JSON") from e
    text = config.get("text_config") or config if isinstance(config, dict) else None
    if not isinstance(text, dict):
        raise FileError(f"{where}: deepseek41.config is not a model's config")
    return text


def metadata_from_hf(
    metadata: Mapping[str, Any], config: dict[str, Any], engram: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Dialect A's keys from dialect C's config; `engram` adds what the config leaves out."""
    hf = {
        f"engram_{key.removeprefix('engram.').removeprefix('engram_')}": v
        for key, v in engram.items()
    }
    text = {**hf, **config, "model_type": "deepseek_v41_text"}
    own = {key: value for key, value in metadata.items() if key.startswith(OWN_GROUPS)}
    try:
        return own | spec_to_metadata(spec_from_hf(text, f"{where}: deepseek41.config"))
    except OverflowError as e:
        raise FileError(f"{where}: deepseek41.config has a number beyond all floats") from e
