"""Writes `compose/gpu/*.env` and `k8s/overlays/*` from the table of GPU sizes: `python deploy/make_gpu_files.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from cosydit.stack.gpu_presets import PRESETS, GpuPreset

DEPLOY = Path(__file__).parent
WRITTEN = "Written by `python deploy/make_gpu_files.py`."
BASE_PRESET = "80gb"
"""Preset whose values are in deploy/k8s/base and are the defaults of deploy/compose."""
_KUSTOMIZATION = """\
# {written} The base for GPUs with {memory}: one for each LLM and one for each token2wav.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../../base]
patches:
  - target: {{kind: Deployment, name: token2wav}}
    patch: |-
{patch}
"""


def compose_file(preset: GpuPreset) -> str:
    """Return the variables of Compose for both services on one such GPU."""
    room, settings = preset.llm["embedded"], preset.token2wav_settings()
    lines = [
        f"# {WRITTEN} For one GPU with {preset.memory}:",
        f"# docker compose --env-file gpu/{preset.name}.env --env-file .env up --build -d --wait",
        f"LLM_MAX_BATCH_SIZE={room.slots}",
        f"LLM_MEMORY_FRACTION={room.memory_share:g}",
        f"TOKEN2WAV_STEP_STREAMS={settings['TRITON_MAX_BATCH_SIZE']}",
        f"TOKEN2WAV_MAX_STREAMS={settings['max_streams']}",
        f"TOKEN2WAV_VOICE_CACHE_BYTES={settings['voice_cache_bytes']}",
    ]
    return "\n".join(lines) + "\n"


def kubernetes_file(preset: GpuPreset, command: Sequence[str]) -> str:
    """Return the overlay that has a preset's values.

    Args:
        preset: for the GPU that token2wav gets.
        command: of token2wav in the base; its order decides what the patch points at.
    """
    base = next(each for each in PRESETS if each.name == BASE_PRESET)
    lines = []
    for name, value in preset.token2wav_settings().items():
        before = f"--set={name}={base.token2wav_settings()[name]}"
        path = f"/spec/template/spec/containers/0/command/{command.index(before)}"
        lines.append(f"      - {{op: test, path: {path}, value: {before}}}")
        lines.append(f"      - {{op: replace, path: {path}, value: --set={name}={value}}}")
    return _KUSTOMIZATION.format(written=WRITTEN, memory=preset.memory, patch="\n".join(lines))


def deploy_files() -> dict[Path, str]:
    """Return every file of this folder that is made from the table."""
    documents = yaml.safe_load_all((DEPLOY / "k8s/base/token2wav.yaml").read_text(encoding="utf-8"))
    deployment = next(each for each in documents if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    files = {}
    for preset in PRESETS:
        files[DEPLOY / "compose/gpu" / f"{preset.name}.env"] = compose_file(preset)
        overlay = DEPLOY / "k8s/overlays" / preset.name / "kustomization.yaml"
        files[overlay] = kubernetes_file(preset, container["command"])
    return files


if __name__ == "__main__":
    for path, text in deploy_files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")
