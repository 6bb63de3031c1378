"""The LLM's last stage: it draws answers itself, and is taught by what a reader hears in them.

Learning the next token of right answers does not tell the LLM what its own slips do: it skips a word whose sound it has
just said, or says it again. Here it draws answers, `TokenReader` tells where the text's sounds are not heard, and
the tokens drawn just before such a place become less likely, all others likelier. The usual loss goes on beside it and
keeps the voice. Source: REINFORCE (Williams 1992) with the mean as its baseline, looking a third of a second ahead; a
recogniser of tokens as the judge (CosyVoice 3, arXiv 2505.17589).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lab.train.models.llm import LLMStage, TrainableLLM
from lab.train.models.llm_data import (
    CONTROL,
    END_ROW,
    SOS_ROW,
    SPEECH,
    TASK_ROW,
    TEXT,
    Encoded,
    LLMBatch,
    UtteranceBank,
)
from lab.train.models.token_reader import Sounds, TokenReader, misread_at, sounds
from lab.train.sizes import LLMSizes
from lab.train.trainer import autocast

RATE = 1.5e-4
_WARM_UP_STEPS = 40
ANSWERS = 4
"""To each text of a step."""
TEMPERATURE = 0.3
"""Of the answers drawn; served ones are drawn at 0.2."""
LONGEST = 352
"""Most places of a prompt, and most tokens of an answer."""
_ROOM, _SPARE_TOKENS = 1.15, 12
"""An answer may be so many times as long as the teacher's, and so many tokens more."""
_BEHIND, _AHEAD = 1, 6
"""A token is to blame for what is misread from so many tokens before it to so many after it."""
_WORTH_NATS, _MOST_WORTH = 10.0, 4.0
"""So many nats misread count as 1; none counts for more than so much."""
_SLIP_NATS = 5.0
"""Misread at one token, they make an answer a slip, in what is logged."""
_WEIGHT = 5.0
"""Of what is heard, beside the usual loss."""
_END_CHECKS = 32


@dataclass(frozen=True)
class Answers:
    """What the LLM drew; B rows, P places of prompts, N of answers."""

    kinds: Tensor
    """[B, P + N] int64: prompts, padded in front, and answers."""
    rows: Tensor
    """[B, P + N] int64."""
    first: Tensor
    """[B] int64: place of the prompt's first row."""
    sizes: Tensor
    """[B] int64: speech tokens of the answer."""
    has_ended: Tensor
    """[B] bool: whether it drew an end before its room was used up."""
    prompt: int
    """P."""

    @property
    def token_ids(self) -> Tensor:
        """[B, N] int64, zeros behind each answer."""
        drawn = self.rows[:, self.prompt :]
        return drawn.masked_fill(torch.arange(drawn.shape[1], device=drawn.device) >= self.sizes[:, None], 0)


