"""`cosydit convert-llm`: the LLM's checkpoint into the forms that engines serve, and a test of what they answer."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from llm_service.config import LLMBackend
from llm_service.export.convert import DTYPES, convert

SPOKEN_TOKENS = 64


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `convert-llm huggingface` and `convert-llm test`."""
    parser = subparsers.add_parser("convert-llm", help="convert the LLM's checkpoint for vLLM and TensorRT-LLM")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_conversion(actions)
    _add_test(actions)


def _add_test(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser("test", help="compare a server's answers with those of the model that it was made from")
    parser.add_argument("--backend", choices=[name.value for name in LLMBackend], required=True)
    parser.add_argument("--model-dir", type=Path, required=True, help="directory of the form that is served")
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


def _add_conversion(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "write the form that vLLM and TensorRT-LLM serve: a small head with its bias"
    parser = actions.add_parser("huggingface", help=what)
    parser.add_argument("source", type=Path, help="llm.pt, a directory with it, or a Hugging Face directory")
    parser.add_argument("directory", type=Path, help="directory for the result; it appears complete or not at all")
    parser.add_argument(
        "--qwen-dir", type=Path, help="directory of Qwen2's config and tokenizer (default: CosyVoice-BlankEN)"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="type of the tensors (default %(default)s)")
    parser.set_defaults(run=_convert)


def _convert(args: argparse.Namespace) -> int:
    is_new = convert(args.source, args.directory, args.dtype, args.qwen_dir)
    print(f"wrote {args.directory}" if is_new else f"{args.directory}: up to date")
    return 0


def _test(args: argparse.Namespace) -> int:
    from cosydit.stack.process import serving_llm

    if args.url is not None:
        return _compare(args, args.url)
    log_path = args.model_dir.with_name(f"{args.model_dir.name}.server.log")
    tokenizer_dir = str(args.source_dir or args.model_dir)
    serving = serving_llm(args.backend, args.model_dir, log_path, args.ready_timeout_s, tokenizer_dir=tokenizer_dir)
    with serving as url:
        return _compare(args, url)


def _compare(args: argparse.Namespace, url: str) -> int:
    """Ask twice for each text: freely, and after each part of the source's answer for the likeliest token."""
    from cosydit.certify.llm import LEAST_EQUAL, server_at, source_questions

    source_dir = args.source_dir or args.model_dir
    asked = server_at(url, LLMBackend(args.backend), source_dir)
    prompts = asked.prompts()
    questions = list(source_questions(source_dir, prompts))
    _, gaps = asked.choices(questions)
    free = [asked.draw(each, SPOKEN_TOKENS, min_tokens=0) for each in questions if list(each.prompt) in prompts]
    first_id, rows = asked.vocabulary.first_id, asked.vocabulary.head_rows
    foreign = sorted({each for ids in free for each in ids if not 0 <= each - first_id < rows})
    equal, spoken = gaps.count(0.0), sum(map(len, free))
    passed = max(gaps) <= args.tolerance and equal >= LEAST_EQUAL * len(gaps) and spoken > 0 and not foreign
    path = args.certificate or args.model_dir.with_name(f"{args.model_dir.name}.certificate.json")
    record = {"backend": args.backend, "model_dir": str(args.model_dir), "tolerance": args.tolerance}
    record |= {"questions": len(gaps), "equal": equal, "worst_gap": max(gaps), "spoken_tokens": spoken}
    path.write_text(json.dumps(record | {"foreign_ids": foreign, "passed": passed}, indent=2) + "\n", encoding="utf-8")
    print(
        f"{'ok' if passed else 'FAIL'}: {equal} of {len(gaps)} choices are the source's own, the worst lies "
        f"{max(gaps):.2f} logits below its best, {spoken} tokens spoken, foreign ids {foreign}; wrote {path}"
    )
    return 0 if passed else 1
