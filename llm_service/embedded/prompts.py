"""Turns what an endpoint got into prompt ids. Knows the tokenizer; nothing of engines or sockets.

A long text takes a tenth of a second and more: call these methods in a thread; others run meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from llm_service.embedded.schema import ChatMessage, RequestRefused
from llm_service.errors import UnsafeTextError
from llm_service.prompt import chat_prefix, instruction_ids
from llm_service.text_encoder import TOKENIZER_FILE, load_text_encoder
from llm_service.vocab import SpeechTokenTextParser, VocabularyError


class PromptReader:
    """Reads prompts with the tokenizer of one directory."""

    def __init__(self, tokenizer_dir: Path) -> None:
        """Load the tokenizer.

        Raises:
            CheckpointError: it is missing, or numbers its tokens otherwise.
        """
        self._encoder = load_text_encoder(tokenizer_dir)
        self._tokenizer = Tokenizer.from_file(str(tokenizer_dir / TOKENIZER_FILE))

    def from_completion(self, prompt: str | list[int], add_special_tokens: bool) -> tuple[int, ...]:
        """Return the ids of a raw prompt; a string may spell control and speech tokens."""
        if isinstance(prompt, str):
            # NOTE: of the library's calls only those on batches release the interpreter's lock.
            return tuple(self._tokenizer.encode_batch([prompt], add_special_tokens=add_special_tokens)[0].ids)
        return tuple(prompt)

    def from_chat(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """Return sos, the user's text, task_id, and the assistant's speech tokens: what the chat template gives.

        An instruction, which is what a system message says, stands before the user's text with `<|endofprompt|>`
        between them. Both stay text whatever they spell, but for the family's own instruction at the user's start.

        Raises:
            RequestRefused: the assistant's content is not speech tokens, or the text can't be encoded.
        """
        vocabulary, encode = self._encoder.vocabulary, self._encoder.encode_apart
        asked = messages[0].content if messages[0].role == "system" else ""
        user, *assistant = messages[messages[0].role == "system" :]
        try:
            instruction = instruction_ids(encode, vocabulary, asked)
            text_ids = encode(user.content.removeprefix(chat_prefix(vocabulary)))
        except UnsafeTextError as err:
            raise RequestRefused(str(err), param="messages.0.content") from err
        speech = assistant[0].content if assistant else ""
        parser = SpeechTokenTextParser(vocabulary)
        try:
            speech_ids = parser.feed(speech)
            parser.close()
        except VocabularyError as err:
            raise RequestRefused(str(err), param="messages.1.content") from err
        begin = (vocabulary.sos_id, *instruction, *text_ids, vocabulary.task_id)
        return (*begin, *(vocabulary.llm_id(speech_id) for speech_id in speech_ids))
