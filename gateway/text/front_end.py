"""The text front end: cuts a request's text into segments and turns each into what the LLM is to speak.

    text in pieces -> TextStream.push/flush -> Segment -> TextStream.prepare -> SpokenSegment
                      (cleaned, markup out, cut)          (addresses, numbers, an end)

Cleaning, taking markup out and cutting are cheap and done as text arrives. Normalising costs milliseconds a segment,
so that it waits until a segment's turn comes. No network, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gateway.errors import LexiconNotFoundError, UnsupportedOptionError
from gateway.text.aliases import NO_PHONEMES, Lexicon, apply_lexicons
from gateway.text.alignment import Alignment, NormalizedText, Normalizer, joined, replaced, unchanged
from gateway.text.breaks import BreakFinder, ended
from gateway.text.cleaning import CleaningReader
from gateway.text.english.forms import is_plain
from gateway.text.manner import check_sum
from gateway.text.markdown import MarkupReader
from gateway.text.normalization.addresses import spoken_addresses
from gateway.text.normalization.language import DeclaredLanguages, LanguageGuesser, language_runs
from gateway.text.normalization.wetext_normalizer import clauses, load_normalizers
from gateway.text.options import Normalization, TextOptions
from gateway.text.rules import noted
from gateway.text.sentences import SentencexRules
from gateway.text.splitter import IncrementalSplitter, Segment, SplitSettings
from gateway.text.ssml import SsmlReader
from gateway.text.stretches import BareText, Markup
from gateway.text.styles import AUDIO_TAGS_FIELD, STYLE_NAMES, StyleRule, audio_tags, instruction_of
from gateway.text.tags import InlineTags, TextPart
from gateway.text.turns import Steps, TextTurns, finished
from llm_service.text_encoder import acting_tags
from llm_service.vocab import INLINE_TAGS
from servicekit.checkpoint_file import CheckpointDeclaration

_UNMARKED = re.compile(r"[A-Za-z\u4e00-\u9fff][ -%'-)+-;=-Z\]^a-{}\u4e00-\u9fff，。！？、；：“”]*")
"""A line that begins with a letter, of letters and marks that are clean and no markup."""
GuessLanguage = Callable[[str], str | None]
FindLexicons = Callable[[TextOptions], tuple[Lexicon, ...]]
"""Returns the dictionaries that a text asks for, and the default one behind them; raises GatewayError if it can't."""


@dataclass(frozen=True)
class SpokenSegment:
    """A segment ready to be spoken."""

    source: Segment
    text: str
    """Text that the LLM gets: normalised unless switched off; tags and blank space at the ends as they came."""
    alignment: Alignment
    """How positions in `source.text` and `text` correspond."""
    language: str | None
    """The segment's language, a primary subtag of BCP 47; None if unknown."""
    is_speakable: bool
    """Whether the segment has anything to say; skip it if not (the LLM would make something up)."""
    instruction: str = ""
    """Instruction to the LLM on how to speak the segment; empty: none."""


