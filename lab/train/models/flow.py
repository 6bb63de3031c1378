"""The flow as it is trained, and its stage: conditional flow matching on [prompt | target] windows.

The modules are the project's own, with the token table computed from the tokens' digits; attention has streaming's
masks. Source: Matcha-TTS (Mehta et al., arXiv 2309.03199) for the prior loss, CosyVoice 2 (arXiv 2412.10117) for
training under chunk masks; the time is drawn on the solver's own cosine grid. A judge of `mel_reader` reads what one
estimate makes, and what the whole solver makes of noise.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.train.data import SpeechStreams
from lab.train.models.flow_masks import FRAMES_PER_TOKEN, FlowPlans, blocks_of, draw_cut, history_of, plans_for
from lab.train.models.mel_reader import Judge, TrueSpeech
from lab.train.models.speaker import SpeakerNet
from lab.train.models.tokenizer import MEL_MEAN, MEL_SCALE, CodeTable
from lab.train.replay import Inputs
from lab.train.trainer import OneModel, autocast, mean_of
from token2wav_service.models.config import FlowConfig
from token2wav_service.models.flow.cfm import time_grid
from token2wav_service.models.flow.flow import Flow

MEAN_LOG_MEL = -6.0
"""Initial value of the estimator's answers; otherwise training would begin with finding the mean."""


class TrainableFlow(nn.Module):
    """Everything of `Flow` but its embedding, which `finished` puts back."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.codes = CodeTable(config.input_size, config.input_size)
        self.flow = Flow(config)
        del self.flow.input_embedding
        _initialise(self.flow)

    def encode(self, tokens: Tensor, is_last: Tensor, frames: int, plans: FlowPlans) -> Tensor:
        """Return mu [B, 80, frames] of tokens [B, N], three more than are spoken; a last row's three are not heard."""
        embedded = functional.embedding(tokens, self.codes())
        lengths = tokens.shape[1] - LOOKAHEAD_TOKENS * is_last.long()
        size = frames // self.flow.config.encoder.up_stride
        hidden, _, _ = self.flow.encoder(embedded, lengths, is_last, plans=plans.encoder, size=size)
        return torch.as_tensor(self.flow.encoder_proj(hidden).transpose(1, 2))

    def speaker(self, embedding: Tensor) -> Tensor:
        """Return [B, 80] of raw speaker embeddings [B, 192]."""
        return torch.as_tensor(self.flow.spk_embed_affine_layer(functional.normalize(embedding, dim=1)))

    def velocity(self, x: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor, time: Tensor, plans: FlowPlans) -> Tensor:
        """Estimate the velocity [B, 80, T] at `time` [B]."""
        lengths = torch.full((len(x),), x.shape[2], device=x.device)
        velocity, _ = self.flow.decoder.estimator(x, mu, speaker, cond, time, plans.solver_mask, lengths)
        return torch.as_tensor(velocity)

    @torch.no_grad()
    def finished(self) -> Flow:
        """Return an ordinary flow with these weights, float32 on the CPU, in eval mode."""
        flow = Flow(self.flow.config)
        table = {"input_embedding.weight": self.codes()}
        flow.load_state_dict({k: v.float().cpu() for k, v in {**self.flow.state_dict(), **table}.items()}, strict=True)
        return flow.eval().requires_grad_(False)


def _initialise(flow: Flow) -> None:
    """Start every DiT block as the identity, and the answer at the mean mel.

    Source: adaLN-Zero (Peebles and Xie, arXiv 2212.09748).
    """
    estimator = flow.decoder.estimator
    for block in (*estimator.blocks, estimator.final_layer):
        modulation = block.get_submodule("adaLN_modulation.1")
        assert isinstance(modulation, nn.Linear)
        nn.init.zeros_(modulation.weight)
        nn.init.zeros_(modulation.bias)
    nn.init.zeros_(estimator.final_layer.linear.weight)
    nn.init.constant_(estimator.final_layer.linear.bias, MEAN_LOG_MEL)


FEATURES = ("mel", "fbank", "phones")
TOKENS = "token_ids"
"""The column of speech tokens, which `tokenize_streams` makes."""
PROMPT_TOKENS = (32, 56, 80, 108)
"""Tokens of a prompt, 1.3 to 4.3 s. Few sizes: cuDNN plans each convolution anew for every shape, which costs more than
a step."""
TARGET_TOKENS = (48, 88, 136, 188)
"""Tokens of the target, 1.9 to 7.5 s."""
LOOKAHEAD_TOKENS = 3
RATE = 8e-4
UNCONDITIONAL_SHARE = 0.2
"""Share of rows without condition: what guidance subtracts must be learnt, too."""
LAST_SHARE = 0.3
"""Share of rows whose last tokens have silence for look-ahead, as the end of a text has."""
PRIOR_WEIGHT = 0.1
JUDGED_FROM = 1000
"""Steps in which the judge learns to read, before its judgement counts."""
PHONE_WEIGHT, LAYER_WEIGHT = 0.2, 0.2
"""Of what one estimate makes."""
SOLVED_PHONE_WEIGHT, SOLVED_LAYER_WEIGHT = 0.15, 0.3
"""Of what the solver makes, whose gradient comes from its last step."""
SOLVED_STEPS = 5
_LATEST = 1.1
"""An estimate at time t weighs t / (1.1 - t): the later, the less is left to be guessed."""
VALIDATION_PROMPT_TOKENS, VALIDATION_TARGET_TOKENS = 75, 100
VALIDATION_STEPS = 10
_VALIDATION_BATCHES = 3


