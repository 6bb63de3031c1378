"""The one account of what callers have open and got lately, for all processes of a gateway.

A process alone keeps it in memory; several write into one SQLite file, which their parent makes and removes. What a
process holds is forgotten when it ends, however it ends. SQLite's own locks keep the processes apart; a change takes
some 20 us. Text and the metrics are told from time to time, everything else at once.
"""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from gateway.core import RegisteredVoice
from gateway.errors import ConfigError, NotReadyError
from servicekit.clock import Clock

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 24 * 3600.0
MAX_CALLERS = 4096
"""Most callers whose audio is remembered; the one that spoke longest ago is forgotten first."""
MAX_VOICES = 1024
"""Most voices that processes tell each other of; the one told longest ago is forgotten first."""
MEMORY = ":memory:"
_LOCK_WAIT_S = 1.0
"""Most seconds that a change waits for another process's."""
_TABLES = """
CREATE TABLE IF NOT EXISTS held (
    process INTEGER, caller TEXT, streams INTEGER DEFAULT 0, characters INTEGER DEFAULT 0,
    PRIMARY KEY (caller, process)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS audio (
    caller TEXT, ends_s REAL, audio_s REAL, PRIMARY KEY (caller, ends_s)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS audio_by_age ON audio (ends_s);
CREATE TABLE IF NOT EXISTS speakers (caller TEXT PRIMARY KEY, ends_s REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS deeds (
    deed TEXT, caller TEXT, at_s REAL, name TEXT, size INTEGER, process INTEGER, counts INTEGER);
CREATE INDEX IF NOT EXISTS deeds_of ON deeds (deed, caller);
CREATE TABLE IF NOT EXISTS voices (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE, voice TEXT);
CREATE TABLE IF NOT EXISTS metrics (process INTEGER PRIMARY KEY, families TEXT);
"""


