"""An array of an answer that stays in its frame until somebody asks for its elements.

A broker's answer may hold a million elements of 3 bytes, and each would be an object of more than a hundred. So the
decoder only walks over a long array, which shows that all of it is valid, and remembers where it starts."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, overload

from aioproducer.protocol.primitives import Buffer

Read = Callable[[Buffer, int], tuple[Any, int]]
"""The element at a position, and the position behind it."""

SHOWN_ITEMS = 8


class LazyArray(Sequence[Any]):
    """Elements of a frame that was found valid, decoded anew at each look; equal to a list with the same ones."""

    __slots__ = ("_buf", "_count", "_places", "_read", "_start")

    __hash__ = None  # type: ignore[assignment]  # compared by value, like a list

    def __init__(self, buf: Buffer, start: int, count: int, read: Read) -> None:
        self._buf = buf
        self._start = start
        self._count = count
        self._read = read
        self._places: array[int] | None = None
        """Where each element starts; made when somebody asks for one by its number."""

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
