"""Who is the next one in: callers share what there is, whatever one of them asks for."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future

import pytest

from gateway.routing import admission_queue
from gateway.routing.admission_queue import AdmissionQueue, QueueEntry

USUAL = 10


class Queue:
    """A queue and those who were given their turn or dropped."""

    def __init__(self) -> None:
        self.queue = AdmissionQueue()
        self.given: list[str] = []
        self.asked: list[QueueEntry] = []

    def ask(self, caller: str, times: int = 1, priority: int = USUAL) -> list[QueueEntry]:
        entries = []
        for _ in range(times):
            entries.append(QueueEntry(caller, priority, Future[bool]()))
            self.queue.join(entries[-1])
        self.asked += entries
        return entries

    @property
    def dropped(self) -> list[str]:
        return [entry.caller for entry in self.asked if entry.turn.done() and not entry.turn.result()]  # type: ignore[attr-defined]

    def serve(self, times: int = 1) -> list[str]:
        """Give so many turns, each for a stream that stays; return whose they were."""
        for _ in range(times):
            entry = self.queue.first()
            assert entry is not None
            self.queue.leave(entry)
            self.queue.begin_stream(entry.caller)
            entry.turn.set_result(True)
            self.given.append(entry.caller)
        return self.given[-times:]


def test_a_key_that_reads_12_long_texts_keeps_no_other_one_out() -> None:
    queue = Queue()
    queue.ask("reader", 12)
    queue.serve(12)
    queue.ask("reader", 30, priority=1)
    queue.ask("other")
    assert queue.serve() == ["other"], "urgent requests of a caller with streams come after it"


def test_callers_take_turns_urgent_requests_first_and_those_of_one_caller_in_order() -> None:
    queue = Queue()
    first, *_ = queue.ask("loud", 6)
    queue.ask("quiet", 2)
    assert queue.queue.first() is first
    assert queue.serve(4) == ["loud", "quiet", "loud", "quiet"]
    queue.ask("quiet", 1)
    queue.ask("loud", 1, priority=3)
    assert queue.serve(3) == ["loud", "quiet", "loud"]


def test_with_every_end_of_a_stream_shares_become_equal() -> None:
    queue = Queue()
    for caller, wanted in (("a", 100), ("b", 100), ("c", 5)):
        queue.ask(caller, wanted)
    queue.serve(31)
    assert Counter(queue.given) == {"a": 13, "b": 13, "c": 5}
    for _ in range(5):
        queue.queue.end_stream("a")
    assert queue.serve(4) == ["a"] * 4


def test_a_full_queue_drops_the_newest_of_the_caller_with_the_most_and_never_one_of_a_quiet_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission_queue, "MAX_WAITING", 10)
    queue = Queue()
    entries = queue.ask("loud", 10)
    queue.ask("quiet")
    assert queue.dropped == ["loud"] and len(queue.queue) == 10
    queue.ask("loud")
    assert queue.dropped == ["loud", "loud"]
    queue.queue.leave(entries[0])
    queue.queue.leave(entries[0])
    assert len(queue.queue) == 9
    assert queue.serve(9) == ["loud", "quiet", *["loud"] * 7] and queue.queue.first() is None
