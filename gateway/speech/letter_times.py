"""When each character of one segment is spoken, by the aligner: the likeliest way of its tokens through its letters.

    letters   _  h  e  l  l  o  _
    tokens    ████████░░░░            those that have come, two frames each
    way       _ _ h h e l o o         Viterbi's, frame by frame; a letter lasts a frame or longer, or is skipped

It is kept up while tokens come: only what lies some frames behind the last one is told, as it hardly changes any more.
Pure; works only when it is asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from llm_service.aligner import FRAMES_PER_TOKEN, PAUSES, UNKNOWN, Aligner, FloatArray, LetterModel, Spelling, spell

LONGEST_JUMP = 4
"""Letters from one frame to the next; those between are silent."""
AHEAD_TOKENS = 25
"""Followed beyond what is asked for, where there are more: 1 s tells as much as the rest of the segment."""
SETTLED_FRAMES = 8
"""Behind the end of the way so far, from where it is told: 0.16 s."""
_LEAST_JUDGED_TOKENS = 3
_JUDGED_BEHIND_FRAMES = 12
"""So long behind its end a word is judged: the way to it hardly changes any more."""
_WORD_TOKENS = 18
"""Of a word, and behind its end until it is judged: so many must be held back to have it spoken again."""
_SAID = 0.5
"""Of `_Way.sound`, the least of a word that is said. Of 2,432 words of a hundred long sentences nine have less, in six
sentences; in four of these a recogniser misses the word or hears another one."""
_LEAST_ADDED_FRAMES = 10
"""Of a pause in which a word is said: 0.2 s."""
_SILENT = 0.25
"""Of `_Way.sound`, the least of a pause that is one. Of 892 pauses of 208 segments those in which recognisers hear
words have at most 0.2, nearly all others 0.6 to 0.7."""
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_IMPOSSIBLE = np.float32(-1e30)
_POSSIBLE = -1e29


@dataclass(frozen=True)
class Times:
    """From which speech token of the segment to which each character of its text is spoken.

    Characters that are still to come have no time: infinity. Times never go back from one character to the next.
    """

    starts: FloatArray
    """[characters]"""
    ends: FloatArray
    """[characters]"""


class LetterTimes:
    """The times of one segment's characters."""

    def __init__(self, aligner: Aligner, text: str) -> None:
        self._aligner = aligner
        self._token_ids: list[int] = []
        self._is_complete = False
        self._text = text
        self._way: _Way | None = None

    def add(self, token_ids: Sequence[int], is_last: bool) -> None:
        """Take the next speech tokens."""
        self._token_ids.extend(token_ids)
        self._is_complete = self._is_complete or is_last

    def set_text(self, text: str) -> None:
        """Take the text as it has grown; what was spoken stays with the letters that there were."""
        self._text = text
        if self._way is not None:
            self._way.take(text)

    def read(self, until_token: float) -> Times | None:
        """Return the times up to `until_token` of the segment; None: the tokens can't be this text's."""
        if self._way is None:
            self._way = _Way(self._aligner, self._text)
        known = len(self._token_ids)
        settled = known if self._is_complete else known - self._aligner.context_tokens
        reach = min(settled, int(until_token) + AHEAD_TOKENS)
        self._way.follow(self._token_ids, reach)
        return self._way.times(is_over=self._is_complete and reach >= known)


def mean_score(aligner: Aligner, text: str, token_ids: Sequence[int]) -> float | None:
    """Return how much likelier tokens are as the speech of a text than of any other, as a natural logarithm a frame.

    None: the text has letters that the aligner does not know, or no end.
    """
    if UNKNOWN in spell(text).states or not token_ids:
        return None
    way = _Way(aligner, text)
    way.follow(token_ids, len(token_ids))
    return way.score() / (FRAMES_PER_TOKEN * len(token_ids))


