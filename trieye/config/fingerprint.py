"""config_hash: whether two runs train the same thing."""

import hashlib
import json

from trieye.config.root import TrieyeConfig

_WHAT_IS_TRAINED = ("agent", "model", "env")


def config_hash(config: TrieyeConfig) -> str | None:
    """Return a hash of what is trained: the groups `agent`, `model` and `env`, else all that the project added.

    A state of one run fits another only if they have the same hash; None for a config without groups of its own.
    """
    own = {name for name in type(config).model_fields if name not in TrieyeConfig.model_fields}
    chosen = own & set(_WHAT_IS_TRAINED) or own
    if not chosen:
        return None
    text = json.dumps(config.model_dump(mode="json", include=chosen), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
