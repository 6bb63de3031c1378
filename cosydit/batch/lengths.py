"""Between the LLM and token2wav utterances wait here until a batch of like length can be taken. Knows no services."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cosydit.batch.types import TokenisedUtterance


class LengthWindow:
    """A bounded queue that gives out utterances of like length together, the oldest always among them."""

    def __init__(self, room: int) -> None:
        """Begin empty and open; `room` utterances may wait."""
        self._room = room
        self._waiting: list[TokenisedUtterance] = []
        self._is_open = True
        self._changed = asyncio.Condition()

    async def put(self, utterance: TokenisedUtterance) -> None:
        """Add one, waiting while there is no room."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._waiting) < self._room)
            self._waiting.append(utterance)
            self._changed.notify_all()

    async def close(self) -> None:
        """Say that no more will come."""
        async with self._changed:
            self._is_open = False
            self._changed.notify_all()

    async def take(self, size: int) -> list[TokenisedUtterance]:
        """Return `size` utterances of like length, fewer once no more will come, none at the end."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._waiting) >= size or not self._is_open)
            taken = take_alike([len(each.token_ids) for each in self._waiting], size)
            batch = [self._waiting[index] for index in taken]
            self._waiting = [each for index, each in enumerate(self._waiting) if index not in taken]
            self._changed.notify_all()
            return batch


def take_alike(lengths: Sequence[int], size: int) -> dict[int, int]:
    """Choose the `size` entries closest in length among those that include the first, which has waited longest.

    Returns:
        Index -> length, shortest first; all of them if there are no more than `size`.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    if len(order) > size:
        oldest = order.index(0)
        starts = range(max(0, oldest - size + 1), min(oldest, len(order) - size) + 1)
        start = min(starts, key=lambda at: lengths[order[at + size - 1]] - lengths[order[at]])
        order = order[start : start + size]
    return {index: lengths[index] for index in order}
