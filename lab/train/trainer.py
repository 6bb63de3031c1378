"""Runs one stage of the training for a bounded time: resumes, logs JSON lines, keeps a small state.

The state holds the averaged weights in half precision and how far training has come, no optimiser moments: they are
as large as the weights twice over, and come back within the warm-up.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from lab.train.replay import Inputs, Replayer, Step

logger = logging.getLogger(__name__)

LOG_EVERY_S = 15.0
SAVE_EVERY_S = 90.0
WARM_UP_STEPS = 200
"""Warm-up steps of most runs: the optimiser's moments start empty."""
FINAL_RATE_SHARE = 0.02
"""Share of the learning rate at the end of the planned time."""
MAX_GRADIENT_NORM = 1.0
EMA_DECAY = 0.999
"""Decay of the averaged weights for each step; less in a run's first steps."""
_EMA_DELAY = 10
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class RunLimits:
    """How long one run may take, and the whole training it is part of."""

    wall_s: float
    """This run's seconds of training."""
    total_s: float
    """Planned seconds over all runs; the learning rate falls along them."""
    max_steps: int | None = None
    """Most steps, for dry runs; None: no bound."""


class StateError(Exception):
    """A saved state does not fit the models."""


class Trainee(Protocol):
    """One stage: what is trained, and how one step goes."""

    name: str
    replayer: Replayer
    """What runs its steps."""

    def parts(self) -> Mapping[str, nn.Module]:
        """Return what belongs into the state, by name."""
        ...

    def step(self, progress: float) -> Mapping[str, Tensor]:
        """Make one update at `progress` (0..1 of the planned time); return losses to log."""
        ...

    def averaged(self) -> Mapping[str, nn.Module]:
        """Return `parts` with averaged weights, where there are any."""
        ...

    def validate(self) -> Mapping[str, float]:
        """Measure on what is not trained on."""
        ...


class Updater(Generic[M]):
    """AdamW with warm-up, clipping and an average of the weights; an update never waits for the device."""

    def __init__(
        self, module: M, rate: float, betas: tuple[float, float] = (0.9, 0.98), warm_up: int = WARM_UP_STEPS
    ) -> None:
        """Take a module on its device, in float32; its learning rate reaches `rate` after `warm_up` steps."""
        self._module = module
        self._rate, self._warm_up = rate, warm_up
        self._steps = 0
        device = next(module.parameters()).device
        # Tensors: a captured update reads them where they are.
        self._rate_now = torch.zeros((), device=device)
        self._share_now = torch.zeros((), device=device)
        on_gpu = device.type == "cuda"
        self._optimiser = torch.optim.AdamW(
            _decayed(module), lr=self._rate_now, betas=betas, fused=on_gpu, capturable=on_gpu
        )
        for group in self._optimiser.param_groups:
            group["lr"] = self._rate_now  # itself, not a copy
        self.average = copy.deepcopy(module)

    def prepare(self, progress: float) -> None:
        """Set what changes from step to step; `update` comes next.

        Args:
            progress: 0..1 of the planned time.
        """
        self._rate_now.fill_(self._rate * _rate_share(self._steps, progress, self._warm_up))
        self._share_now.fill_(_average_share(self._steps))
        self._steps += 1

    def update(self, loss: Tensor, keeps_graph: bool = False) -> Tensor:
        """Go down the loss's gradient in the module's own parameters; returns the gradient's norm.

        Args:
            loss: scalar; the parameters of other modules get no gradient.
            keeps_graph: another module's update uses the loss's graph, too.
        """
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward(inputs=list(self._module.parameters()), retain_graph=keeps_graph)  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._module.parameters(), MAX_GRADIENT_NORM)
        self._optimiser.step()
        self._move_average()
        return norm

    @torch.no_grad()
    def _move_average(self) -> None:
        """Move the averages towards the current weights; buffers are copied."""
        averages: list[Tensor] = list(self.average.parameters())
        currents: list[Tensor] = list(self._module.parameters())
        ways = torch._foreach_sub(currents, averages)
        torch._foreach_mul_(ways, self._share_now)
        torch._foreach_add_(averages, ways)
        for own, current in zip(self.average.buffers(), self._module.buffers(), strict=True):
            own.copy_(current)


