"""What a checkpoint says of itself: `checkpoint.json` at its root, beside token2wav/, llm/ and voices/.

    {"schema": 1, "name": "demo-voice", "family": "step_audio2", "languages": ["en"], "tags": []}

Official directories come without the file; their family tells the rest. Reads no weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from servicekit.logs import PlainError

CHECKPOINT_FILE = "checkpoint.json"
_FAMILY_FILES = {"cosyvoice3.yaml": "cosyvoice3", "cosyvoice2.yaml": "cosyvoice2", "flow.yaml": "step_audio2"}
_COSYVOICE2_LANGUAGES = ("zh", "en", "ja", "ko")
_COSYVOICE3_LANGUAGES = (*_COSYVOICE2_LANGUAGES, "de", "es", "fr", "it", "ru")

FamilyName = Literal["step_audio2", "cosyvoice2", "cosyvoice3"]
InstructForm = Literal["endofprompt"]
PhonemeForm = Literal["cosyvoice3"]


class CheckpointFileError(PlainError):
    """The file holds something else; the message says what is wrong."""


class CheckpointDeclaration(BaseModel):
    """A checkpoint's own word on what it can do. Frozen; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    version: Literal[1] = Field(default=1, validation_alias="schema", serialization_alias="schema")
    name: str | None = Field(default=None, max_length=200)
    """Name of the checkpoint for people."""
    family: FamilyName = "step_audio2"
    """Family of token2wav's models."""
    languages: tuple[str, ...] | None = None
    """Languages that the LLM has learnt to speak: primary subtags of BCP 47 in lower case. None: unknown, and nothing
    is refused or warned of."""
    tags: tuple[str, ...] | None = None
    """Inline tags that the LLM acts on, such as `[breath]`; None: those of CosyVoice2."""
    instruct: InstructForm | None = None
    """Form of an instruction in the prompt: before the text, with `<|endofprompt|>` between them. None: the LLM takes
    none."""
    phonemes: PhonemeForm | None = None
    """Form of phonemes in a text: CMU phones and pinyin in brackets. None: the LLM reads words only."""

    @field_validator("languages")
    @classmethod
    def _check_languages(cls, languages: tuple[str, ...] | None) -> tuple[str, ...] | None:
        wrong = [tag for tag in languages or () if not (tag.isascii() and tag.isalpha() and tag.islower())]
        if wrong or languages == ():
            raise ValueError(f"got {wrong or 'an empty list'}, expected primary subtags such as en and zh, or null")
        return languages

    @field_validator("tags")
    @classmethod
    def _check_tags(cls, tags: tuple[str, ...] | None) -> tuple[str, ...] | None:
        wrong = [tag for tag in tags or () if tag[:1] + tag[-1:] not in ("[]", "<>") or any(map(str.isspace, tag))]
        if wrong:
            raise ValueError(f"got {wrong}, expected a form such as [breath] or <strong>")
        return tags

    def describe(self) -> str:
        """Return one line for a person."""
        languages = ", ".join(self.languages) if self.languages else "not declared"
        tags = "CosyVoice2's" if self.tags is None else ", ".join(self.tags) or "none"
        taken = {"instruct": self.instruct, "phonemes": self.phonemes}
        more = [f"{name} {form}" for name, form in taken.items() if form is not None]
        return ", ".join(
            [self.name or "unnamed", f"family {self.family}", f"languages {languages}", f"tags {tags}", *more]
        )


def read_declaration(path: Path) -> CheckpointDeclaration:
    """Read one file.

    Raises:
        CheckpointFileError: it can't be read, or holds something else.
    """
    try:
        return CheckpointDeclaration.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise CheckpointFileError(f"{path}: {problems}") from error
    except OSError as error:
        raise CheckpointFileError(f"{path} can't be read: {error}") from error


def find_declaration(directory: Path) -> CheckpointDeclaration:
    """Return what a checkpoint declares, given its root or its llm/ or token2wav/.

    Without the file it is what the official checkpoint of the same family is known to do.

    Raises:
        CheckpointFileError: there is a file, and it can't be read.
    """
    path = declaration_path(directory)
    return read_declaration(path) if path is not None else official_declaration(_family(directory))


def declaration_path(directory: Path) -> Path | None:
    """Return where the file lies, in the directory itself or in the one above; None if there is none."""
    directory = directory.resolve()
    paths = (folder / CHECKPOINT_FILE for folder in (directory, directory.parent))
    return next((path for path in paths if path.is_file()), None)


def official_declaration(family: FamilyName) -> CheckpointDeclaration:
    """Return what the official checkpoint of a family does, by its authors' word."""
    languages = _COSYVOICE3_LANGUAGES if family == "cosyvoice3" else _COSYVOICE2_LANGUAGES
    phonemes: PhonemeForm | None = "cosyvoice3" if family == "cosyvoice3" else None
    return CheckpointDeclaration(family=family, languages=languages, instruct="endofprompt", phonemes=phonemes)


def write_declaration(directory: Path, declaration: CheckpointDeclaration) -> Path:
    """Write the file at a checkpoint's root; returns where."""
    path = directory / CHECKPOINT_FILE
    path.write_text(declaration.model_dump_json(by_alias=True, indent=1) + "\n", encoding="utf-8")
    return path


def _family(directory: Path) -> FamilyName:
    """Return the family by the name of token2wav's description file, wherever that lies from here."""
    directory = directory.resolve()
    for folder in (directory, directory / "token2wav", directory.parent / "token2wav"):
        for name, family in _FAMILY_FILES.items():
            if (folder / name).is_file():
                return family  # type: ignore[return-value]
    return "step_audio2"