class TextFrontEnd:
    """Opens texts; one serves a process. Its parts are loaded once, by `load_text_front_end`."""

    def __init__(
        self,
        normalizers: Mapping[str, Normalizer],
        guess_language: GuessLanguage,
        tags: InlineTags | None = None,
        segment_letters: int | None = None,
        declared: DeclaredLanguages | None = None,
        silent_tags: Iterable[str] = (),
        lexicons: FindLexicons | None = None,
        styles: StyleRule | None = None,
        takes_phonemes: bool = False,
    ) -> None:
        """Keep the parts.

        Args:
            normalizers: by BCP 47 tag in lower case.
            guess_language: pure; None from it means unknown.
            tags: the model's inline tags; None: CosyVoice2's.
            segment_letters: about the longest segment of any text, for models that know short whole texts only; each
                segment then ends as a text does, also where it is cut at a comma.
            declared: the checkpoint's languages; None: nobody knows them.
            silent_tags: those of `tags` that the checkpoint does not know; normalising takes them out.
            lexicons: finds dictionaries; None: there are none.
            styles: whether ways of speaking can be asked for; None: they are left alone.
            takes_phonemes: whether the LLM reads phonemes, which `tags` has then too.
        """
        self.takes_phonemes = takes_phonemes
        self._declared = declared
        self._styles = styles or StyleRule()
        self._silent_tags = frozenset(silent_tags)
        self._find_lexicons = lexicons
        self._has_default_lexicon = lexicons is not None and bool(lexicons(TextOptions()))
        self._segment_letters = segment_letters
        self._normalizers = normalizers
        self.guess_language = guess_language
        """Returns the language that a text seems to be in, a primary subtag of BCP 47; None: it does not tell."""
        self._tags = tags or InlineTags()
        self.turns = TextTurns()

    def check(self, options: TextOptions) -> None:
        """Refuse options that no text can be opened with.

        Raises:
            GatewayError: a pronunciation dictionary or a way of speaking that can't be had.
        """
        if options.style is not None:
            self._styles.check(options.style.field)
        self._lexicons_for(options)

    def _lexicons_for(self, options: TextOptions) -> tuple[Lexicon, ...]:
        if self._find_lexicons is None and options.lexicons:
            got = f"there is no pronunciation dictionary {options.lexicons[0][:100]!r}"
            raise LexiconNotFoundError(f"{got}: this server keeps none", param="lexicons")
        lexicons = self._find_lexicons(options) if self._find_lexicons is not None else ()
        if options.aliases:
            lexicons = (Lexicon(options.aliases), *lexicons)
        word = next((each.in_phonemes for each in lexicons if each.in_phonemes is not None), None)
        if word is not None and not self.takes_phonemes:
            raise UnsupportedOptionError(f"pronunciation of {word[:40]!r}: {NO_PHONEMES}", param="lexicons")
        return lexicons

    @property
    def style_names(self) -> tuple[str, ...]:
        """Words that stand for ways of speaking; none where the checkpoint takes no instructions."""
        return STYLE_NAMES if self._styles.is_declared else ()

    def check_audio_tags(self, text: str, options: TextOptions) -> None:
        """Refuse a whole text for an audio tag, before any of it is spoken.

        Raises:
            UnsupportedOptionError: it asks for a way of speaking, which is to be refused here.
        """
        if AUDIO_TAGS_FIELD in self.ignored(options, text):
            self._styles.check(AUDIO_TAGS_FIELD)

    def ignored(self, options: TextOptions, text: str = "") -> tuple[str, ...]:
        """Return the fields of a request that change nothing, as this checkpoint takes no instructions.

        Args:
            options: of the text.
            text: all of it, if it is known by now.
        """
        if self._styles.is_declared:
            return ()
        has_tag = self._reads_audio_tags(options) and any(tag.style for tag in audio_tags(text))
        return (*([options.style.field] if options.style else ()), *([AUDIO_TAGS_FIELD] if has_tag else ()))

    def open(self, options: TextOptions, settings: SplitSettings, whole: str = "") -> TextStream:
        """Begin a text.

        Args:
            options: of the text.
            settings: where it is cut.
            whole: all of it, if it is known by now: one without markup is not searched for any.

        Raises:
            ConfigError: settings that can't work.
            GatewayError: a pronunciation dictionary or a way of speaking that can't be had.
        """
        if options.style is not None:
            self._styles.check(options.style.field)
        has_lexicons = self._has_default_lexicon or options.lexicons or options.aliases
        lexicons = self._lexicons_for(options) if has_lexicons else ()
        rules = SentencexRules(options.primary_language, self.guess_language)
        splitter = IncrementalSplitter(BreakFinder(rules, self._tags), settings.capped(self._segment_letters))
        markup = None if _UNMARKED.fullmatch(whole) and not options.is_ssml else self._markup_of(options)
        return TextStream(splitter, options, self, markup, lexicons, settings.cuts_words)

    def _markup_of(self, options: TextOptions) -> Markup | None:
        if options.is_ssml:
            ssml = SsmlReader(self._tags, options.primary_language, self._in_words, takes_phonemes=self.takes_phonemes)
            return Markup(CleaningReader(ssml) if options.normalization is Normalization.ON else ssml)
        if options.normalization is not Normalization.ON:
            return None
        return Markup(CleaningReader(MarkupReader(self._tags, self._styles if options.has_audio_tags else None)))

    def _reads_audio_tags(self, options: TextOptions) -> bool:
        return options.has_audio_tags and not options.is_ssml and options.normalization is Normalization.ON

    def _instruction(self, segment: Segment, options: TextOptions, language: str | None) -> str:
        style = options.style.words if options.style is not None else None
        if segment.manner is not None:
            style = segment.manner.style or style
        return instruction_of(style, language) if style else ""

    def _in_words(self, text: str, language: str) -> str:
        normalizer = self._normalizers.get(language)
        return text if normalizer is None else normalizer(text).text

    def preparing(
        self,
        segment: Segment,
        options: TextOptions,
        earlier_language: str | None,
        lexicons: tuple[Lexicon, ...] = (),
        goes_on: bool = False,
    ) -> Steps[SpokenSegment]:
        """Normalise one segment in small steps.

        Args:
            segment: of any text.
            options: the text's.
            earlier_language: taken where neither the options nor the segment tell one.
            lexicons: what they replace is normalised like any other text.
            goes_on: the segment is given no end.
        """
        language = options.primary_language
        if segment.manner is not None:
            language = segment.manner.language or language
        language = language or self._guessed(segment.plain_text, earlier_language)
        spoken = segment.bare or unchanged(segment.text)
        if lexicons:
            spoken = _after(spoken, self._with_aliases(spoken.text, lexicons), "pronunciation")
            yield None
        if options.normalization is Normalization.ON and not (language == "en" and is_plain(spoken.text)):
            spoken = _after(spoken, spoken_addresses(spoken.text, language), "addresses")
            yield None
            normalized = yield from self._normalizing(spoken.text, options, language)
            spoken = _after(spoken, normalized)
        if not goes_on:
            is_whole = segment.is_last or self._segment_letters is not None
            spoken = _after(spoken, ended(spoken.text, language, is_last=is_whole), "end of the segment")
        is_speakable = self._tags.is_speakable(spoken.text)
        instruction = self._instruction(segment, options, language) if self._styles.is_declared else ""
        yield SpokenSegment(segment, spoken.text, spoken.alignment, language, is_speakable, instruction)

    @property
    def languages(self) -> tuple[str, ...] | None:
        """The checkpoint's languages, primary subtags of BCP 47; None: nobody knows them."""
        return None if self._declared is None else self._declared.languages

    def foreign(self, segment: Segment, options: TextOptions) -> str | None:
        """Return the language of a segment that the checkpoint does not declare; see `DeclaredLanguages.foreign`."""
        if self._declared is None:
            return None
        return self._declared.foreign(self._tags.removed(segment.plain_text), options.primary_language)

    def _guessed(self, text: str, earlier_language: str | None) -> str | None:
        bare = self._tags.removed(text)
        guess = self.guess_language(bare)
        # A few Han characters alone are Japanese among Japanese sentences.
        if (guess, earlier_language) == ("zh", "ja"):
            return earlier_language
        return guess or (earlier_language if self._declared is None else self._declared.usual(bare, earlier_language))

    def _normalizer(self, options: TextOptions, language: str | None) -> Normalizer | None:
        if language is None:
            return None
        regional = options.regional_language if language == options.primary_language else None
        return self._normalizers.get(regional or language) or self._normalizers.get(language)

    def _normalizing(
        self, text: str, options: TextOptions, language: str | None
    ) -> Generator[None, None, NormalizedText]:
        if self._normalizer(options, language) is None and not self._silent_tags:
            return unchanged(text)
        parts = list[NormalizedText]()
        for piece, its_language in self._pieces(text, language):
            parts.append(self._normalized_part(piece, self._normalizer(options, its_language)))
            yield
        return joined(parts)

    def _pieces(self, text: str, language: str | None) -> Iterator[tuple[TextPart, str | None]]:
        """Cut a text at its tags, where its language changes and where it costs too much, with each part's language."""
        others = self._normalizers if self.languages is None else self.languages
        for part in self._tags.parts(text):
            runs = [(part.text, language)] if part.is_tag else language_runs(part.text, language, others)
            for run, its_language in runs:
                pieces = [run] if part.is_tag else clauses(run)
                yield from ((TextPart(piece, part.is_tag), its_language) for piece in pieces)

    def _with_aliases(self, text: str, lexicons: tuple[Lexicon, ...]) -> NormalizedText:
        parts = self._tags.parts(text)
        return joined(unchanged(part.text) if part.is_tag else apply_lexicons(part.text, lexicons) for part in parts)

    def _normalized_part(self, part: TextPart, normalizer: Normalizer | None) -> NormalizedText:
        if part.is_tag and part.text in self._silent_tags:
            return replaced(part.text, [(0, len(part.text), "")])
        return unchanged(part.text) if part.is_tag or normalizer is None else normalizer(part.text)