class OneModel(Generic[M]):
    """What stages of one model and one optimiser have in common."""

    def __init__(self, model: M, rate: float, warm_up: int = WARM_UP_STEPS) -> None:
        """Take a model on its device, in float32; see `Updater`."""
        self._model = model
        self._updater = Updater(model, rate, warm_up=warm_up)
        self.replayer = Replayer(next(model.parameters()).device)

    @property
    def _average(self) -> M:
        return self._updater.average

    def parts(self) -> Mapping[str, nn.Module]:
        """Return the model."""
        return {"model": self._model}

    def averaged(self) -> Mapping[str, nn.Module]:
        """Return its average."""
        return {"model": self._average}

    def _updated(self, losses: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Go down the `loss` among the losses; returns them with the gradient's norm."""
        return {**losses, "norm": self._updater.update(losses["loss"])}

    def _replayed(self, name: Hashable, inputs: Inputs, progress: float, losses_of: Step) -> Mapping[str, Tensor]:
        """Go down the `loss` of what `losses_of` returns for the inputs; see `Replayer.run`."""
        self._updater.prepare(progress)
        return self.replayer.run(name, inputs, lambda placed: self._updated(losses_of(placed)))


def train(trainee: Trainee, state_path: Path, log_path: Path, limits: RunLimits) -> Mapping[str, float]:
    """Train until the run's time is up; returns the last validation's figures.

    Args:
        trainee: freshly built; its parts take over the state's weights if there are any.
        state_path: read if it is there, written at the end and now and then before.
        log_path: JSON lines are appended.
        limits: when to stop.
    """
    steps_before, seconds_before = load_state(state_path, trainee.parts())
    began = saved = logged = time.monotonic()
    sums: defaultdict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()  # not every step has every loss
    steps = 0
    while not _is_over(limits, steps, time.monotonic() - began):
        elapsed = time.monotonic() - began
        losses = trainee.step(min(1.0, (seconds_before + elapsed) / limits.total_s))
        steps += 1
        for name, value in losses.items():
            sums[name] += value.detach()  # type: ignore[assignment]  # stays on the device until it is logged
            counts[name] += 1
        now = time.monotonic()
        if now - logged > LOG_EVERY_S or _is_over(limits, steps, now - began):
            means = {name: float(value) / counts[name] for name, value in sums.items()}
            _log(log_path, trainee.name, steps_before + steps, seconds_before + now - began, means)
            sums.clear()
            counts.clear()
            logged = now
        if now - saved > SAVE_EVERY_S:
            save_state(state_path, trainee.averaged(), steps_before + steps, seconds_before + now - began)
            saved = now
    seconds = seconds_before + time.monotonic() - began
    save_state(state_path, trainee.averaged(), steps_before + steps, seconds)
    figures = trainee.validate()
    _log(log_path, trainee.name, steps_before + steps, seconds, {f"valid_{k}": v for k, v in figures.items()})
    return figures


def save_state(path: Path, parts: Mapping[str, nn.Module], steps: int, seconds: float) -> None:
    """Write weights in half precision and the progress; never leaves half a file."""
    weights = {part: {k: _halved(v) for k, v in module.state_dict().items()} for part, module in parts.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    torch.save({"weights": weights, "steps": steps, "seconds": seconds}, partial)
    partial.replace(path)


def load_state(path: Path, parts: Mapping[str, nn.Module]) -> tuple[int, float]:
    """Load a state into the modules; returns steps and seconds so far, zeros where there is no state.

    Raises:
        StateError: the state is of other sizes.
    """
    if not path.is_file():
        return 0, 0.0
    state = torch.load(path, map_location="cpu", weights_only=True)
    for part, module in parts.items():
        weights = {
            key: value.float() if value.is_floating_point() else value for key, value in state["weights"][part].items()
        }
        _require_same_shapes(path, weights, module.state_dict())
        module.load_state_dict(weights)
    return int(state["steps"]), float(state["seconds"])


def load_part(path: Path, part: str, module: nn.Module, prefix: str = "") -> None:
    """Load what is called `prefix...` of one part of a state into a module.

    Raises:
        StateError: the state is of other sizes.
    """
    weights = torch.load(path, map_location="cpu", weights_only=True)["weights"][part]
    own = {
        name.removeprefix(prefix): value.float() if value.is_floating_point() else value
        for name, value in weights.items()
        if name.startswith(prefix)
    }
    _require_same_shapes(path, own, module.state_dict())
    module.load_state_dict(own)


def steps_done(path: Path) -> int:
    """Return the steps of a state, 0 where there is none."""
    return int(torch.load(path, map_location="cpu", weights_only=True)["steps"]) if path.is_file() else 0


def read_log(path: Path) -> list[dict[str, float | str]]:
    """Return a log's records."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _is_over(limits: RunLimits, steps: int, elapsed_s: float) -> bool:
    return elapsed_s >= limits.wall_s or (limits.max_steps is not None and steps >= limits.max_steps)


def _rate_share(steps: int, progress: float, warm_up: int) -> float:
    """Linear warm-up times a cosine over the planned time."""
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return min(1.0, (steps + 1) / warm_up) * (FINAL_RATE_SHARE + (1 - FINAL_RATE_SHARE) * cosine)


def _decayed(module: nn.Module) -> list[dict[str, object]]:
    """Matrices decay; gains, biases and tables of vectors don't."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        is_matrix = parameter.dim() > 1 and "embed" not in name and not name.endswith(("original0", "original1"))
        (matrices if is_matrix else others).append(parameter)
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _average_share(steps: int) -> float:
    """Share of the way to the current weights that the average goes; large at first: short runs are averages too."""
    return 1 - min(EMA_DECAY, (1 + steps) / (_EMA_DELAY + steps)) if steps else 1.0


def _require_same_shapes(path: Path, got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    shapes = [{name: tuple(value.shape) for name, value in tensors.items()} for tensors in (got, expected)]
    wrong = sorted(name for name in {*got, *expected} if shapes[0].get(name) != shapes[1].get(name))
    if wrong:
        name = wrong[0]
        raise StateError(
            f"{path}: {len(wrong)} tensors differ, e.g. {name}: got {shapes[0].get(name)}, expected "
            f"{shapes[1].get(name)}; train with the sizes it was made with, or start anew"
        )


def _halved(value: Tensor) -> Tensor:
    return value.detach().cpu().half() if value.is_floating_point() else value.detach().cpu()


def _log(path: Path, stage: str, steps: int, seconds: float, figures: Mapping[str, float]) -> None:
    record = {
        "stage": stage,
        "steps": steps,
        "seconds": round(seconds, 1),
        **{k: round(v, 5) for k, v in figures.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    logger.info("%s", json.dumps(record))


def mean_of(losses: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    """Average the losses of several batches."""
    sums: defaultdict[str, list[float]] = defaultdict(list)
    for batch in losses:
        for name, value in batch.items():
            sums[name].append(float(value))
    return {name: sum(values) / len(values) for name, values in sums.items()}


def autocast(device: torch.device) -> torch.autocast:
    """Return a context: bfloat16 products on a GPU, float32 on a CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
