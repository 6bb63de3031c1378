"""The elevenlabs package's pronunciation dictionaries against the gateway, both services faked.

python -m venv DIRECTORY/elevenlabs && DIRECTORY/elevenlabs/bin/pip install elevenlabs
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from gateway.voices.registry import NamedVoice
from tests.conformance.conftest import run_script
from tests.gateway.access.door import KEY
from tests.gateway.lexicons.door import created_settings, opened_door


async def test_the_elevenlabs_package_makes_changes_and_uses_dictionaries(
    python_of: Callable[[str], Path], voices: list[NamedVoice], tmp_path: Path
) -> None:
    python = python_of("elevenlabs")
    async with opened_door(voices, created_settings(tmp_path)) as door:
        await run_script(python, "elevenlabs_lexicons.py", door.url, str(tmp_path), KEY)
        spoken = door.spoken()
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert spoken == ["guh noo on show me.", "guh noo at show me.", "guh noo on show me."]
    assert facts["rules"] == [1, 2, 2, 1]
    assert facts["shown"] == ["mine", "anna", True]
    assert facts["listed"] == ["copy", "default", "mine"]
    assert (facts["renamed"], facts["unknown"]) == ("ours", 404)
