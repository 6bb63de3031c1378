"""Checks of the checkpoint's files: sums, parts, ids, the LLM's forms. Starts no service."""

from __future__ import annotations

import torch

from cosydit.certify.check import CheckFailedError, Findings, NotRunError
from cosydit.certify.context import TEXTS, CheckContext
from cosydit.cli.download import DEFAULT_LOCK
from cosydit.stack.checkpoint.download import DownloadError, read_lock
from cosydit.stack.checkpoint.verify_checkpoint import verify_checkpoint
from cosydit.stack.host import CONVERTED_TYPE
from llm_service.export.convert import Origin, convert_huggingface
from llm_service.huggingface_layout import has_speech_form
from llm_service.prompt import build_prompt
from llm_service.speech_head import read_speech_head, read_vocabulary
from llm_service.text_encoder import load_text_encoder
from llm_service.vocab import COSYVOICE2
from servicekit.file_sums import WEIGHT_SUFFIXES, check_files, sums_path

_ROUNDING = 0.01
"""Tolerance as a share of the largest value: bfloat16 keeps 8 bits."""


def check_lock(context: CheckContext, found: Findings) -> None:
    """The lock of the official checkpoint names commits."""
    if not DEFAULT_LOCK.is_file():
        raise NotRunError(f"{DEFAULT_LOCK} is not here; `cosydit download --update-lock` writes it")
    try:
        lock = read_lock(DEFAULT_LOCK)
    except DownloadError as error:
        raise CheckFailedError(str(error)) from error
    for name, entry in lock.items():
        found.note(f"{name}: {entry.repository} at {entry.revision}")


def check_sums(context: CheckContext, found: Findings) -> None:
    """Every weight file is the one that SHA256SUMS lists."""
    directory = context.plan.checkpoint_dir
    if sums_path(directory) is None:
        raise NotRunError(f"{directory} has no SHA256SUMS; `cosydit checkpoint seal {directory}` writes it")
    paths = sorted(path for path in directory.rglob("*") if path.suffix in WEIGHT_SUFFIXES and path.is_file())
    check_files(paths)
    found.at_least("weight files", len(paths), 1)


def check_parts(context: CheckContext, found: Findings) -> None:
    """Every part loads, and answers as it should."""
    reports = verify_checkpoint(context.plan.checkpoint_dir)
    problems = [f"{report.name}: {report.problem}" for report in reports if report.problem is not None]
    found.tell("parts", len(reports))
    if problems:
        raise CheckFailedError("; ".join(problems))


def check_ids(context: CheckContext, found: Findings) -> None:
    """Tokenizer and model number speech, end and control tokens alike."""
    encoder, of_model = load_text_encoder(context.checkpoint.llm_dir), read_vocabulary(context.checkpoint.llm_dir)
    vocabulary = encoder.vocabulary
    if vocabulary != of_model:
        raise CheckFailedError(f"the tokenizer is of {vocabulary.name}, the model of {of_model.name}")
    prompt = build_prompt(encoder.encode, "", TEXTS[0], (), vocabulary).token_ids
    found.equals("first id of a prompt", prompt[0], vocabulary.sos_id)
    found.equals("last id of a prompt", prompt[-1], vocabulary.task_id)


def check_head_bias(context: CheckContext, found: Findings) -> None:
    """The head has its bias, which stock Qwen2 has no room for."""
    head = read_speech_head(context.checkpoint.llm_dir)
    if not head.has_bias and read_vocabulary(context.checkpoint.llm_dir) is not COSYVOICE2:
        raise NotRunError("heads of this family have no bias")
    found.equals("heads with a bias", int(head.has_bias), 1)
    found.tell("largest bias", float(head.bias.float().abs().max()))


def check_forms(context: CheckContext, found: Findings) -> None:
    """The form that vLLM and TensorRT-LLM read holds the same head, its bias included."""
    source = context.checkpoint.llm_dir
    if has_speech_form(source):
        found.note("the LLM lies in the converted form already")
        return
    target = context.scratch("forms") / "llm"
    convert_huggingface(Origin(source), target, CONVERTED_TYPE)
    before, after = read_speech_head(source), read_speech_head(target)
    for name, one, other in (("weight", before.weight, after.weight), ("bias", before.bias, after.bias)):
        difference = float((one.float() - other.to(torch.float32)).abs().max())
        scale = float(one.float().abs().max())
        found.at_most(f"largest difference of the head's {name}", difference, _ROUNDING * max(scale, 1.0))
