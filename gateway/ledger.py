"""The one account of what callers have open and got lately, and of known voices, for all processes of a gateway.

A process alone keeps it in memory; several write into one SQLite file, which their parent makes and removes. What a
process holds is forgotten when it ends, however it ends. SQLite's own locks keep the processes apart; a change takes
some 20 us.
"""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from gateway.core import RegisteredVoice
from gateway.errors import ConfigError, NotReadyError
from servicekit.clock import Clock

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 24 * 3600.0
MAX_MINUTES = 100_000
"""Most minutes of callers that are remembered; the oldest are forgotten first."""
MEMORY = ":memory:"
_LOCK_WAIT_S = 1.0
"""Most seconds that a change waits for another process's."""
_TABLES = """
CREATE TABLE IF NOT EXISTS held (process INTEGER, caller TEXT, streams INTEGER, PRIMARY KEY (caller, process));
CREATE TABLE IF NOT EXISTS audio (
    number INTEGER PRIMARY KEY, caller TEXT, ends_s REAL, audio_s REAL, UNIQUE (caller, ends_s));
CREATE INDEX IF NOT EXISTS audio_by_age ON audio (ends_s);
CREATE TABLE IF NOT EXISTS deeds (deed TEXT, caller TEXT, at_s REAL, name TEXT, size INTEGER);
CREATE INDEX IF NOT EXISTS deeds_of ON deeds (deed, caller);
CREATE TABLE IF NOT EXISTS metrics (process INTEGER PRIMARY KEY, families TEXT);
CREATE TABLE IF NOT EXISTS voices (number INTEGER PRIMARY KEY, key TEXT UNIQUE, told TEXT);
"""


