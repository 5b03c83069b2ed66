"""The memory of decoded objects, in bytes."""

from __future__ import annotations

import sys
from typing import Any

from aioproducer.protocol.arrays import LazyArray
from aioproducer.protocol.schema import Struct


def weight(value: Any) -> int:
    """Return the bytes of `value` and of all objects that it refers to, each counted once; views count without their
    buffers."""
    seen: set[int] = set()
    left = [value]
    total = 0
    while left:
        item = left.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        if isinstance(item, LazyArray):
            continue  # its elements have not been created
        if isinstance(item, Struct):
            left.extend(getattr(item, field.name) for field in item.FIELDS)
        elif isinstance(item, dict):
            left.extend(item.keys())
            left.extend(item.values())
        elif isinstance(item, list | tuple | set):
            left.extend(item)
        elif hasattr(item, "__dict__"):
            left.append(vars(item))
        elif hasattr(item, "__slots__"):
            left.extend(getattr(item, name) for name in item.__slots__ if hasattr(item, name))
    return total
