"""Written English into words: our own rules first, WeText's grammar for the rest.

text -> english_forms (whole segments) -> read_english (the grammar, and what it is known to misread)
"""

from gateway.text.english.forms import english_forms, is_plain, read_english

__all__ = ["english_forms", "is_plain", "read_english"]