class CallerLedger:
    """The account; lives in one thread, but for `metrics`."""

    max_voices = 1024
    """Most voices that are remembered; the ones registered first are forgotten first."""

    def __init__(self, clock: Clock, path: Path | None = None, process: int = 0) -> None:
        """Open the account.

        Args:
            clock: the system's, which all processes of a machine read alike.
            path: of the file; None: this process is alone.

        Raises:
            ConfigError: the file can't be written.
        """
        self._clock = clock
        self._path = path
        self._process = process
        try:
            self._db = self._connect()
            self._db.executescript(_TABLES)
        except sqlite3.Error as error:
            got = f"the account that processes share can't be kept in {path} ({error})"
            raise ConfigError(f"{got}; see the disk's space, or set TMPDIR") from error

    def remove(self) -> None:
        """Close the file, and remove it with the folder that was made for it."""
        self._db.close()
        if self._path is not None:
            shutil.rmtree(self._path.parent, ignore_errors=True)

    # What a process holds.

    def take_stream(self, caller: str, limit: int) -> int | None:
        """Count one more stream, unless the caller has `limit` already: then return how many it has."""
        with self._changing() as db:
            if (streams := self.streams(caller)) >= limit:
                return streams
            db.execute(
                "INSERT INTO held VALUES (?, ?, 1) ON CONFLICT (caller, process) DO UPDATE SET streams = streams + 1",
                (self._process, caller),
            )
        return None

    def give_stream_back(self, caller: str) -> None:
        """Count one less."""
        mine = (self._process, caller)
        with self._changing() as db:
            db.execute("UPDATE held SET streams = streams - 1 WHERE process = ? AND caller = ?", mine)
            db.execute("DELETE FROM held WHERE process = ? AND caller = ? AND streams = 0", mine)

    def streams(self, caller: str) -> int:
        """Return how many streams a caller has in all processes."""
        (count,) = self._db.execute("SELECT SUM(streams) FROM held WHERE caller = ?", (caller,)).fetchone()
        return int(count or 0)

    def end_process(self, number: int, departed: Any) -> None:
        """Forget what a process held and told that has ended.

        Args:
            departed: metrics of all that have ended, which are told from now on.
        """
        with self._changing() as db:
            db.execute("DELETE FROM held WHERE process = ?", (number,))
            db.execute("DELETE FROM metrics WHERE process = ?", (number,))
            db.execute("REPLACE INTO metrics VALUES (?, ?)", (self._process, json.dumps(departed)))

    # What callers got and did.

    def add_audio(self, caller: str, audio_s: float) -> None:
        """Count audio that a caller has got, by the minute."""
        now_s = self._clock.now()
        minute = (caller, (now_s // MINUTE_S + 1) * MINUTE_S)
        with self._changing() as db:
            counted = "UPDATE audio SET audio_s = audio_s + ? WHERE caller = ? AND ends_s = ?"
            if not db.execute(counted, (audio_s, *minute)).rowcount:
                db.execute("INSERT INTO audio (caller, ends_s, audio_s) VALUES (?, ?, ?)", (*minute, audio_s))
                db.execute("DELETE FROM audio WHERE ends_s <= ?", (now_s - DAY_S,))
                db.execute("DELETE FROM audio WHERE number <= (SELECT MAX(number) FROM audio) - ?", (MAX_MINUTES,))

    def audio_s(self, caller: str, window_s: float) -> float:
        """Return the seconds of audio that a caller got in the last `window_s`, a day at most.

        A minute counts until its last second has left the window.
        """
        return sum(audio_s for _, audio_s in self._audio(caller, window_s))

    def audio_wait_s(self, caller: str, limit_s: float, window_s: float) -> float:
        """Return how long it takes until less than `limit_s` of audio lies within the window; 0 if that is so now."""
        return self._wait_s(self._audio(caller, window_s), window_s, lambda count, audio_s: audio_s < limit_s)

    def may_in(
        self, deed: str, caller: str, most: int, most_bytes: float = math.inf, name: str = "", size: int = 0
    ) -> float:
        """Count what a caller may do so often in any minute; return 0, or the seconds until it may.

        Args:
            most: times in a minute.
            most_bytes: of all together; what is larger than that may come alone.
            name: of what it is done with; the same one counts once a minute, in whichever process. Empty: none.
            size: of that, in bytes.
        """
        now_s = self._clock.now()
        with self._changing() as db:
            db.execute("DELETE FROM deeds WHERE at_s <= ?", (now_s - MINUTE_S,))
            query = "SELECT at_s, size, name FROM deeds WHERE deed = ? AND caller = ? ORDER BY at_s"
            done = db.execute(query, (deed, caller)).fetchall()
            if name and any(its_name == name for _, _, its_name in done):
                return 0.0
            counted = [(at_s, its_size) for at_s, its_size, _ in done]
            wait_s = self._wait_s(counted, MINUTE_S, lambda count, total: count < most and total <= most_bytes - size)
            if wait_s > 0:
                return wait_s
            db.execute("INSERT INTO deeds VALUES (?, ?, ?, ?, ?)", (deed, caller, now_s, name, size))
        return 0.0

    # What processes tell each other.

    def tell_voice(self, key: str, voice: RegisteredVoice | None) -> None:
        """Keep what token2wav answered for a voice; None: it has dropped it.

        Args:
            key: of the voice, whoever asks for it; see `VoiceRegistry`.
        """
        with self._changing() as db:
            db.execute("DELETE FROM voices WHERE key = ?", (key,))
            if voice is not None:
                told = json.dumps((voice.voice_id, voice.prompt_speech_tokens, voice.silence_cut_s))
                db.execute("INSERT INTO voices (key, told) VALUES (?, ?)", (key, told))
                db.execute(
                    "DELETE FROM voices WHERE number <= (SELECT MAX(number) FROM voices) - ?", (self.max_voices,)
                )

    def voice(self, key: str) -> RegisteredVoice | None:
        """Return a voice that any process has registered; None: token2wav may not know it."""
        found = self._db.execute("SELECT told FROM voices WHERE key = ?", (key,)).fetchone()
        if found is None:
            return None
        voice_id, tokens, cut_s = json.loads(found[0])
        return RegisteredVoice(voice_id, tuple(tokens), cut_s)

    def tell_metrics(self, families: Any) -> None:
        """Keep this process's metrics."""
        with self._changing() as db:
            db.execute("REPLACE INTO metrics VALUES (?, ?)", (self._process, json.dumps(families)))

    def metrics(self) -> dict[int, Any]:
        """Return what each process told last; from any thread."""
        with closing(self._connect()) as db:
            rows = db.execute("SELECT process, families FROM metrics ORDER BY process").fetchall()
        return {process: json.loads(families) for process, families in rows}

    def _audio(self, caller: str, window_s: float) -> list[tuple[float, float]]:
        query = "SELECT ends_s, audio_s FROM audio WHERE caller = ? AND ends_s > ? ORDER BY ends_s"
        return self._db.execute(query, (caller, self._clock.now() - window_s)).fetchall()

    def _wait_s(self, done: list[tuple[float, float]], window_s: float, is_room: Callable[[int, float], bool]) -> float:
        """Return how long until what is left of `done` in the window, by its number and size, leaves room."""
        count, total, wait_s = len(done), sum(size for _, size in done), 0.0
        for at_s, size in done:
            if is_room(count, total):
                break
            count, total, wait_s = count - 1, total - size, at_s + window_s - self._clock.now()
        return wait_s

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path or MEMORY, timeout=_LOCK_WAIT_S, isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")  # NOTE: after a loss of power there is no account to go on with
        return db

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Change several things as one; nobody else changes anything meanwhile.

        Raises:
            NotReadyError: the file can't be written.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            with self._db:
                yield self._db
        except sqlite3.Error as error:
            got = f"the account of callers can't be written to {self._path} ({error})"
            raise NotReadyError(f"{got}; see the disk's space, or set TMPDIR") from error