class CallerLedger:
    """The account; lives in one thread, but for `metrics`."""

    def __init__(self, clock: Clock, path: Path | None = None, process: int = 0) -> None:
        """Open the account.

        Args:
            clock: the system's, which all processes of a machine read alike.
            path: of the file; None: this process is alone.
            process: this one's number.

        Raises:
            ConfigError: the file can't be written.
        """
        self.is_shared = path is not None
        self._clock = clock
        self._path = path
        self._process = process
        self._told_texts: dict[str, int] = {}
        self._minute_ends_s = -math.inf
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
                "INSERT INTO held (process, caller, streams) VALUES (?, ?, 1) "
                "ON CONFLICT (caller, process) DO UPDATE SET streams = streams + 1",
                (self._process, caller),
            )
        return None

    def give_stream_back(self, caller: str) -> None:
        """Count one less."""
        mine = (self._process, caller)
        with self._changing() as db:
            db.execute("UPDATE held SET streams = streams - 1 WHERE process = ? AND caller = ?", mine)
            db.execute("DELETE FROM held WHERE process = ? AND caller = ? AND streams + characters = 0", mine)

    def streams(self, caller: str) -> int:
        """Return how many streams a caller has in all processes."""
        return int(self._value("SELECT SUM(streams) FROM held WHERE caller = ?", caller) or 0)

    def tell_texts(self, texts: Mapping[str, int]) -> None:
        """Tell the other processes how many characters each caller has here that are not spoken yet."""
        changed = {caller: 0 for caller in self._told_texts if caller not in texts} | {
            caller: characters for caller, characters in texts.items() if characters != self._told_texts.get(caller, 0)
        }
        if not changed:
            return
        with self._changing() as db:
            for caller, characters in changed.items():
                db.execute(
                    "INSERT INTO held (process, caller, characters) VALUES (?, ?, ?) "
                    "ON CONFLICT (caller, process) DO UPDATE SET characters = excluded.characters",
                    (self._process, caller, characters),
                )
            db.execute("DELETE FROM held WHERE process = ? AND streams + characters = 0", (self._process,))
        self._told_texts = {caller: characters for caller, characters in texts.items() if characters}

    def characters_elsewhere(self, caller: str) -> int:
        """Return how many unspoken characters a caller has in the other processes."""
        if not self.is_shared:
            return 0
        query = "SELECT SUM(characters) FROM held WHERE caller = ? AND process != ?"
        return int(self._value(query, caller, self._process) or 0)

    def end_process(self, number: int) -> None:
        """Forget what a process held that has ended."""
        with self._changing() as db:
            db.execute("DELETE FROM held WHERE process = ?", (number,))

    # What callers got and did.

    def add_audio(self, caller: str, audio_s: float) -> None:
        """Count audio that a caller has got, by the minute."""
        now_s = self._clock.now()
        ends_s = (now_s // MINUTE_S + 1) * MINUTE_S
        with self._changing() as db:
            db.execute(
                "INSERT INTO audio VALUES (?, ?, ?) "
                "ON CONFLICT (caller, ends_s) DO UPDATE SET audio_s = audio_s + excluded.audio_s",
                (caller, ends_s, audio_s),
            )
            db.execute("INSERT OR REPLACE INTO speakers VALUES (?, ?)", (caller, ends_s))
            if ends_s > self._minute_ends_s:
                self._minute_ends_s = ends_s
                db.execute("DELETE FROM audio WHERE ends_s <= ?", (now_s - DAY_S,))
                eldest = "SELECT caller FROM speakers ORDER BY ends_s DESC LIMIT -1 OFFSET ?"
                for (forgotten,) in db.execute(eldest, (MAX_CALLERS,)).fetchall():
                    db.execute("DELETE FROM audio WHERE caller = ?", (forgotten,))
                    db.execute("DELETE FROM speakers WHERE caller = ?", (forgotten,))

    def audio_s(self, caller: str, window_s: float) -> float:
        """Return the seconds of audio that a caller got in the last `window_s`, a day at most.

        A minute counts until its last second has left the window.
        """
        return sum(audio_s for _, audio_s in self._audio(caller, window_s))

    def audio_wait_s(self, caller: str, limit_s: float, window_s: float) -> float:
        """Return how long it takes until less than `limit_s` of audio lies within the window; 0 if that is so now."""
        minutes, wait_s = self._audio(caller, window_s), 0.0
        left_s = sum(audio_s for _, audio_s in minutes)
        for ends_s, audio_s in minutes:
            if left_s < limit_s:
                break
            left_s -= audio_s
            wait_s = ends_s + window_s - self._clock.now()
        return wait_s

    def may_in(
        self, deed: str, caller: str, most: int, most_bytes: float = math.inf, name: str = "", size: int = 0
    ) -> float:
        """Count what a caller may do so often in any minute; return 0, or the seconds until it may.

        Args:
            deed: what it does.
            caller: who does it.
            most: times in a minute.
            most_bytes: of all together; what is larger than that may come alone.
            name: of what it is done with; the same one that came to another process just now counts once.
            size: of that, in bytes.
        """
        now_s = self._clock.now()
        with self._changing() as db:
            db.execute("DELETE FROM deeds WHERE at_s <= ?", (now_s - MINUTE_S,))
            query = "SELECT at_s, size, name, process, counts FROM deeds WHERE deed = ? AND caller = ? ORDER BY at_s"
            done = db.execute(query, (deed, caller)).fetchall()
            came_to = {process for _, _, its_name, process, _ in done if name and its_name == name}
            counts = not came_to or self._process in came_to
            if counts:
                counted = [(at_s, its_size) for at_s, its_size, _, _, its_counts in done if its_counts]
                if (wait_s := _wait_s(counted, most, most_bytes - size, now_s)) > 0:
                    return wait_s
            row = (deed, caller, now_s, name, size, self._process, counts)
            db.execute("INSERT INTO deeds VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return 0.0

    # What processes tell each other.

    def tell_voice(self, key: str, voice: RegisteredVoice) -> None:
        """Tell the other processes what token2wav has answered for a voice."""
        told = json.dumps([voice.voice_id, voice.prompt_speech_tokens, voice.silence_cut_s])
        with self._changing() as db:
            db.execute("INSERT OR REPLACE INTO voices (key, voice) VALUES (?, ?)", (key, told))
            db.execute("DELETE FROM voices WHERE number <= (SELECT MAX(number) FROM voices) - ?", (MAX_VOICES,))

    def told_voice(self, key: str) -> RegisteredVoice | None:
        """Return what token2wav has answered to any process; it may have dropped the voice meanwhile."""
        if (told := self._value("SELECT voice FROM voices WHERE key = ?", key)) is None:
            return None
        voice_id, tokens, cut_s = json.loads(told)
        return RegisteredVoice(voice_id, tuple(tokens), cut_s)

    def forget_voice(self, key: str) -> None:
        """Have the voice registered again; harmless if nobody was told of it."""
        with self._changing() as db:
            db.execute("DELETE FROM voices WHERE key = ?", (key,))

    def tell_metrics(self, families: Mapping[int, Any]) -> None:
        """Keep the metrics of some processes, by their numbers, all at once; None: of one that has ended."""
        with self._changing() as db:
            for process, told in families.items():
                db.execute("DELETE FROM metrics WHERE process = ?", (process,))
                if told is not None:
                    db.execute("INSERT INTO metrics VALUES (?, ?)", (process, json.dumps(told)))

    def metrics(self) -> dict[int, Any]:
        """Return what each process told last; from any thread."""
        with closing(self._connect()) as db:
            rows = db.execute("SELECT process, families FROM metrics ORDER BY process").fetchall()
        return {process: json.loads(families) for process, families in rows}

    def _audio(self, caller: str, window_s: float) -> list[tuple[float, float]]:
        query = "SELECT ends_s, audio_s FROM audio WHERE caller = ? AND ends_s > ? ORDER BY ends_s"
        return self._db.execute(query, (caller, self._clock.now() - window_s)).fetchall()

    def _value(self, query: str, *values: object) -> Any:
        row = self._db.execute(query, values).fetchone()
        return None if row is None else row[0]

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


def _wait_s(done: list[tuple[float, int]], most: int, most_bytes: float, now_s: float) -> float:
    """Return how long until one more may be done, when the earlier ones are a minute old."""
    count, total, wait_s = len(done), sum(size for _, size in done), 0.0
    for at_s, size in done:
        if count < most and total <= most_bytes:
            break
        count, total, wait_s = count - 1, total - size, at_s + MINUTE_S - now_s
    return wait_s