class SpokenWords:
    """Tells which words of a segment its speech does not say, and where it says more than its words.

    What is said twice has no letters of its own: the way spends that time in a pause, which does not sound like one.
    """

    def __init__(self, aligner: Aligner, text: str) -> None:
        """Begin before the first token; words with letters that the aligner does not know are said."""
        self._aligner, self._way, spelling = aligner, _Way(aligner, text), spell(text)
        at, states = spelling.state_at, spelling.states
        edges = [0, *(edge for word in _WORD.finditer(text) for edge in (at[word.start()], at[word.end() - 1] + 1))]
        parts = [part for part in pairwise([*edges, len(states)]) if UNKNOWN not in states[slice(*part)]]
        self._parts = np.array(parts, np.int64).T
        """[2, n], the first state of each word and each pause, and the one behind it."""
        self._is_word = np.isin(self._parts[0], edges[1::2])
        self._judged: set[tuple[int, int, int]] = set()
        """Those that are said: their number, first frame and the one behind."""
        self._next = 0
        """Tokens at which they are judged next."""

    def strayed(self, token_ids: Sequence[int], begin: int, is_over: bool) -> tuple[int, int] | None:
        """Return from which token the speech leaves its words and from which it is back; None if it does no further.

        Both are the same where a word is not said. Words and pauses are judged some tokens behind their end, and anew
        where the way to them has changed.

        Args:
            begin: what begins before this token is not judged.
        """
        reach = len(token_ids) - (0 if is_over else self._aligner.context_tokens)
        settled = FRAMES_PER_TOKEN * reach - (0 if is_over else _JUDGED_BEHIND_FRAMES)
        if settled <= 0 or not (is_over or reach >= self._next):
            return None
        # As seldom as no word is given out meanwhile: looking costs the more often, the more.
        self._next = reach + max((len(token_ids) - begin - _WORD_TOKENS) // 2, _LEAST_JUDGED_TOKENS)
        self._way.follow(token_ids, reach)
        if (way := self._way.look_back(is_over)) is None:
            return None
        starts, ends = np.searchsorted(way, self._parts)
        is_due = (starts >= FRAMES_PER_TOKEN * begin) & ((ends < settled) | is_over)
        for part in np.flatnonzero(is_due & (self._is_word | (ends - starts >= _LEAST_ADDED_FRAMES))).tolist():
            since, until, is_word = int(starts[part]), int(ends[part]), self._is_word[part]
            if (part, since, until) in self._judged:
                continue
            if since == until or self._way.sound(token_ids, since, until) < (_SAID if is_word else _SILENT):
                first = since // FRAMES_PER_TOKEN
                return (first, first) if is_word else (first + since % FRAMES_PER_TOKEN, until // FRAMES_PER_TOKEN)
            self._judged.add((part, since, until))
        return None


class _Way:
    """Viterbi's algorithm over the frames so far."""

    def __init__(self, aligner: Aligner, text: str) -> None:
        self._aligner = aligner
        self._tokens = 0
        self._states = np.zeros(0, np.int64)
        self._came_by: list[npt.NDArray[np.int8]] = []
        """[frames][S]: so many letters before, the best way to each was one frame earlier."""
        self._states_at: list[int] = []
        """[frames]: of the best way when it was last looked for."""
        self._scores = np.zeros(0, np.float32)
        """[S], of the best ways that end in each; float32."""
        self.take(text)

    def take(self, text: str) -> None:
        """Take the text, or a longer one; ways that end in letters that it still has go on."""
        spelling = spell(text)
        states, before = spelling.states, self._states
        shared = min(len(states), len(before))
        same = int(np.argmin(np.append(states[:shared] == before[:shared], False)))
        self._states, self._layout = states, _Layout.of(text, spelling)
        self._prepare(self._aligner.letters(states))
        if self._tokens:
            scores = np.full(len(states), _IMPOSSIBLE)
            scores[:same] = self._scores[:same]
            self._scores = scores

    def _prepare(self, letters: LetterModel) -> None:
        """Work out what each step costs by what is known of the letters."""
        self._letters, width = letters, len(self._states)
        leave, stay = _log_sigmoid(-letters.stay), _log_sigmoid(letters.stay)
        omit, enter = _log_sigmoid(letters.skip), _log_sigmoid(-letters.skip)
        omitted = np.concatenate([[0], omit.cumsum()])
        self._steps = np.full((LONGEST_JUMP + 1, width), _IMPOSSIBLE)
        self._steps[0] = stay
        for by in range(1, min(LONGEST_JUMP, width - 1) + 1):
            between = omitted[by:-1] - omitted[1 : width - by + 1]
            self._steps[by, by:] = leave[:-by] + between + enter[by:]
        # It begins with the pause or the first letter, and ends with the last letter or the pause.
        self._begin = np.full(width, _IMPOSSIBLE)
        self._begin[:2] = [enter[0], *(omit[0] + enter[1:2])]
        self._end = np.full(width, _IMPOSSIBLE)
        self._end[-2:] = [*(leave[-2:-1] + omit[-1]), leave[-1]]

    def follow(self, token_ids: Sequence[int], until: int) -> None:
        """Go on to the end of token `until - 1`."""
        if until <= self._tokens:
            return
        spoken = self._aligner.scores(token_ids, self._tokens, until, self._letters)
        frames, width = spoken.shape
        found = np.full((frames + 1, LONGEST_JUMP + width), _IMPOSSIBLE)
        if self._tokens:
            found[0, LONGEST_JUMP:] = self._scores
        # [frames + 1, jumps, S]: the scores of the states so many letters before each.
        before = sliding_window_view(found, width, axis=1)[:, ::-1]
        ways = np.empty_like(self._steps)
        for frame, (scores, earlier, sound) in enumerate(zip(found[1:, LONGEST_JUMP:], before, spoken, strict=False)):
            if self._tokens or frame:
                np.add(earlier, self._steps, out=ways)
                np.maximum.reduce(ways, axis=0, out=scores)
            else:
                scores[:] = self._begin
            scores += sound
        self._came_by.extend(_best_steps(before[:-1], self._steps))
        self._scores, self._tokens = found[-1, LONGEST_JUMP:].copy(), until

    def score(self) -> float:
        """Return the logarithm of the best way through the whole text."""
        return float((self._scores + self._end).max())

    def times(self, is_over: bool) -> Times | None:
        """Return the times of what is settled; None: no way leads through the text."""
        frames = len(self._came_by)
        if not frames:
            return None if is_over else self._layout.times(*np.full((2, len(self._states)), np.inf))
        if (way := self.look_back(is_over)) is None:
            return None
        states, last = np.arange(len(self._states)), way[-1]
        starts, ends = (np.searchsorted(way, states, side).astype(float) for side in ("left", "right"))
        if not is_over:
            is_open = (states >= last) | (ends > frames - SETTLED_FRAMES)
            starts[is_open] = ends[is_open] = np.inf
        return self._layout.times(starts / FRAMES_PER_TOKEN, ends / FRAMES_PER_TOKEN)

    def look_back(self, is_over: bool) -> npt.NDArray[np.int64] | None:
        """Return the likeliest way, the state of each frame; None: no way leads through the text."""
        scores = self._scores + self._end if is_over else self._scores
        state, frames = int(scores.argmax()), len(self._came_by)
        if scores[state] < _POSSIBLE:
            return None
        self._states_at += [-1] * (frames - len(self._states_at))
        for frame in range(frames - 1, -1, -1):
            if self._states_at[frame] == state:
                break  # it meets the way that was found before
            self._states_at[frame] = state
            state -= int(self._came_by[frame][state])
        return np.array(self._states_at)

    def sound(self, token_ids: Sequence[int], since: int, until: int) -> float:
        """Return how much rather some frames sound like their states than like anything; the mean logarithm."""
        first = since // FRAMES_PER_TOKEN
        scores = self._aligner.scores(token_ids, first, -(-until // FRAMES_PER_TOKEN), self._letters)
        frames = np.arange(since, until)
        return float(scores[frames - FRAMES_PER_TOKEN * first, np.array(self._states_at)[frames]].mean())


@dataclass(frozen=True)
class _Layout:
    """Which states tell the times of each character.

    Of the characters of one pause the first blank has it all: marks before it end with the word before them, marks
    behind it begin with the word that follows. At the end of a text without a blank nobody has it.
    """

    starts_with: npt.NDArray[np.int64]
    """[characters], positions among the states; behind them those whose end is meant."""
    ends_with: npt.NDArray[np.int64]
    """[characters]; those whose end is meant first, behind them those whose start is meant."""

    @classmethod
    def of(cls, text: str, spelling: Spelling) -> _Layout:
        """Lay out a text."""
        width, at = len(spelling.states), spelling.state_at
        starts_with, ends_with = list(at), list(at)
        since = 0
        for position, state in enumerate(at):
            if position and at[position - 1] != state:
                since = position
            if position + 1 < len(at) and at[position + 1] == state:
                continue
            holder = since
            if spelling.states[state] < len(PAUSES):
                blanks = (each for each in range(since, position + 1) if text[each].isspace())
                holder = next(blanks, since if position + 1 < len(at) else position + 1)
            ends_with[since:holder] = [width + state] * (holder - since)
            starts_with[holder + 1 : position + 1] = [width + state] * (position - holder)
        return cls(np.array(starts_with, np.int64), np.array(ends_with, np.int64))

    def times(self, starts: FloatArray, ends: FloatArray) -> Times:
        """Return the characters' times by those of the states."""
        return Times(np.concatenate([starts, ends])[self.starts_with], np.concatenate([ends, starts])[self.ends_with])


def _best_steps(before: FloatArray, steps: FloatArray) -> npt.NDArray[np.int8]:
    """Return how many letters before each state the best way to it was; [frames, S].

    Args:
        before: [frames, jumps, S], scores of the states so many letters before.
        steps: [jumps, S], what the step from there costs.
    """
    best, by = before[:, 0] + steps[0], np.zeros((len(before), before.shape[2]), np.int8)
    for jump in range(1, len(steps)):
        ways = before[:, jump] + steps[jump]
        by[ways > best] = jump
        np.maximum(best, ways, out=best)
    return by


def _log_sigmoid(logits: FloatArray) -> FloatArray:
    return np.asarray(-np.logaddexp(0, -logits), np.float32)