@dataclass(frozen=True)
class FlowBatch:
    """[prompt | target] windows; T = frames of both."""

    tokens: Tensor
    """[B, T / 2 and the look-ahead], which last rows don't hear."""
    is_last: Tensor
    """[B] bool."""
    mel: Tensor
    """[B, 80, T]."""
    cond: Tensor
    """[B, 80, T]: the prompt's mel, zero in the target."""
    speaker: Tensor
    """[B, 192]."""
    phones: Tensor
    """[B, T] int64."""
    prompt_frames: int
    plans: FlowPlans

    @property
    def speech(self) -> TrueSpeech:
        return TrueSpeech(self.mel, self.phones, self.prompt_frames)


class Condition(NamedTuple):
    """What the estimator knows of the mel that it makes."""

    mu: Tensor
    """[B, 80, T]"""
    speaker: Tensor
    """[B, 80]"""
    cond: Tensor
    """[B, 80, T]"""

    def times(self, share: Tensor) -> Condition:
        """Return it multiplied row by row; `share` is [B, 1, 1]."""
        return Condition(self.mu * share, self.speaker * share[:, :, 0], self.cond * share)


class FlowStage(OneModel[TrainableFlow]):
    """The flow; speaker embeddings come from the trained encoder, which stays as it is."""

    name = "flow"

    def __init__(self, config: FlowConfig, streams: SpeechStreams, speaker: SpeakerNet, batch: int) -> None:
        """Build on the streams' device; the streams must have the column TOKENS."""
        self._streams, self._batch = streams, batch
        self._draw = random.Random(streams.seed)
        self._speaker = speaker.to(streams.device).eval().requires_grad_(False)
        super().__init__(TrainableFlow(config).to(streams.device), RATE)
        self._judge, self._steps, self._guidance = Judge(streams.device), 0, config.inference_cfg_rate

    def step(self, progress: float) -> Mapping[str, Tensor]:
        """Train flow and judge on one batch of windows."""
        prompt, target = self._draw.choice(PROMPT_TOKENS), self._draw.choice(TARGET_TOKENS)
        inputs, is_judged = self._drawn(prompt, target, is_validation=False), self._steps >= JUDGED_FROM
        self._steps += 1
        self._judge.prepare(progress)
        self._updater.prepare(progress)
        return self.replayer.run((prompt, target, is_judged), inputs, partial(self._trained, prompt, target, is_judged))

    @torch.no_grad()
    def validate(self) -> Mapping[str, float]:
        """Measure the average's losses, and how far its ten-step mel is from the source engine's."""
        model = self._average
        flow = model.finished().to(self._streams.device)
        # One size, so that figures of different runs compare.
        prompt, target = VALIDATION_PROMPT_TOKENS, VALIDATION_TARGET_TOKENS
        drawn = [self._drawn(prompt, target, is_validation=True) for _ in range(_VALIDATION_BATCHES)]
        placed = [{name: value.to(self._streams.device) for name, value in inputs.items()} for inputs in drawn]
        batches = [self._assembled(prompt, target, inputs) for inputs in placed]
        losses = mean_of(self._losses(model, batch) for batch in batches)
        return {**losses, **mean_of(_solved_distance(flow, batch) for batch in batches)}

    def _drawn(self, prompt: int, target: int, is_validation: bool) -> dict[str, Tensor]:
        """Draw where windows begin and how they are cut, on the CPU."""
        cut = draw_cut(self._draw, prompt, target)
        last_share = 0.0 if is_validation else LAST_SHARE  # the solver takes a batch's rows as they all are
        second = self._streams.draw(self._batch, target + LOOKAHEAD_TOKENS, is_validation)
        return {
            "first": self._streams.draw_for(second.speakers, prompt, is_validation),
            "second": second.starts,
            "is_last": torch.tensor([self._draw.random() < last_share for _ in range(self._batch)]),
            "blocks": blocks_of(cut),
            "history": history_of(cut),
        }

    def _trained(self, prompt: int, target: int, is_judged: bool, inputs: Inputs) -> Mapping[str, Tensor]:
        batch = self._assembled(prompt, target, inputs)
        losses = self._updated(self._losses(self._model, batch, is_judged))
        return {**losses, **self._judge.learn(batch.speech)}

    def _assembled(self, prompt: int, target: int, inputs: Inputs) -> FlowBatch:
        """Cut the windows out of the streams, with nothing but launches."""
        first, second = inputs["first"], inputs["second"]
        pieces = ((first, prompt), (second, target + LOOKAHEAD_TOKENS))
        tokens = torch.cat([self._streams.window(TOKENS, start, size) for start, size in pieces], 1)
        pieces = ((first, prompt), (second, target))
        mel = torch.cat([self._streams.window("mel", start, size) for start, size in pieces], 1).float()
        mel = mel.transpose(1, 2)
        frames = prompt * FRAMES_PER_TOKEN
        cond = mel.clone()
        cond[:, :, frames:] = 0
        plans = plans_for(inputs["blocks"], inputs["history"], prompt)
        speaker = self._embedding(first, prompt)
        phones = torch.cat([self._streams.window("phones", start, size) for start, size in pieces], 1).long()
        return FlowBatch(tokens.long(), inputs["is_last"], mel, cond, speaker, phones, frames, plans)

    @torch.no_grad()
    def _embedding(self, starts: Tensor, tokens: int) -> Tensor:
        energies = self._streams.window("fbank", starts, tokens).float()
        return torch.as_tensor(self._speaker(energies - energies.mean(1, keepdim=True)))

    def _losses(self, model: TrainableFlow, batch: FlowBatch, is_judged: bool = False) -> dict[str, Tensor]:
        mel, rows = batch.mel, len(batch.mel)
        noise = torch.randn_like(mel)
        time = 1 - torch.cos(0.5 * math.pi * torch.rand(rows, device=mel.device))
        at = time[:, None, None]
        keep = (torch.rand(rows, device=mel.device) >= UNCONDITIONAL_SHARE).float()[:, None, None]
        x = (1 - at) * noise + at * mel
        with autocast(mel.device):
            mu = model.encode(batch.tokens, batch.is_last, mel.shape[2], batch.plans)
            condition = Condition(mu, model.speaker(batch.speaker), batch.cond)
            velocity = model.velocity(x, *condition.times(keep), time, batch.plans).float()
        target = slice(batch.prompt_frames, None)
        error = functional.mse_loss(velocity[:, :, target], (mel - noise)[:, :, target])
        prior = functional.l1_loss(mu.float(), (mel - MEL_MEAN) / MEL_SCALE)
        losses = {"loss": error + PRIOR_WEIGHT * prior, "velocity": error, "prior": prior}
        if not is_judged:
            return losses
        one = self._judge.losses(x + (1 - at) * velocity, batch.speech, time / (_LATEST - time) * keep[:, 0, 0])
        # Half of the rows: a solver has many estimates.
        half = Condition(*(each[: rows // 2] for each in condition))
        solved = self._judge.losses(
            self._solved(model, half, batch.plans), batch.speech, torch.ones_like(time)[: rows // 2]
        )
        losses["loss"] = (
            losses["loss"]
            + PHONE_WEIGHT * one["phones"]
            + LAYER_WEIGHT * one["layers"]
            + SOLVED_PHONE_WEIGHT * solved["phones"]
            + SOLVED_LAYER_WEIGHT * solved["layers"]
        )
        return {**losses, **one, **{f"solved_{name}": value for name, value in solved.items()}}

    def _solved(self, model: TrainableFlow, condition: Condition, plans: FlowPlans) -> Tensor:
        """Return mel [B, 80, T] as the guided solver makes it of noise; the gradient comes from the last step alone."""
        x = torch.randn_like(condition.cond)
        free = condition.times(torch.zeros_like(x[:, :1, :1]))
        times = time_grid(SOLVED_STEPS).tolist()
        for now, then in pairwise(times):
            time = torch.full((len(x),), now, device=x.device)
            with torch.set_grad_enabled(then == times[-1]), autocast(x.device):
                given, without = (model.velocity(x, *each, time, plans).float() for each in (condition, free))
                x = x + (then - now) * ((1 + self._guidance) * given - self._guidance * without)
        return x


def _solved_distance(flow: Flow, batch: FlowBatch) -> dict[str, Tensor]:
    """Mean absolute difference (nats of log-mel) of the solved target mel from the true one."""
    lengths = batch.tokens.shape[1] - LOOKAHEAD_TOKENS * batch.is_last.long()
    rows, _, frames = batch.mel.shape
    embedded, size = flow.input_embedding(batch.tokens), frames // flow.config.encoder.up_stride
    hidden, _, _ = flow.encoder(embedded, lengths, batch.is_last, plans=batch.plans.encoder, size=size)
    mel, _ = flow.decoder(
        torch.randn_like(batch.mel),
        flow.encoder_proj(hidden).transpose(1, 2),
        flow.spk_embed_affine_layer(functional.normalize(batch.speaker, dim=1)),
        batch.cond,
        batch.plans.solver_mask.expand(rows, -1, -1, -1),
        torch.full((rows,), frames, device=batch.mel.device),
        VALIDATION_STEPS,
    )
    target = slice(batch.prompt_frames, None)
    return {"mel_distance": functional.l1_loss(mel[:, :, target], batch.mel[:, :, target])}