class Drawer:
    """Draws many answers at once, with keys and values kept; every step of a device's has one graph."""

    def __init__(
        self, model: TrainableLLM, device: torch.device, batch: int, prompt: int, answer: int, temperature: float
    ) -> None:
        """Make room.

        Args:
            model: is read anew at every draw.
            device: of the model.
            batch: answers at once.
            prompt: most places of a prompt.
            answer: most tokens of an answer.
            temperature: answers are drawn at.
        """
        self._temperature = temperature
        self._model, self._device, self._prompt, self._answer = model, device, prompt, answer
        config = model.decoder.config
        self._groups = config.num_key_value_heads
        self._size = config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, batch, self._groups, prompt + answer, self._size)
        kept = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._keys, self._values = torch.zeros((2, *shape), dtype=kept, device=device)
        self._kinds, self._rows = torch.zeros((2, batch, prompt + answer), dtype=torch.int64, device=device)
        self._first, self._room, self._sizes = torch.zeros((3, batch), dtype=torch.int64, device=device)
        self._place = torch.zeros((), dtype=torch.int64, device=device)
        self._has_ended = torch.zeros(batch, dtype=torch.bool, device=device)
        self._table = torch.zeros(0, device=device)
        self._step: Callable[[], None] | None = None

    @torch.no_grad()
    def draw(self, questions: Sequence[tuple[Sequence[int], Sequence[int], int]]) -> Answers:
        """Answer questions: text tokens, the prompt's speech tokens and the most tokens of the answer, of each.

        The answers are valid until the next draw.
        """
        kinds = np.full((len(questions), self._prompt), TEXT, np.int64)
        rows, first = np.zeros_like(kinds), np.zeros(len(questions), np.int64)
        for number, (text, speech, _) in enumerate(questions):
            size = len(text) + len(speech) + 2
            first[number] = self._prompt - size
            kinds[number, -size:] = [CONTROL, *[TEXT] * len(text), CONTROL, *[SPEECH] * len(speech)]
            rows[number, -size:] = [SOS_ROW, *text, TASK_ROW, *speech]
        self._kinds.fill_(SPEECH)
        self._rows.zero_()
        self._kinds[:, : self._prompt].copy_(torch.from_numpy(kinds))
        self._rows[:, : self._prompt].copy_(torch.from_numpy(rows))
        self._first.copy_(torch.from_numpy(first))
        self._room.copy_(torch.tensor([room for *_, room in questions]))
        self._sizes.zero_()
        self._has_ended.zero_()
        table = self._model.input_table()
        if self._table.shape != table.shape:
            self._table = torch.zeros_like(table)
        self._table.copy_(table)
        self._place.fill_(self._prompt)
        with autocast(self._device):
            self._prefill()
        for number in range(1, self._answer):
            self._go_on()
            if number % _END_CHECKS == 0 and bool((self._has_ended | (self._sizes >= self._room)).all()):
                break
        return Answers(self._kinds, self._rows, self._first, self._sizes, self._has_ended, self._prompt)

    def _prefill(self) -> None:
        places = torch.arange(self._prompt, device=self._device)
        is_before = places[None] <= places[:, None]
        mask = is_before & (places >= self._first[:, None])[:, None]
        mask = mask | torch.eye(self._prompt, dtype=torch.bool, device=self._device)  # padding sees itself
        hidden = self._embedded(self._kinds[:, : self._prompt], self._rows[:, : self._prompt])
        positions = (places - self._first[:, None]).clamp(min=0)
        out = self._decoded(hidden, positions, slice(0, self._prompt), mask)
        self._take(out[:, -1])

    def _go_on(self) -> None:
        """One token more for every answer: as it is once, then as a graph."""
        if self._step is not None:
            self._step()
            return
        self._next()
        if self._device.type == "cuda":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph, stream=torch.cuda.current_stream(self._device), capture_error_mode="thread_local"
            ):
                self._next()
            self._step = graph.replay

    def _next(self) -> None:
        """Read the answers' last tokens, and draw the ones behind."""
        place = self._place.view(1)
        kinds, rows = self._kinds.index_select(1, place), self._rows.index_select(1, place)
        positions = (place - self._first)[:, None]
        every = torch.arange(self._keys.shape[3], device=self._device)
        mask = ((every <= place) & (every >= self._first[:, None]))[:, None]
        with autocast(self._device):
            out = self._decoded(self._embedded(kinds, rows), positions, place, mask)
            self._place.add_(1)
            self._take(out[:, -1])

    def _take(self, hidden: Tensor) -> None:
        """Draw from the last hidden states [B, hidden], and put the tokens at the place."""
        logits = self._model.head(hidden).float() / self._temperature
        noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-20, 1 - 1e-7)))
        drawn = (logits + noise).argmax(-1)
        is_open = ~self._has_ended & (self._sizes < self._room)
        self._has_ended |= is_open & (drawn >= END_ROW)
        is_open &= drawn < END_ROW
        self._sizes.add_(is_open)
        self._rows.index_copy_(1, self._place.view(1), torch.where(is_open, drawn, 0)[:, None])

    def _embedded(self, kinds: Tensor, rows: Tensor) -> Tensor:
        return functional.embedding(self._model.table_rows(kinds, rows), self._table)

    def _decoded(self, hidden: Tensor, positions: Tensor, at: slice | Tensor, mask: Tensor) -> Tensor:
        """Run the decoder on rows [B, S, hidden] whose keys and values go to the places `at`; mask [B, S, seen]."""
        batch, length, _ = hidden.shape
        decoder = self._model.decoder
        cos, sin = (part[:, None] for part in decoder.rotary_emb(hidden.float(), positions))
        for number, layer in enumerate(decoder.layers):
            attention: Any = layer.self_attn
            normed = layer.input_layernorm(hidden)
            query, key, value = (
                project(normed).view(batch, length, -1, self._size).transpose(1, 2)
                for project in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            query, key = (_turned(part, cos, sin) for part in (query, key))
            keys, values = self._keys[number], self._values[number]
            if isinstance(at, slice):
                keys[:, :, at], values[:, :, at] = key.to(keys.dtype), value.to(keys.dtype)
                keys, values = keys[:, :, at], values[:, :, at]
            else:
                keys.index_copy_(2, at, key.to(keys.dtype))
                values.index_copy_(2, at, value.to(keys.dtype))
            # The queries that share a key lie behind one another, as if they were further places.
            grouped = query.to(keys.dtype).reshape(batch, self._groups, -1, self._size)
            folds = grouped.shape[2] // length
            seen = functional.scaled_dot_product_attention(grouped, keys, values, mask.repeat(1, folds, 1)[:, None])
            joined = seen.reshape(batch, -1, length, self._size).transpose(1, 2).reshape(batch, length, -1)
            hidden = hidden + attention.o_proj(joined)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return torch.as_tensor(decoder.norm(hidden))


def _turned(part: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = part.shape[-1] // 2
    return part * cos + torch.cat((-part[..., half:], part[..., :half]), -1) * sin


class HeardLLMStage(LLMStage):
    """Goes on with the LLM. Implements `Trainee`."""

    name = "heard"

    def __init__(
        self,
        sizes: LLMSizes,
        bank: UtteranceBank,
        device: torch.device,
        batch: int,
        reader: TokenReader,
        rate: float = RATE,
        longest: int = LONGEST,
    ) -> None:
        """Build on the device.

        Args:
            sizes: of the model.
            bank: what is asked and taught.
            device: of the model.
            batch: texts in a step; it has three quarters as many teachers' sequences.
            reader: the judge, trained.
            rate: the highest learning rate.
            longest: most places of a prompt, and most tokens of an answer; what is longer is not asked.
        """
        super().__init__(sizes, bank, device, max(1, batch * 3 // 4), rate=rate, warm_up=_WARM_UP_STEPS)
        self._reader, self._questions, self._longest = reader.to(device), batch, longest
        size = batch * ANSWERS
        self._drawer = Drawer(self._model, device, size, longest, longest, TEMPERATURE)

    def step(self, progress: float) -> Mapping[str, Tensor]:
        """Learn from one batch of teachers' sequences and one of own answers."""
        taught = LLMBatch(**{name: part.to(self._device) for name, part in next(self._drawn).items()})
        heard = self._asked()
        answers = self._drawer.draw([question for question, _ in heard for _ in range(ANSWERS)])
        wanted = Sounds.of([each for _, each in heard for _ in range(ANSWERS)], self._device)
        with torch.no_grad(), autocast(self._device):
            log_phones = self._reader(answers.token_ids, answers.sizes.clamp(min=1))
        nats, places = misread_at(log_phones, answers.sizes.clamp(min=1), wanted)
        self._updater.prepare(progress)
        usual = self._losses(self._model, taught)
        row, number, likely = self._likelihood(answers)
        blamed = blame(places)[row, number]
        worth = ((blamed.mean() - blamed) / _WORTH_NATS).clamp(min=-_MOST_WORTH)
        return self._updated(
            {
                **usual,
                "loss": usual["loss"] - _WEIGHT * (worth * likely).mean(),
                "usual": usual["loss"],
                "nats": nats.mean(),
                "slips": (places > _SLIP_NATS).any(1).float().mean(),
                "unended": (~answers.has_ended).float().mean(),
            }
        )

    def _asked(self) -> list[tuple[tuple[list[int], list[int], int], Any]]:
        """Draw questions whose answers' sounds are known, with these."""
        found: list[tuple[tuple[list[int], list[int], int], Any]] = []
        while len(found) < self._questions:
            for pairs in self._bank.sequences(self._questions):
                question = _question(pairs, self._longest)
                if question is not None and len(found) < self._questions:
                    found.append(question)
        return found

    def _likelihood(self, answers: Answers) -> tuple[Tensor, Tensor, Tensor]:
        """Return of every draw its answer, its number in that and the logarithm of its likelihood, [draws] each."""
        width = answers.rows.shape[1]
        at = (torch.arange(width, device=self._device) + answers.first[:, None]).clamp(max=width - 1)
        kinds, rows = answers.kinds.gather(1, at), answers.rows.gather(1, at)
        begin = answers.prompt - answers.first - 1  # where the first token is asked for
        count = answers.sizes + answers.has_ended
        longest = int((begin + count).max())
        places = torch.arange(longest, device=self._device)
        is_asked = (places >= begin[:, None]) & (places < (begin + count)[:, None])
        following = torch.cat([rows[:, 1:], rows[:, :1]], 1)[:, :longest]
        is_end = (places == (begin + answers.sizes)[:, None]) & answers.has_ended[:, None]
        targets = following.masked_fill(is_end, END_ROW)[is_asked]
        asked = is_asked.flatten().nonzero()[:, 0]
        batch = LLMBatch(kinds[:, :longest], rows[:, :longest], targets, asked)
        with autocast(self._device):
            logits = self._model.head(self._model(batch).flatten(0, 1)[asked])
        likely = -functional.cross_entropy(logits.float() / TEMPERATURE, targets, reduction="none")
        row, place = is_asked.nonzero(as_tuple=True)
        return row, place - begin[row], likely


def blame(places: Tensor) -> Tensor:
    """Return what each draw is to blame for, [B, N + 1] nats; the last may be an end.

    Args:
        places: [B, N] of `misread_at`.
    """
    sums = functional.pad(places, (_BEHIND, _AHEAD + 1)).cumsum(1)
    sums = functional.pad(sums, (1, 0))
    width = _BEHIND + 1 + _AHEAD
    return sums[:, width : width + places.shape[1] + 1] - sums[:, : places.shape[1] + 1]


def _question(pairs: Sequence[Encoded], longest: int) -> tuple[tuple[list[int], list[int], int], Any] | None:
    """Return what is asked and which sounds the answer should have; None where that is not known or too long."""
    last = pairs[-1][0]
    if last.phones is None:
        return None
    text = [row for _, ids in pairs for row in ids.tolist()]
    speech = [row for utterance, _ in pairs[:-1] for row in utterance.token_ids.tolist()]
    room = int(_ROOM * len(last.token_ids)) + _SPARE_TOKENS
    wanted = sounds(last.phones)
    if max(len(text) + len(speech) + 2, room) > longest or not len(wanted):
        return None
    return (text, speech, room), wanted
