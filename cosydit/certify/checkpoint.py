"""Checks of the host and of the checkpoint's files: sums, parts, ids, the LLM's forms. Starts no service."""

from __future__ import annotations

from cosydit.certify.check import CheckFailedError, Findings, NotRunError
from cosydit.certify.context import TEXTS, CheckContext
from cosydit.doctor.host import PROBES, Look, State
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


def check_host(context: CheckContext, found: Findings, name: str) -> None:
    """One look at this host, as `cosydit doctor --gpu` takes it."""
    findings = list(PROBES[name](Look(context.plan.device, context.plan.checkpoint_dir)))
    told = [f"{finding.name}: {finding.value}" for finding in findings]
    if missing := [text for text, each in zip(told, findings, strict=True) if each.state is State.MISSING]:
        raise CheckFailedError("; ".join(missing))
    if not any(finding.state is State.OK for finding in findings):
        raise NotRunError("; ".join(told) or "nvidia-smi lists no GPU")
    found.notes += told


def check_sums(context: CheckContext, found: Findings) -> None:
    """Every weight file is the one that SHA256SUMS lists."""
    directory = context.plan.checkpoint_dir
    if sums_path(directory) is None:
        raise NotRunError(f"{directory} has no SHA256SUMS; `cosydit checkpoint seal {directory}` writes it")
    paths = sorted(path for path in directory.rglob("*") if path.suffix in WEIGHT_SUFFIXES and path.is_file())
    check_files(paths)
    found.tell("weight files", len(paths), least=1)


def check_parts(context: CheckContext, found: Findings) -> None:
    """Every part loads, and answers as it should: `cosydit checkpoint verify`."""
    reports = verify_checkpoint(context.plan.checkpoint_dir)
    found.tell("parts", len(reports))
    if problems := [f"{report.name}: {report.problem}" for report in reports if report.problem is not None]:
        raise CheckFailedError("; ".join(problems))


def check_ids(context: CheckContext, found: Findings) -> None:
    """Tokenizer and model number speech, end and control tokens alike."""
    encoder, of_model = load_text_encoder(context.checkpoint.llm_dir), read_vocabulary(context.checkpoint.llm_dir)
    vocabulary = encoder.vocabulary
    if vocabulary != of_model:
        raise CheckFailedError(f"the tokenizer is of {vocabulary.name}, the model of {of_model.name}")
    prompt = build_prompt(encoder.encode, "", TEXTS[0], (), vocabulary).token_ids
    found.tell("first id of a prompt", prompt[0], least=vocabulary.sos_id, most=vocabulary.sos_id)
    found.tell("last id of a prompt", prompt[-1], least=vocabulary.task_id, most=vocabulary.task_id)


def check_head_bias(context: CheckContext, found: Findings) -> None:
    """The head has its bias, which stock Qwen2 has no room for."""
    head = read_speech_head(context.checkpoint.llm_dir)
    if not head.has_bias and read_vocabulary(context.checkpoint.llm_dir) is not COSYVOICE2:
        raise NotRunError("heads of this family have no bias")
    found.tell("heads with a bias", int(head.has_bias), least=1, most=1)
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
        difference, scale = float((one.float() - other.float()).abs().max()), float(one.float().abs().max())
        found.tell(f"largest difference of the head's {name}", difference, most=_ROUNDING * max(scale, 1.0))