class TextStream:
    """One text on its way: a request's whole text, or one that arrives in pieces."""

    def __init__(
        self,
        splitter: IncrementalSplitter,
        options: TextOptions,
        front_end: TextFrontEnd,
        markup: Markup | None,
        lexicons: tuple[Lexicon, ...] = (),
        cuts_words: bool = False,
    ) -> None:
        """Begin; use `TextFrontEnd.open`. Without `markup` the text is read as it is written."""
        self._cuts_words = cuts_words
        self._splitter = splitter
        self._options = options
        self._front_end = front_end
        self._markup = markup
        self._lexicons = lexicons
        self._language: str | None = None
        self._pauses_s = 0.0
        """Pauses asked for since the last flush."""

    def push(self, piece: str) -> list[Segment]:
        """Take more text, of any length, and return the segments that it completes.

        Args:
            piece: text without lone surrogates; who reads the wire refuses them.

        Raises:
            InvalidRequestError: a break that can't be had.
        """
        return [segment for segment in self.cutting(piece) if segment is not None]

    def flush(self, *, goes_on: bool = False) -> list[Segment]:
        """Return all that is left, as if the text ended here; more may be pushed afterwards.

        Args:
            goes_on: what follows belongs to the same speech, so that a comma at the end stays one.

        Raises:
            InvalidRequestError: as by `push`.
        """
        return [segment for segment in self.finishing(goes_on=goes_on) if segment is not None]

    def cutting(self, piece: str) -> Iterator[Segment | None]:
        """Do what `push` does in small steps, to the end: each yields a segment, or None while there is none yet."""
        if self._markup is None:
            yield from self._splitter.cutting(piece)
            return
        yield from self._cutting(self._markup, self._markup.reading(piece))
        check_sum(self._pauses_s)

    def finishing(self, *, goes_on: bool = False) -> Iterator[Segment | None]:
        """Do what `flush` does in small steps, to the end; see `cutting`."""
        segments = list[Segment]()
        for step in self._splitter.finishing() if self._markup is None else self._finishing(self._markup):
            yield None
            segments += [step] if step is not None else []
        if self._markup is not None:
            segments = self._markup.with_rest(segments)
            check_sum(self._pauses_s)
            self._pauses_s = 0.0
        yield from segments[:-1]
        yield from (replace(last, is_last=not goes_on) for last in segments[-1:])

    def _finishing(self, markup: Markup) -> Iterator[Segment | None]:
        yield from self._cutting(markup, markup.finishing())
        yield from self._as_written(markup, self._splitter.finishing())

    def _cutting(self, markup: Markup, parts: Iterator[BareText]) -> Iterator[Segment | None]:
        """Cut text without markup; a break ends a segment wherever it comes."""
        for text, has_pause in parts:
            yield from self._as_written(markup, self._splitter.cutting(text))
            yield None
            if has_pause:
                segments = markup.with_pause([markup.as_written(cut) for cut in self._splitter.flush()])
                self._pauses_s += segments[-1].pause_s
                yield from segments

    def _as_written(self, markup: Markup, cuts: Iterator[Segment | None]) -> Iterator[Segment | None]:
        return (markup.as_written(cut) if cut is not None else None for cut in cuts)

    async def next_segment(self, steps: Iterator[Segment | None]) -> Segment | None:
        """Return the next segment of `cutting` or `finishing`, None at the end; others get their turn meanwhile.

        A caller that is cancelled loses nothing if it goes on with the same `steps` later.
        """
        return await self._front_end.turns.next_of(steps)

    async def prepared(self, segment: Segment) -> SpokenSegment:
        """Do what `prepare` does when it is this text's turn."""
        spoken = await self._front_end.turns.next_of(self._preparing(segment))
        assert spoken is not None
        self._language = spoken.language
        return spoken

    def prepare(self, segment: Segment) -> SpokenSegment:
        """Make a segment ready to be spoken; call it in the segments' order, each when its turn comes."""
        spoken = finished(self._preparing(segment))
        self._language = spoken.language
        return spoken

    def _preparing(self, segment: Segment) -> Steps[SpokenSegment]:
        goes_on = self._cuts_words and not segment.is_last and segment.pause is None
        return self._front_end.preparing(segment, self._options, self._language, self._lexicons, goes_on)


