"""Puts the embedded server together and runs it: load, size the cache, warm up, then listen.

Nothing is downloaded or converted here; what is missing ends the process with an error.
"""

from __future__ import annotations

import importlib.util
import logging
import queue
import time

import torch
import uvicorn
from fastapi import FastAPI

from llm_service.config import EMBEDDED_MAX_NUM_TOKENS, EMBEDDED_MAX_SEQ_LEN, ROWS_PER_FORWARD, ServerConfig
from llm_service.embedded.app import SpeechLMServer, create_app
from llm_service.embedded.decoder import free_memory_bytes
from llm_service.embedded.eager import eager_engine
from llm_service.embedded.engine import EngineLimits, SpeechLMEngine
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.model import SpeechLanguageModel
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.token_stream import SpeechTokenServicer, serving_tokens
from llm_service.embedded.types import GenerationOutput, GenerationRequest, SamplingParams
from llm_service.errors import BackendUnavailableError, CheckpointError, LLMConfigError, LLMStoppedError
from llm_service.text_encoder import load_text_encoder
from servicekit.clock import Clock, SystemClock
from servicekit.process import exempt_startup_objects, failing_plainly, take_turns_often
from servicekit.tracing import endpoint_of, open_tracer

logger = logging.getLogger(__name__)

WARM_UP_TOKENS = 4
WARM_UP_TIMEOUT_S = 300.0
SHUTDOWN_TIMEOUT_S = 5
SWITCH_INTERVAL_S = 0.00002
"""Seconds between switches of Python's threads: by default the engine's thread would wait 5 ms for one that serves
HTTP."""
CPU_TYPE = "float32"
TRACE_SERVICE = "cosydit-llm"


def serve(config: ServerConfig) -> None:
    """Serve until stopped by a signal.

    Raises:
        LLMConfigError: the device is missing or the cache does not fit.
        CheckpointError: the model or tokenizer directory is incomplete.
    """
    app = build_app(config, SystemClock())
    exempt_startup_objects()
    server = uvicorn.Server(
        uvicorn.Config(
            failing_plainly(app, LLMConfigError, is_serving=lambda: server.started),
            host=config.host,
            port=config.port,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        )
    )
    server.run()
    if not server.started:
        raise SystemExit(1)


def build_app(config: ServerConfig, clock: Clock) -> FastAPI:
    """Load the model, warm it up and return the app; its shutdown stops the engine.

    Raises:
        TracingUnavailableError: OpenTelemetry is not installed.
        LLMConfigError: the device is missing or the cache does not fit.
        CheckpointError: the model or tokenizer directory is incomplete.
    """
    tracer = open_tracer(TRACE_SERVICE, endpoint_of())
    loop = build_loop(config, clock)
    try:
        load_text_encoder(config.tokenizer_dir)  # refuses a tokenizer whose ids are not those of the model
        warm_up(loop)
    except BaseException:
        loop.stop()
        raise
    server = SpeechLMServer(loop, config.served_model_name, time.time, tracer)
    if config.grpc_port is None:
        return create_app(server)
    servicer = SpeechTokenServicer(loop, tracer)
    return create_app(server, lambda: serving_tokens(servicer, config.host, config.grpc_port or 0))


def build_loop(config: ServerConfig, clock: Clock) -> EngineLoop:
    """Load the model and start an engine loop on it.

    Raises:
        BackendUnavailableError: what the engine needs is not installed.
        LLMConfigError: the device is missing or the cache does not fit.
        CheckpointError: the checkpoint is incomplete, or made for shorter sequences.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise LLMConfigError(f"device is {config.device}, but torch sees no GPU; use --device cpu")
    guard = RepetitionGuard(config.ras_window, config.ras_tau)
    make = _graphs_engine if config.has_graphs else _eager_engine
    loop = EngineLoop(make(config, guard, clock), config.max_queue_size, clock)
    loop.start()
    return loop


def _eager_engine(config: ServerConfig, guard: RepetitionGuard, clock: Clock) -> SpeechLMEngine:
    model = SpeechLanguageModel.load(config.model_dir, config.device, config.dtype or CPU_TYPE)
    max_seq_len = config.max_seq_len or EMBEDDED_MAX_SEQ_LEN
    if max_seq_len > model.max_positions:
        raise CheckpointError(f"max_seq_len is {max_seq_len}, the model allows {model.max_positions}")
    slots = _slots_that_fit(model, config, max_seq_len)
    model.allocate_cache(slots, max_seq_len, rows_per_forward=ROWS_PER_FORWARD)
    most = config.max_num_tokens or EMBEDDED_MAX_NUM_TOKENS
    return eager_engine(model, EngineLimits(slots, max_seq_len), guard, clock, model.vocabulary, most)


def _graphs_engine(config: ServerConfig, guard: RepetitionGuard, clock: Clock) -> SpeechLMEngine:
    if importlib.util.find_spec("triton") is None:
        raise BackendUnavailableError(
            "the engine of graphs needs the Triton language (pip install triton; torch for CUDA brings it on Linux); "
            "install it, or use --engine eager"
        )
    from llm_service.gpu.build import GpuEngineOptions, build_gpu_engine  # imports the Triton language

    take_turns_often(SWITCH_INTERVAL_S)
    options = GpuEngineOptions(
        device=torch.device(config.device),
        dtype=_graphs_type(config),
        slots=config.max_batch_size,
        max_sequence_tokens=config.max_seq_len or EMBEDDED_MAX_SEQ_LEN,
        memory_share=config.kv_cache_free_gpu_memory_fraction,
        guard=guard,
    )
    return build_gpu_engine(config.model_dir, options, clock)


def _graphs_type(config: ServerConfig) -> torch.dtype:
    if config.dtype is None and config.is_on_gpu:
        from llm_service.gpu.weights import stored_type

        return stored_type(config.model_dir)
    chosen: torch.dtype = getattr(torch, config.dtype or CPU_TYPE)
    return chosen


def warm_up(loop: EngineLoop) -> None:
    """Generate a few tokens and wait for them.

    Raises:
        EngineError: the generation failed.
    """
    outputs: queue.Queue[GenerationOutput] = queue.Queue()
    params = SamplingParams(max_tokens=WARM_UP_TOKENS, seed=0, ignore_eos=True)
    loop.submit(GenerationRequest("warm-up", (0, 0, 0), params), outputs.put)
    while True:
        try:
            output = outputs.get(timeout=WARM_UP_TIMEOUT_S)
        except queue.Empty as err:
            raise LLMStoppedError(f"the warm-up gave nothing for {WARM_UP_TIMEOUT_S:.0f} s") from err
        if output.error is not None:
            raise output.error
        if output.is_last:
            return


def _slots_that_fit(model: SpeechLanguageModel, config: ServerConfig, max_seq_len: int) -> int:
    """Return how many slots the share of free memory holds, at most max_batch_size."""
    slot_bytes = model.slot_bytes(max_seq_len)
    share_bytes = int(free_memory_bytes(torch.device(config.device)) * config.kv_cache_free_gpu_memory_fraction)
    slots = min(config.max_batch_size, share_bytes // slot_bytes)
    if slots < 1:
        raise LLMConfigError(
            f"one slot of {max_seq_len} tokens takes {slot_bytes} bytes, the share of free memory is {share_bytes}; "
            "lower max_seq_len or raise kv_cache_free_gpu_memory_fraction"
        )
    if slots < config.max_batch_size:
        logger.warning("memory holds %d slots of %d; requests beyond them wait", slots, config.max_batch_size)
    return slots
