"""Created voices: what is kept, what is refused, and what happens when the model or the directory changes."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from pathlib import Path

import pytest

from gateway import errors
from gateway.core import RegisteredVoice
from gateway.voices.directory import StoredVoice, Viewer, VoiceDirectory
from gateway.voices.store import CreatedVoices, VoiceLimits
from servicekit.files import LOCK_FILE, locked
from tests.gateway.voices.fakes import UNIX_TIME, UNREADABLE, FakeVoiceMaker, draft, make_store
from tests.virtual_time import ManualClock
from token2wav_service.voice_file import VoiceFile

PATIENCE_S = 30.0


@pytest.fixture
def maker() -> FakeVoiceMaker:
    return FakeVoiceMaker()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK_FILE)


async def test_a_created_voice_is_found_by_id_and_name_and_after_a_restart(
    tmp_path: Path, maker: FakeVoiceMaker
) -> None:
    voice, _ = await make_store(tmp_path, maker).create(draft(media_type="audio/wav; rate=16000"))
    again = make_store(tmp_path, maker)
    assert again.directory.voices() == [voice] == [again.directory.find(voice.id)] == [again.directory.find("eva")]
    assert (voice.transcript, voice.consent, voice.created_at) == ("I am Eva.", "Eva said yes.", UNIX_TIME)
    assert (voice.seconds, voice.media_type) == (2.0, "audio/wav")
    assert files(tmp_path) == [f"{voice.id}.safetensors"]


async def test_loading_a_voice_needs_neither_its_recording_nor_the_feature_models(
    tmp_path: Path, maker: FakeVoiceMaker
) -> None:
    voice, _ = await make_store(tmp_path, maker).create(draft())
    restarted = FakeVoiceMaker()
    registered = await make_store(tmp_path, restarted).load(voice)
    assert registered.prompt_speech_tokens == (8,) * 50
    assert restarted.registrations == []
    assert [file.audio for file in restarted.imports] == [b""]


async def test_another_models_voice_is_made_again_once_from_its_recording(
    tmp_path: Path, maker: FakeVoiceMaker
) -> None:
    voice, _ = await make_store(tmp_path, maker).create(draft())
    newer = FakeVoiceMaker(model="model-2")
    store = make_store(tmp_path, newer)
    for _ in range(2):
        await store.load(voice)
    assert newer.registrations == [b"RIFF-eva"]
    assert [file.model_version for file in newer.imports] == ["model-1", "model-2"]
    assert store.directory.find("eva") == voice


async def test_another_models_voice_without_a_recording_is_refused_by_name(
    tmp_path: Path, maker: FakeVoiceMaker
) -> None:
    voice, _ = await make_store(tmp_path, maker).create(draft())
    directory = VoiceDirectory(tmp_path)
    file = directory.read(voice.id)
    directory.write(voice, type(file)("model-0", file.prompt_tokens, file.prompt_mel, file.speaker_embedding))
    with pytest.raises(errors.VoiceOutdatedError, match="'eva' was made with model model-0"):
        await make_store(tmp_path, maker).load(voice)


async def test_a_voice_that_is_deleted_while_it_is_made_again_stays_deleted(
    tmp_path: Path, maker: FakeVoiceMaker
) -> None:
    voice, _ = await make_store(tmp_path, maker).create(draft())
    newer = FakeVoiceMaker(model="model-2", gate=asyncio.Event())
    store = make_store(tmp_path, newer)
    loading = asyncio.create_task(store.load(voice))
    while not newer.registrations:
        await asyncio.sleep(0.001)
    await store.delete(voice.id)
    newer.gate.set()
    with pytest.raises(errors.VoiceNotFoundError):
        await loading
    assert files(tmp_path) == []


async def test_a_voice_that_was_evicted_before_its_export_is_registered_again(
    tmp_path: Path, maker: FakeVoiceMaker
) -> None:
    maker.evictions = 1
    voice, _ = await make_store(tmp_path, maker).create(draft())
    assert len(maker.registrations) == 2
    assert make_store(tmp_path, maker).directory.find(voice.id) == voice


async def test_a_deleted_voice_is_gone_and_cant_be_deleted_twice(tmp_path: Path, maker: FakeVoiceMaker) -> None:
    store = make_store(tmp_path, maker)
    voice, _ = await store.create(draft())
    await store.delete(voice.id)
    kept = store.directory
    assert (kept.find("eva"), kept.find(voice.id), kept.voices(), files(tmp_path)) == (None, None, [], [])
    for act in (store.delete(voice.id), store.load(voice)):
        with pytest.raises(errors.VoiceNotFoundError):
            await act


async def test_gateways_that_share_a_directory_agree_at_once(tmp_path: Path, maker: FakeVoiceMaker) -> None:
    one, other = make_store(tmp_path, maker), make_store(tmp_path, maker)
    for number in range(20):
        voice, _ = await one.create(draft(f"voice {number}"))
        assert other.directory.find(voice.name) == voice
        await other.delete(voice.id)
        assert one.directory.find(voice.id) is None


async def test_files_are_for_this_user_alone(tmp_path: Path, maker: FakeVoiceMaker) -> None:
    folder = tmp_path / "made" / "here"
    voice, _ = await make_store(folder, maker).create(draft())
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / f"{voice.id}.safetensors")]
    assert modes == [0o700, 0o600]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"name": ""}, errors.InvalidRequestError, id="no name"),
        pytest.param({"name": "../../etc/passwd"}, errors.InvalidRequestError, id="a path"),
        pytest.param({"name": "a/b"}, errors.InvalidRequestError, id="a slash"),
        pytest.param({"name": ".hidden"}, errors.InvalidRequestError, id="a dot first"),
        pytest.param({"name": "a\x00b"}, errors.InvalidRequestError, id="a zero byte"),
        pytest.param({"name": "a\nb"}, errors.InvalidRequestError, id="a line break"),
        pytest.param({"name": "x" * 65}, errors.InvalidRequestError, id="a long name"),
        pytest.param({"name": "voice_" + "0" * 24}, errors.InvalidRequestError, id="an id as name"),
        pytest.param({"consent": " "}, errors.InvalidRequestError, id="no consent"),
        pytest.param({"consent": "x" * 2001}, errors.InvalidRequestError, id="long consent"),
        pytest.param({"transcript": "x" * 2001}, errors.InvalidRequestError, id="long transcript"),
        pytest.param({"transcript": "a\x1bb"}, errors.InvalidRequestError, id="control character"),
        pytest.param({"audio": b""}, errors.InvalidVoicePromptError, id="no recording"),
        pytest.param({"audio": UNREADABLE}, errors.InvalidVoicePromptError, id="no speech"),
        pytest.param({"audio": b"x" * 101}, errors.UploadTooLargeError, id="too large"),
    ],
)
async def test_what_cant_be_a_voice_is_refused_and_leaves_nothing(
    tmp_path: Path, maker: FakeVoiceMaker, changes: dict[str, str], expected: type[errors.GatewayError]
) -> None:
    store = make_store(tmp_path, maker, VoiceLimits(max_audio_bytes=100, max_voices=1))
    with pytest.raises(expected) as refusal:
        await store.create(draft(**changes))
    assert errors.wire_status(refusal.value).http in (400, 413)
    assert files(tmp_path) == []
    await store.create(draft())


@pytest.mark.parametrize("name", ["Anna", "中文女", "नेहा", "J. R.-R. 2"])
async def test_names_of_any_script_are_taken(tmp_path: Path, maker: FakeVoiceMaker, name: str) -> None:
    voice, _ = await make_store(tmp_path, maker).create(draft(name))
    assert make_store(tmp_path, maker).directory.find(name) == voice


async def test_a_name_is_given_once_even_when_asked_for_at_once(tmp_path: Path, maker: FakeVoiceMaker) -> None:
    store = make_store(tmp_path, maker)
    results = await asyncio.gather(*(store.create(draft()) for _ in range(3)), return_exceptions=True)
    assert sum(isinstance(result, errors.VoiceExistsError) for result in results) == 2
    with pytest.raises(errors.VoiceExistsError):
        await store.create(draft("anna"), {"anna": "anna"})
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("change", ["share", "delete"])
async def test_a_change_whose_caller_leaves_is_whole_before_another_begins(
    tmp_path: Path, maker: FakeVoiceMaker, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    store = make_store(tmp_path, maker)
    voice, _ = await store.create(draft())
    has_begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        has_begun.set()
        may_end.wait(PATIENCE_S)
        ended.set()

    monkeypatch.setattr(VoiceDirectory, {"share": "write", "delete": "remove"}[change], slow)
    changing = asyncio.create_task(store.share(voice, True) if change == "share" else store.delete(voice.id))
    await asyncio.to_thread(has_begun.wait, PATIENCE_S)
    changing.cancel()
    asyncio.get_running_loop().call_later(0.05, may_end.set)
    async with VoiceDirectory(tmp_path).changing():
        assert ended.is_set()
    await asyncio.wait([changing], timeout=PATIENCE_S)
    assert changing.cancelled()


async def test_the_number_of_voices_is_bounded_also_while_they_are_made(tmp_path: Path, maker: FakeVoiceMaker) -> None:
    store = make_store(tmp_path, maker, VoiceLimits(max_voices=2))
    results = await asyncio.gather(*(store.create(draft(f"v{n}")) for n in range(4)), return_exceptions=True)
    assert sum(isinstance(result, errors.VoiceStoreFullError) for result in results) == 2
    assert len(files(tmp_path)) == 2
    await store.delete(store.directory.voices()[0].id)
    await store.create(draft("room again"))


async def test_a_lock_that_another_process_keeps_is_not_waited_for_without_end(tmp_path: Path) -> None:
    async with locked(tmp_path):
        with pytest.raises(TimeoutError, match=r"another process has held \.lock for 0\.02 s"):
            async with locked(tmp_path, 0.02):
                pytest.fail("there are two owners")


async def test_one_key_never_has_more_voices_than_it_leaves_free_for_others(
    tmp_path: Path, maker: FakeVoiceMaker
) -> None:
    store, kept = make_store(tmp_path, maker, VoiceLimits(max_voices=8)), {}
    for key in ("ann", "bob", "cy"):
        drafts = (store.create(draft(f"{key}{n}"), viewer=Viewer(key)) for n in range(9))
        results = await asyncio.gather(*drafts, return_exceptions=True)
        kept[key] = sum(not isinstance(result, errors.VoiceStoreFullError) for result in results)
        with pytest.raises(errors.VoiceStoreFullError, match=f"{kept[key]} of them yours"):
            store.admit(key, Viewer(key))
    assert kept == {"ann": 4, "bob": 2, "cy": 1}


async def test_a_voice_counts_once_while_its_creation_returns(tmp_path: Path, maker: FakeVoiceMaker) -> None:
    written, counted = threading.Event(), threading.Event()

    class WatchedDirectory(VoiceDirectory):
        def write(self, voice: StoredVoice, file: VoiceFile) -> None:
            super().write(voice, file)
            written.set()
            counted.wait(PATIENCE_S)

    store = CreatedVoices(WatchedDirectory(tmp_path), maker, VoiceLimits(max_voices=2))
    creation = asyncio.create_task(store.create(draft("first")))
    assert await asyncio.to_thread(written.wait, PATIENCE_S)
    store.admit("key a")
    counted.set()
    await creation
    await store.create(draft("second"))
    with pytest.raises(errors.VoiceStoreFullError):
        store.admit("key a")


async def test_a_callers_creations_are_counted_by_the_minute(tmp_path: Path, maker: FakeVoiceMaker) -> None:
    clock = ManualClock()
    store = make_store(tmp_path, maker, VoiceLimits(creations_per_minute=2), clock)
    for second in (0.0, 20.0):
        clock.seconds = second
        store.admit("key a")
    with pytest.raises(errors.VoiceRateError, match="40 s") as refusal:
        store.admit("key a")
    assert refusal.value.retry_after_s == 40.0
    store.admit("key b")
    clock.seconds = 60.0
    store.admit("key a")


async def test_a_disk_that_refuses_leaves_no_half_file(
    tmp_path: Path, maker: FakeVoiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    store = make_store(tmp_path, maker)
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(errors.VoiceStoreError, match="No space left"):
        await store.create(draft())
    assert files(tmp_path) == []


async def test_foreign_and_damaged_files_are_left_alone_and_hide_no_voice(
    tmp_path: Path, maker: FakeVoiceMaker
) -> None:
    voice, _ = await make_store(tmp_path, maker).create(draft())
    whole = (tmp_path / f"{voice.id}.safetensors").read_bytes()
    other = f"voice_{'0' * 24}.safetensors"
    (tmp_path / other).write_bytes(whole[:-100])
    (tmp_path / f"voice_{'1' * 24}.safetensors").write_bytes(whole)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / f"voice_{'2' * 24}.safetensors").symlink_to(tmp_path / f"{voice.id}.safetensors")
    assert make_store(tmp_path, maker).directory.voices() == [voice]
    assert len(files(tmp_path)) == 5


async def test_a_file_that_is_damaged_later_is_a_typed_error(tmp_path: Path, maker: FakeVoiceMaker) -> None:
    store = make_store(tmp_path, maker)
    voice, _ = await store.create(draft())
    path = tmp_path / f"{voice.id}.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(errors.VoiceFileError, match=voice.id):
        await store.load(voice)


async def test_leftovers_of_a_process_that_died_go_away_and_fresh_ones_stay(tmp_path: Path) -> None:
    for name, age_s in ((".old.part", 7200.0), (".fresh.part", 0.0)):
        (tmp_path / name).write_bytes(b"x")
        changed_s = (tmp_path / name).stat().st_mtime - age_s
        os.utime(tmp_path / name, (changed_s, changed_s))
    VoiceDirectory(tmp_path)
    assert files(tmp_path) == [".fresh.part"]


def test_a_directory_that_cant_be_used_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.ConfigError, match="writable directory"):
        VoiceDirectory(tmp_path / "file")


def test_a_directory_that_vanishes_is_a_typed_error(tmp_path: Path, maker: FakeVoiceMaker) -> None:
    store: CreatedVoices = make_store(tmp_path / "voices", maker)
    (tmp_path / "voices").rmdir()
    with pytest.raises(errors.VoiceStoreError, match="readable again"):
        store.directory.voices()


def test_of_two_voices_with_one_name_the_older_is_found(tmp_path: Path, maker: FakeVoiceMaker) -> None:
    directory = VoiceDirectory(tmp_path)
    file = asyncio.run(_file_of(maker))
    for number, created_at in ((1, 20), (2, 10), (3, 30)):
        directory.write(StoredVoice(f"voice_{number:024x}", "eva", "", "yes", created_at, 2.0), file)
    found = VoiceDirectory(tmp_path).find("eva")
    assert found is not None
    assert found.created_at == 10


async def _file_of(maker: FakeVoiceMaker):  # type: ignore[no-untyped-def]
    from token2wav_service.voice_file import decode_voice_file

    registered: RegisteredVoice = await maker.register_voice(b"x")
    return decode_voice_file(await maker.export_voice(registered.voice_id))