def load_text_front_end(
    segment_letters: int | None = None,
    declaration: CheckpointDeclaration | None = None,
    lexicons: FindLexicons | None = None,
    refuses_styles: bool = False,
) -> TextFrontEnd:
    """Load every normaliser and the language model: once per process, and without network.

    Args:
        segment_letters: see `TextFrontEnd`.
        declaration: the checkpoint's languages and tags; None: unknown languages, CosyVoice2's tags.
        lexicons: see `TextFrontEnd`.
        refuses_styles: whether instructions are refused where the checkpoint takes none; else they are left alone.
    """
    declaration = declaration or CheckpointDeclaration()
    languages, tags = declaration.languages, acting_tags(declaration)
    guesser = LanguageGuesser(languages)
    return TextFrontEnd(
        load_normalizers(),
        guesser.guess,
        InlineTags({*INLINE_TAGS, *tags}),
        segment_letters,
        DeclaredLanguages(languages, guesser.surely) if languages is not None else None,
        set(INLINE_TAGS) - set(tags),
        lexicons,
        StyleRule(declaration.instruct is not None, refuses_styles),
        declaration.phonemes is not None,
    )


def plain_front_end(segment_letters: int | None = None, styles: StyleRule | None = None) -> TextFrontEnd:
    """Return a front end that cuts texts but normalises nothing and guesses no language."""
    return TextFrontEnd({}, lambda text: None, segment_letters=segment_letters, styles=styles)


def _after(earlier: NormalizedText, later: NormalizedText, step: str = "") -> NormalizedText:
    """Return what became of a text in two steps; the later one is noted if it has a name."""
    if earlier.text == later.text:
        return earlier
    if step:
        noted(step, earlier.text, later.text)
    return NormalizedText(later.text, earlier.alignment.then(later.alignment))
