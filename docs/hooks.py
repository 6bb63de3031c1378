"""What MkDocs does not do by itself: links out of docs/, the marks of commands, and players of sounds.

A link to a file of the repository works where the repository is browsed. The site has no such file, so there it becomes
the file's path. The mark of a command, a comment before its fence, becomes a visible line. A link to an Opus file
becomes a player.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")
_SOUND = re.compile(r"\[[^\]]*\]\((sounds/[\w.-]+\.opus)\)")
_NEVER_RUN = re.compile(r"^<!-- never run here: (.+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite one page before it is rendered."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def rewrite(match: re.Match[str]) -> str:
        is_image, text, target = match.groups()
        path = posixpath.normpath(posixpath.join(folder, target.partition("#")[0]))
        if path.startswith("docs/"):
            return match[0]
        return "" if is_image else f"{text} (`{path}` in the repository)"

    markdown = _SOUND.sub(r'<audio controls preload="none" src="\1"></audio>', _LINK.sub(rewrite, markdown))
    return _NEVER_RUN.sub(r"*Never run here: \1*", markdown)
