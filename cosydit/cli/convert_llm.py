"""`cosydit convert-llm`: the LLM's checkpoint into the forms that engines serve, and a test of what they answer."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.resources
import json
import logging
from pathlib import Path

from llm_service.config import LLMBackend
from llm_service.export.convert import DTYPES, Origin, build_trtllm, convert_huggingface, convert_trtllm
from llm_service.export.trtllm_build import BuildLimits

TEST_TEXTS = 4
SAMPLE_TEXTS = "samples/english.txt"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `convert-llm huggingface`, `trtllm`, `build` and `test`."""
    parser = subparsers.add_parser("convert-llm", help="convert the LLM's checkpoint for vLLM and TensorRT-LLM")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_huggingface(actions)
    _add_trtllm(actions)
    _add_build(actions)
    _add_test(actions)


def _add_huggingface(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "huggingface", help="write the form that vLLM and TensorRT-LLM serve: a small head with its bias"
    )
    _add_origin(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="type of the tensors (default %(default)s)")
    parser.set_defaults(run=_huggingface)


def _add_trtllm(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser("trtllm", help="write a TensorRT-LLM checkpoint for one GPU")
    _add_origin(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="type of the tensors (default %(default)s)")
    parser.set_defaults(run=_trtllm)


def _add_build(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    limits = BuildLimits()
    parser = actions.add_parser("build", help="build an engine from a TensorRT-LLM checkpoint with trtllm-build")
    parser.add_argument("checkpoint", type=Path, help="directory that `trtllm` wrote")
    parser.add_argument("directory", type=Path, help="directory for the engine")
    parser.add_argument(
        "--max-batch-size", type=int, default=limits.max_batch_size, help="most requests that run together"
    )
    parser.add_argument("--max-num-tokens", type=int, default=limits.max_num_tokens, help="most tokens of one step")
    parser.add_argument(
        "--max-seq-len", type=int, help="most tokens of prompt plus answer (default: the model's limit)"
    )
    parser.set_defaults(run=_build)


def _add_test(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser("test", help="compare a server's answers with those of the model that it was made from")
    parser.add_argument("--backend", choices=[name.value for name in LLMBackend], required=True)
    parser.add_argument(
        "--model-dir", type=Path, required=True, help="directory of the engine or converted form that is served"
    )
    parser.add_argument(
        "--source-dir", type=Path, help="directory of the Hugging Face form to compare with (default: --model-dir)"
    )
    parser.add_argument("--url", help="URL of a running server (default: one is started)")
    parser.add_argument(
        "--tolerance", type=float, default=1.0, help="logits by which a choice may be below the best; try 2"
    )
    parser.add_argument(
        "--ready-timeout-s", type=float, default=600.0, help="seconds that the server may take to start"
    )
    parser.add_argument("--certificate", type=Path, help="file for the result (default: beside --model-dir)")
    parser.set_defaults(run=_test)


def _add_origin(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="llm.pt, a directory with it, or a Hugging Face directory")
    parser.add_argument("directory", type=Path, help="directory for the result; it appears complete or not at all")
    parser.add_argument(
        "--qwen-dir", type=Path, help="directory of Qwen2's config and tokenizer (default: CosyVoice-BlankEN)"
    )


def _huggingface(args: argparse.Namespace) -> int:
    return _report(args.directory, convert_huggingface(Origin(args.source, args.qwen_dir), args.directory, args.dtype))


def _trtllm(args: argparse.Namespace) -> int:
    return _report(args.directory, convert_trtllm(Origin(args.source, args.qwen_dir), args.directory, args.dtype))


def _build(args: argparse.Namespace) -> int:
    logging.getLogger("llm_service").setLevel(logging.INFO)
    limits = BuildLimits(args.max_batch_size, args.max_num_tokens, args.max_seq_len)
    return _report(args.directory, build_trtllm(args.checkpoint, args.directory, limits))


def _test(args: argparse.Namespace) -> int:
    from cosydit.stack.process import serving_llm

    if args.url is not None:
        return _certify(args, args.url)
    log_path = args.model_dir.with_name(f"{args.model_dir.name}.server.log")
    tokenizer_dir = str(args.source_dir or args.model_dir)
    serving = serving_llm(args.backend, args.model_dir, log_path, args.ready_timeout_s, tokenizer_dir=tokenizer_dir)
    with serving as url:
        return _certify(args, url)


def _certify(args: argparse.Namespace, url: str) -> int:
    from llm_service.export.check_server import Expectation, certify

    expectation = Expectation(tolerance=args.tolerance)
    source_dir = args.source_dir or args.model_dir
    certificate = certify(url, LLMBackend(args.backend), source_dir, _texts(TEST_TEXTS), expectation)
    path = args.certificate or args.model_dir.with_name(f"{args.model_dir.name}.certificate.json")
    record = {"backend": args.backend, "model_dir": str(args.model_dir), **dataclasses.asdict(expectation)}
    path.write_text(json.dumps(record | dataclasses.asdict(certificate), indent=2) + "\n", encoding="utf-8")
    print(
        f"{'ok' if certificate.passed else 'FAIL'}: {certificate.equal} of {certificate.questions} choices are the "
        f"source's own, the worst lies {certificate.worst_gap:.2f} logits below its best, {certificate.spoken_tokens} "
        f"tokens spoken, foreign ids {list(certificate.foreign_ids)}; wrote {path}"
    )
    return 0 if certificate.passed else 1


def _texts(count: int) -> list[str]:
    """Return bundled sentences; a line is `utterance|text`."""
    lines = (importlib.resources.files("demo_voice") / SAMPLE_TEXTS).read_text(encoding="utf-8").splitlines()
    return [line.partition("|")[2] for line in lines[:count]]


def _report(directory: Path, is_new: bool) -> int:
    print(f"wrote {directory}" if is_new else f"{directory}: up to date")
    return 0
