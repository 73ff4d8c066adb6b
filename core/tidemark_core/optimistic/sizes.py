"""Sizes: the bounds of keys, elements and values."""

from __future__ import annotations

KEY_BYTES_MAX = 1024
"""Bytes of a key."""

ELEMENT_BYTES_MAX = 1024
"""Bytes of a member of a Set, or of the name of a field of a Map."""

VALUE_BYTES_MAX = 1 << 20
"""Bytes of a value."""
