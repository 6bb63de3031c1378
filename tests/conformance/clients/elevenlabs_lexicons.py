"""Pronunciation dictionaries as a user of the elevenlabs package has them; imports nothing of ours.

python elevenlabs_lexicons.py URL DIRECTORY KEY      writes facts.json into DIRECTORY
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

from elevenlabs import PronunciationDictionaryVersionLocator
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from elevenlabs.pronunciation_dictionaries import (
    BodyAddAPronunciationDictionaryV1PronunciationDictionariesAddFromRulesPostRulesItem_Alias as AliasRule,
)

TEXT = "GNU on Xiaomi."
PCM: dict[str, Any] = {"voice_id": "anna", "model_id": "m", "output_format": "pcm_24000"}


def main() -> None:
    url, directory, key = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    client = ElevenLabs(api_key=key, base_url=url)
    dictionaries, facts = client.pronunciation_dictionaries, dict[str, Any]()
    made = dictionaries.create_from_rules(name="mine", rules=[AliasRule(string_to_replace="Xiaomi", alias="show me")])
    old = PronunciationDictionaryVersionLocator(pronunciation_dictionary_id=made.id, version_id=made.version_id)
    speak = client.text_to_speech.stream
    b"".join(speak(text=TEXT, pronunciation_dictionary_locators=[old], **PCM))
    more: Any = {"type": "alias", "string_to_replace": "on", "alias": "at", "case_sensitive": False}
    added = dictionaries.rules.add(pronunciation_dictionary_id=made.id, rules=[more])
    new = PronunciationDictionaryVersionLocator(pronunciation_dictionary_id=made.id, version_id=added.version_id)
    b"".join(speak(text=TEXT, pronunciation_dictionary_locators=[new], **PCM))
    b"".join(speak(text=TEXT, pronunciation_dictionary_locators=[old], **PCM))
    pls = b"".join(dictionaries.download(dictionary_id=made.id, version_id=added.version_id))
    copied = dictionaries.create_from_file(name="copy", file=("words.pls", io.BytesIO(pls), "application/pls+xml"))
    removed = dictionaries.rules.remove(pronunciation_dictionary_id=made.id, rule_strings=["on"])
    facts["rules"] = [
        made.version_rules_num,
        added.version_rules_num,
        copied.version_rules_num,
        removed.version_rules_num,
    ]
    shown = dictionaries.get(pronunciation_dictionary_id=made.id)
    facts["shown"] = [shown.name, shown.created_by, shown.latest_version_id == removed.version_id]
    facts["listed"] = sorted(each.name for each in dictionaries.list().pronunciation_dictionaries)
    facts["renamed"] = dictionaries.update(pronunciation_dictionary_id=made.id, name="ours").name
    try:
        dictionaries.get(pronunciation_dictionary_id="nothing")
    except ApiError as error:
        facts["unknown"] = error.status_code
    (directory / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
