"""Text that comes while its speech is drawn ("bi-stream"): which ids go into the LLM when, and what may be drawn.

    begin | 5 text | 15 speech | 5 text | 15 speech | ... | rest of the text | task_id | rest of the speech | end

Speech is that of the voice's prompt as long as there is any, then what the LLM draws; no block of speech begins before
its text is there. Pure: knows ids and counts, no tensors, no time.

Source: the specification of the flows, section 10, with its vectors (`llm_traces.json`). It differs from the original
where that goes wrong (13.17 to 13.20): no end can be drawn while text is to come; the last token is not fed twice
before the rest of the text; prompt speech that a short text leaves over is fed behind it; nothing is drawn before text.
A prompt whose speech fills its blocks is followed by text, where the original leaves that to the LLM.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from llm_service.errors import InvalidGenerationError
from llm_service.vocab import SpeechVocabulary

TEXT_BLOCK_TOKENS = 5
SPEECH_BLOCK_TOKENS = 15
MAX_SPEECH_PER_TEXT_TOKEN = 20
"""Of the whole answer once its text is known, as for texts that are whole from the begin."""
_PLACES_BESIDE_SPEECH = 2
"""In the cache, beside text and speech: for task_id, and for the next token drawn."""
WHOLE_TEXT = "the answer's text was whole when it began; only interleaved answers take more"


@dataclass(frozen=True)
class InterleavedPrompt:
    """How a prompt of an answer whose text is still to come is laid out: begin, transcript, speech."""

    begin_tokens: int
    """sos, and the instruction up to and including its end mark, where the family has one."""
    transcript_tokens: int
    """Text of the voice's prompt; what is spoken follows it. All behind is the prompt's speech."""


@dataclass(frozen=True)
class Feed:
    """Ids that go into the LLM in one piece."""

    token_ids: tuple[int, ...]
    draws: bool
    """Whether a token is drawn behind them; else text must come first."""


class Interleaver:
    """One answer's order of text and speech."""

    def __init__(
        self, prompt_ids: Sequence[int], prompt: InterleavedPrompt, vocabulary: SpeechVocabulary, positions: int = 0
    ) -> None:
        """Take the prompt as LLM ids; `positions` are those that the answer may have in the cache.

        Raises:
            InvalidGenerationError: it is not laid out as `prompt` says.
        """
        transcript_end = prompt.begin_tokens + prompt.transcript_tokens
        speech = prompt_ids[transcript_end:]
        if prompt.begin_tokens < 1 or transcript_end > len(prompt_ids) or not all(map(vocabulary.is_speech, speech)):
            raise InvalidGenerationError(
                f"the prompt has {len(prompt_ids)} tokens, {prompt.begin_tokens} of them its begin and "
                f"{prompt.transcript_tokens} its transcript; expected at least 1, and speech tokens behind both"
            )
        self._vocabulary = vocabulary
        self._positions = positions
        self.fed_tokens = 0
        """In the cache: all that `take` has returned."""
        self._unfed = list(prompt_ids[: prompt.begin_tokens])
        self._text = deque(prompt_ids[prompt.begin_tokens : transcript_end])
        self._speech = deque(speech)
        self._left_in_block = 0
        self._has_ended = False
        self.is_closed = False
        """Whether all text is fed, so that the answer may end."""
        self.text_tokens = 0
        """That came to be spoken; the transcript does not count."""

    @property
    def can_go_on(self) -> bool:
        """Whether `take` has something: a drawn token, or the next block's text."""
        if self.is_closed or self._left_in_block:
            return bool(self._unfed)
        return self._has_ended or len(self._text) >= TEXT_BLOCK_TOKENS or bool(self._unfed)

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
        while self._left_in_block == 0 and not self.is_closed:
            if not self._begin_block():
                return Feed(self._taken(), draws=False) if self._unfed else None
            self._feed_prompt_speech()
        return Feed(self._taken(), draws=True) if self._unfed else None

    def note(self, token_id: int) -> None:
        """Note a speech token that was drawn; it is fed with what follows."""
        self._unfed.append(token_id)
        if not self.is_closed:
            self._left_in_block -= 1

    def note_fill(self) -> None:
        """Note that the LLM asked for text before its block was full."""
        self._left_in_block = 0

    def most_tokens(self, asked: int, generated: int) -> int:
        """Return how long an answer of so many tokens may become; its text bounds it once it is whole.

        Args:
            asked: the caller's bound.
            generated: tokens that it has.
        """
        if self.is_closed:
            asked = min(asked, max(1, self.text_tokens * MAX_SPEECH_PER_TEXT_TOKEN))
        return min(asked, generated + max(self._room, 0))

    @property
    def _room(self) -> int:
        """Places in the cache that are left for text and speech."""
        waiting = len(self._unfed) + len(self._text) + len(self._speech)
        return self._positions - self.fed_tokens - waiting - _PLACES_BESIDE_SPEECH

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
