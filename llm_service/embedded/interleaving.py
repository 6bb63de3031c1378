"""Text that comes while its speech is drawn ("bi-stream"): which ids go into the LLM when, and what may be drawn.

    begin | 5 text | 15 speech | 5 text | 15 speech | ... | rest of the text | task_id | rest of the speech | end

Speech is that of the voice's prompt as long as there is any, then what the LLM draws; no block of speech begins before
its text is there. Pure: knows ids and counts, no tensors, no time.

Source: the specification of the flows, section 10, with its vectors (`llm_traces.json`). It differs from the original
where that goes wrong (13.17 to 13.20): no end can be drawn while text is to come; the last token is not fed twice
before the rest of the text; prompt speech that a short text leaves over is fed behind it; nothing is drawn before text.
A prompt whose speech fills its blocks is followed by text, where the original leaves that to the LLM.

An answer that was begun elsewhere goes on: what was drawn there is laid out between the text as it was there, and none
of it is drawn again. A fill that came before its block was full stands among the drawn ids and ends its block here too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from llm_service.errors import InvalidGenerationError
from llm_service.prompt import MAX_SPEECH_PER_TEXT_TOKEN
from llm_service.vocab import SpeechVocabulary

TEXT_BLOCK_TOKENS = 5
SPEECH_BLOCK_TOKENS = 15
_PLACES_BESIDE_SPEECH = 2
"""Positions in the cache beside text and speech: for task_id, and for the next token drawn."""
WHOLE_TEXT = "the answer's text was whole when it began; only interleaved answers take more"


@dataclass(frozen=True)
class InterleavedPrompt:
    """How a prompt of an answer whose text is still to come is laid out: begin, transcript, speech."""

    begin_tokens: int
    """Tokens of sos, and of the instruction with its end mark where the family has one."""
    transcript_tokens: int
    """Tokens of the voice's transcript; the prompt's speech follows it."""


@dataclass(frozen=True)
class Feed:
    """Ids that go into the LLM in one piece."""

    token_ids: tuple[int, ...]
    draws: bool
    """Whether a token is drawn after these ids; if not, text must come first."""


class Interleaver:
    """One answer's order of text and speech."""

    def __init__(
        self,
        prompt_ids: Sequence[int],
        prompt: InterleavedPrompt,
        vocabulary: SpeechVocabulary,
        positions: int = 0,
        continued_tokens: int = 0,
    ) -> None:
        """Begin.

        Args:
            prompt_ids: LLM ids.
            prompt: how they are laid out.
            vocabulary: their numbering.
            positions: that the answer may have in the cache.
            continued_tokens: at the prompt's end, drawn before, fills among them.

        Raises:
            InvalidGenerationError: it is not laid out as `prompt` says.
        """
        transcript_end, speech_end = prompt.begin_tokens + prompt.transcript_tokens, len(prompt_ids) - continued_tokens
        speech, drawn = prompt_ids[transcript_end:speech_end], prompt_ids[max(speech_end, 0) :]
        drawn_speech = [token for token in drawn if token != vocabulary.fill_id]
        is_speech = all(map(vocabulary.is_speech, (*speech, *drawn_speech)))
        if prompt.begin_tokens < 1 or not transcript_end <= speech_end or not is_speech:
            raise InvalidGenerationError(
                f"the prompt has {len(prompt_ids)} tokens, {prompt.begin_tokens} of them its begin, "
                f"{prompt.transcript_tokens} its transcript and {continued_tokens} continued; expected at least 1, and "
                f"speech tokens behind both"
            )
        self._vocabulary = vocabulary
        self._drawn = deque(drawn)
        self._continued_speech = len(drawn_speech)
        self._positions = positions
        self.fed_tokens = 0
        """Tokens in the cache: all that `take` has returned."""
        self._unfed = list(prompt_ids[: prompt.begin_tokens])
        self._text = deque(prompt_ids[prompt.begin_tokens : transcript_end])
        self._speech = deque(speech)
        self._left_in_block = 0
        self._has_ended = False
        self.is_closed = False
        """Whether all text is fed, so that the answer may end."""
        self.text_tokens = 0
        """Text tokens to be spoken so far, without the transcript."""

    def push(self, text_ids: Collection[int], is_last: bool) -> None:
        """Take more text, behind what came before.

        Raises:
            InvalidGenerationError: there is no room for it, the last text came already, or ids are no text's.
        """
        if len(text_ids) > self._room:
            got = f"{len(text_ids)} more text tokens came, and there is room for {max(self._room, 0)}"
            raise InvalidGenerationError(f"{got}; begin another answer for them")
        ids = list(text_ids)
        if self._has_ended:
            raise InvalidGenerationError("text came behind the last; begin another answer for it")
        outside = [token for token in ids if not 0 <= token < self._vocabulary.first_id]
        if outside:
            raise InvalidGenerationError(f"text token {outside[0]} is out of range 0..{self._vocabulary.first_id - 1}")
        self._text.extend(ids)
        self.text_tokens += len(ids)
        self._has_ended = is_last

    def take(self) -> Feed | None:
        """Return what can go into the LLM now; None if text must come first. What is returned counts as fed."""
        while True:
            while self._left_in_block == 0 and not self.is_closed:
                if not self._begin_block():
                    return Feed(self._taken(), draws=False) if self._unfed else None
                self._feed_prompt_speech()
            if not self._drawn:
                return Feed(self._taken(), draws=True) if self._unfed else None
            self._note_drawn(self._drawn.popleft())

    def note(self, token_id: int) -> None:
        """Note a speech token that was drawn; it is fed with what follows."""
        self._unfed.append(token_id)
        if not self.is_closed:
            self._left_in_block -= 1

    def is_fill(self, token_id: int) -> bool:
        """Tell whether a drawn token asks for text, and is none of the answer's."""
        return not self.is_closed and token_id == self._vocabulary.fill_id

    def note_fill(self) -> None:
        """Note that the LLM asked for text before its block was full."""
        self._left_in_block = 0

    def most_tokens(self, asked: int, generated: int) -> int:
        """Return how long an answer of so many tokens may become; its text bounds it once it is whole.

        Args:
            asked: the caller's bound.
            generated: tokens that it has, without those that were drawn elsewhere.
        """
        if self.is_closed:
            most = self.text_tokens * MAX_SPEECH_PER_TEXT_TOKEN - self._continued_speech
            asked = min(asked, max(1, most))
        return min(asked, generated + max(self._room, 0))

    @property
    def _room(self) -> int:
        """Places in the cache that are left for text and speech."""
        drawn = len(self._drawn) - self._drawn.count(self._vocabulary.fill_id)
        waiting = len(self._unfed) + len(self._text) + len(self._speech) + drawn
        return self._positions - self.fed_tokens - waiting - _PLACES_BESIDE_SPEECH

    def _note_drawn(self, token_id: int) -> None:
        if token_id == self._vocabulary.fill_id:
            self.note_fill()
        else:
            self.note(token_id)

    def _begin_block(self) -> bool:
        """Move the next block's text to what is fed, if it is there."""
        if len(self._text) >= TEXT_BLOCK_TOKENS:
            self._unfed += [self._text.popleft() for _ in range(TEXT_BLOCK_TOKENS)]
            self._left_in_block = SPEECH_BLOCK_TOKENS
        elif self._has_ended:
            self._unfed += [*self._text, self._vocabulary.task_id]
            self._text.clear()
            self.is_closed = True
        else:
            return False
        return True

    def _feed_prompt_speech(self) -> None:
        count = len(self._speech) if self.is_closed else min(len(self._speech), self._left_in_block)
        self._unfed += [self._speech.popleft() for _ in range(count)]
        if not self.is_closed:
            self._left_in_block -= count

    def _taken(self) -> tuple[int, ...]:
        taken, self._unfed = tuple(self._unfed), []
        self.fed_tokens += len(taken)
        return taken
