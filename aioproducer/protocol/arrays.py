"""An array in a response that stays encoded until its elements are accessed.

A response may contain a million elements of 3 bytes, each of which would become an object of more than 100 bytes. To
save memory, the decoder only walks over a long array to check that it is valid, and stores its start."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, overload

from aioproducer.protocol.primitives import Buffer

Read = Callable[[Buffer, int], tuple[Any, int]]
"""A function that reads the element at a position, and returns the element and the position after it."""

SHOWN_ITEMS = 8


class LazyArray(Sequence[Any]):
    """A sequence whose elements stay encoded in a valid frame and are decoded on each access.

    It compares equal to a list of the same elements.
    """

    __slots__ = ("_buf", "_count", "_places", "_read", "_start")

    __hash__ = None  # type: ignore[assignment]  # compared by value, like a list

    def __init__(self, buf: Buffer, start: int, count: int, read: Read) -> None:
        self._buf = buf
        self._start = start
        self._count = count
        self._read = read
        self._places: array[int] | None = None
        """The start of each element; computed on the first access by index."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        buf, pos, read = self._buf, self._start, self._read
        for _ in range(self._count):
            item, pos = read(buf, pos)
            yield item

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._count))]
        if self._places is None:
            self._places = self._found()
        return self._read(self._buf, self._places[index])[0]

    def _found(self) -> array[int]:
        places, pos = array("I"), self._start
        for _ in range(self._count):
            places.append(pos)
            _, pos = self._read(self._buf, pos)
        return places

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | LazyArray):
            return NotImplemented
        return len(self) == len(other) and all(
            mine == theirs for mine, theirs in zip(self, other, strict=True)
        )

    def __repr__(self) -> str:
        shown = [repr(item) for item in islice(self, SHOWN_ITEMS)]
        if self._count > SHOWN_ITEMS:
            shown.append(f"… {self._count - SHOWN_ITEMS} more")
        return f"[{', '.join(shown)}]"
