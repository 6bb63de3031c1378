"""Capacity without GPUs: the real gateway, router and token2wav scheduler in virtual time, over a fitted cost model.

    python -m lab.simulate fit         measurements -> cost model
    python -m lab.simulate compare     simulated against measured, run by run
    python -m lab.simulate predict     runs that were not measured yet
    python -m lab.simulate fleet       many replicas: load steps, a lost replica, a rolling update
    python -m lab.simulate curves      listeners and waiting times by GPUs
    python -m lab.simulate written     a text that is still being written: by clauses, and interleaved in the LLM
    python -m lab.simulate admission   whom one GPU host refuses, below its capacity and beyond

Nothing is sent and nothing sleeps; the same command gives the same figures.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.end_to_end import ENVIRONMENT_FILE, add_run_lengths
from benchmarks.figures import read_runs
from benchmarks.lib.plot import figure_class
from benchmarks.lib.points import LISTENERS_A_GATEWAY, GPUs, measured_json, unit_json
from benchmarks.lib.sweep import FinishedRun, RunPlan, SweepLoad
from cosydit.bench.load import LoadPlan
from cosydit.bench.report import aligned_table, describe_environment, write_json
from cosydit.bench.types import BenchmarkError
from lab.simulate.admission import simulate_admission
from lab.simulate.compare import (
    AIM,
    DRAWS,
    compare,
    comparison_json,
    comparison_rows,
    drawn_figures,
    median_figures,
    worst_errors,
)
from lab.simulate.costs import CostModel, cost_json, read_cost_model
from lab.simulate.curves import POINT_DRAWS, simulated_points
from lab.simulate.fit import PARAMETERS, figures_of, first_guess, fit, fit_step, step_points
from lab.simulate.fleet import simulate_fleet
from lab.simulate.listeners import most_listeners
from lab.simulate.plot import draw_fleets
from lab.simulate.scenarios import SCENARIOS, FleetSize, fleet_figures, fleet_timeline, plan_json
from lab.simulate.single_gpu import VOICES, simulate_plans
from lab.simulate.written import MODES, SHOWN, TEXTS, WORDS_PER_S, Speeds, rounded
from lab.simulate.written import compare as compare_written

RESULTS = Path("benchmarks/results")
MODEL = RESULTS / "cost_model_h200.json"
ADMISSION_MODEL = RESULTS / "cost_model_h200_first_load.json"
FIT_CLOSED, FIT_OPEN = (1, 16, 32, 64), (12.0, 20.0, 32.0)
FIT_OPEN_S, FIT_OPEN_TAIL_S = 30.0, 3.0
"""Seconds of an open loop's arrivals that are simulated, and the last ones of them that are left out."""
FIT_BURSTS = (50,)
CURVES = RESULTS / "simulated_curves_h200.json"
ARRANGEMENTS = (
    (GPUs(llm=1, token2wav=1), (50, 100, 200, 300, 325, 350, 375, 400, 425)),
    (GPUs(llm=1, token2wav=2), (100, 200, 300, 350, 375, 400, 425, 450, 475)),
    (GPUs(llm=1, token2wav=3), (100, 200, 300, 350, 375, 400, 425, 450, 475)),
)
"""Arrangements, and the numbers of listeners to try: close to each other where the waiting time begins to rise."""
FLEET_PLOT = "fleet.webp"
LISTENERS = (500, 550, 600, 650, 700, 750, 800)
LISTEN_S = 12.0
ADMISSION_RATES, ADMISSION_S = (20.0, 32.0, 64.0, 80.0, 100.0, 200.0), 15.0
EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    args = _parser().parse_args(argv)
    logging.disable(logging.WARNING)  # a log line for each simulated request
    try:
        return int(args.run(args))
    except (BenchmarkError, OSError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return EXIT_USAGE
    finally:
        logging.disable(logging.NOTSET)


def run_fit(args: argparse.Namespace) -> int:
    """Fit the cost model and write it with its sources."""
    engine = json.loads(args.engine.read_text("utf-8"))
    points = step_points(engine["raw"])
    step = fit_step(points)
    load = SweepLoad(tuple(args.callers), tuple(args.rates))
    runs = _chosen(args.end_to_end, [plan.name for plan in load.plans(VOICES)])
    plans, heads = _plans_to_fit(runs)
    targets = {name: figures_of(run, heads[name]) for name, run in runs.items()}
    guess = first_guess(args.gpu, step) if args.guess is None else read_cost_model(args.guess)
    found = fit(
        replace(guess, token2wav=replace(guess.token2wav, step=step)),
        _SimulatedFigures(tuple(plans), heads),
        targets,
        simulations=args.simulations,
        note=_note,
        processes=args.processes,
    )
    errors = [{"streams": s, "tokens": t, "measured_s": m, "error": step.of(s, t) / m - 1.0} for s, t, m in points]
    content = {
        "model": cost_json(found.model),
        "fit": {
            "token2wav_steps": errors,
            "end_to_end_runs": heads,
            "targets": targets,
            "parameters": list(PARAMETERS),
            "guess": cost_json(guess),
            "loss": found.loss,
            "simulations": found.simulations,
        },
        "sources": {
            "engine": {"file": args.engine.name, "environment": engine["environment"]},
            "end_to_end": {
                "directory": args.end_to_end.name,
                **json.loads((args.end_to_end / ENVIRONMENT_FILE).read_text("utf-8")),
            },
        },
    }
    write_json(args.out, content)
    rows = [["parameter", "value"], *([path, f"{found.model.parameter(path):.4g}"] for path in PARAMETERS)]
    print(aligned_table(rows), end="")
    return 0


@dataclass(frozen=True)
class _SimulatedFigures:
    """What a fit simulates."""

    plans: tuple[RunPlan, ...]
    heads: Mapping[str, int | None]
    """Number of first requests to take of each run; see `_plans_to_fit`."""

    def __call__(self, model: CostModel, seed: int) -> dict[str, dict[str, float]]:
        runs = simulate_plans(model, self.plans, FIT_BURSTS, seed)
        return {run.name: figures_of(run, self.heads[run.name]) for run in runs}


def _plans_to_fit(runs: Mapping[str, FinishedRun]) -> tuple[list[RunPlan], dict[str, int | None]]:
    """Return what to simulate for a fit, and by name how many of the requests are looked at (None: all).

    Of an open loop the beginning says what the whole says.
    """
    plans: list[RunPlan] = []
    heads: dict[str, int | None] = {}
    for run in runs.values():
        plan = plan_again(run, VOICES)
        rate = plan.load.requests_per_s
        if rate is None:
            plans.append(plan)
            heads[plan.name] = None
        else:
            plans.append(replace(plan, load=replace(plan.load, requests=round(FIT_OPEN_S * rate))))
            heads[plan.name] = round((FIT_OPEN_S - FIT_OPEN_TAIL_S) * rate)
    return plans, heads


def _chosen(directory: Path, names: Sequence[str]) -> dict[str, FinishedRun]:
    runs = read_runs(directory)
    if missing := [name for name in names if name not in runs]:
        raise BenchmarkError(f"{directory} has no runs {missing}, which the fit needs; choose others")
    return {name: runs[name] for name in names}


def run_compare(args: argparse.Namespace) -> int:
    """Simulate the measured runs and say how far off they come out."""
    environment = _environment(args)
    costs = read_cost_model(args.model)
    fitted = json.loads(args.model.read_text("utf-8"))["fit"]["end_to_end_runs"]
    measured = read_runs(args.end_to_end)
    plans = [plan_again(run, VOICES) for run in measured.values() if not run.is_unseen]
    runs = compare(median_figures(drawn_figures(costs, plans, args.draws, args.processes)), measured, fitted)
    engine = json.loads(args.engine.read_text("utf-8"))["figures"]["realtime_streams"]
    trials = most_listeners(costs, list(LISTENERS), LISTEN_S)
    held = max((trial.listeners for trial in trials if not trial.underruns), default=0)
    listeners = {"measured": engine, "simulated": held, "error": held / engine - 1.0}
    content = {
        "aim": AIM,
        "runs": comparison_json(runs),
        "worst_error_of_runs_left_out": worst_errors(runs),
        "realtime_streams_token2wav_alone": {**listeners, "trials": [asdict(trial) for trial in trials]},
        "environment": environment,
    }
    write_json(args.out, content)
    print(aligned_table(comparison_rows(runs)), end="")
    print(f"real-time listeners, token2wav alone: {engine} -> {held} ({100 * listeners['error']:+.0f} %)")
    return 0


def run_predict(args: argparse.Namespace) -> int:
    """Simulate runs that were not measured; each figure is the median over the draws."""
    environment = _environment(args)
    costs = read_cost_model(args.model)
    load = SweepLoad(tuple(args.callers), tuple(args.rates), args.open_s, args.requests_a_caller)
    plans = load.plans(VOICES)
    drawn = drawn_figures(costs, plans, args.draws, args.processes)
    loads = {plan.name: asdict(plan.load) for plan in plans}
    figures = {name: {"load": loads[name], **each} for name, each in median_figures(drawn).items()}
    sweep = f"--closed {' '.join(map(str, args.callers))} --open {' '.join(f'{rate:g}' for rate in args.rates)}"
    sweep += f" --open-s {args.open_s:g} --requests-a-caller {args.requests_a_caller}"
    content = {
        "measure_with": f"python -m benchmarks.end_to_end {sweep}, the services as benchmarks/gpu.sh starts them",
        "predictions": figures,
        "draws": drawn,
        "model": cost_json(costs),
        "environment": environment,
    }
    write_json(args.out, content)
    columns = [name for name in next(iter(figures.values())) if name != "load"]
    rows = [["run", *columns], *([name, *(f"{each[c]:.4g}" for c in columns)] for name, each in figures.items())]
    print(aligned_table(rows), end="")
    return 0


def run_fleet(args: argparse.Namespace) -> int:
    """Simulate a fleet in one scenario after another."""
    environment = _environment(args)
    costs = read_cost_model(args.model)
    if not args.no_plot:
        figure_class()
    size = FleetSize(args.listeners, args.token2wav, args.llms, args.gateways, args.seconds)
    for name in args.scenario:
        plan = SCENARIOS[name](size)
        began_s = time.process_time()
        run = simulate_fleet(costs, plan)
        figures = {**fleet_figures(plan, run), "cpu_s": time.process_time() - began_s}
        content = {"figures": figures, "plan": plan_json(plan), "timeline": fleet_timeline(run)}
        write_json(args.out / f"{name}.json", {**content, "model": cost_json(costs), "environment": environment})
        print(f"{name}: {json.dumps(figures)}", flush=True)
    if not args.no_plot:
        written = {name: args.out / f"{name}.json" for name in SCENARIOS}
        runs = {name: json.loads(path.read_text("utf-8")) for name, path in written.items() if path.exists()}
        draw_fleets(args.out / FLEET_PLOT, {name: run["timeline"] for name, run in runs.items()})
    return 0


def run_curves(args: argparse.Namespace) -> int:
    """Write points as `cosydit plan` reads them."""
    environment = _environment(args)
    costs = read_cost_model(args.model)
    arrangements = [measured_json(GPUs(llm=0, token2wav=1), args.end_to_end.name, read_runs(args.end_to_end))]
    simulated = {"kind": "simulated", "text": f"utterances of 4 to 12 s, {args.draws} draws, {args.model.name}"}
    for gpus, listeners in ARRANGEMENTS:
        points = simulated_points(costs, gpus, listeners, args.seconds, args.draws, args.processes)
        arrangements.append(unit_json(gpus, points, simulated))
    alone = json.loads(args.engine.read_text("utf-8"))["figures"]["realtime_streams"]
    content = {
        "gpu": costs.gpu,
        "token2wav_alone": f"{alone} listeners on one GPU, chunks of 1 s, no bound on the time to first audio",
        "listeners_a_gateway": LISTENERS_A_GATEWAY,
        "arrangements": arrangements,
        "environment": environment,
    }
    write_json(args.out, content)
    rows = [["LLM", "token2wav", "listeners", "p50 ms", "p95 ms", "ran dry", "hearing", "held"]]
    for each in arrangements:
        for point in each["points"]:
            names = ("listeners", "ttfa_p50_ms", "ttfa_p95_ms", "underrun_ratio", "hearing_ratio")
            figures = [f"{point[name]:.4g}" for name in names]
            rows.append([str(each["llm_gpus"]), str(each["token2wav_gpus"]), *figures, str(point["is_held"])])
    print(aligned_table(rows), end="")
    return 0


def run_written(args: argparse.Namespace) -> int:
    """Compare both ways to speak a text that is still being written."""
    speeds = Speeds(args.prompt_s, args.token_s, args.chunk_s, args.chunk_token_s)
    texts = TEXTS[: args.texts]
    found = compare_written(args.words_per_s, speeds, texts)
    rows = [["voice", "words/s", *(f"{name} {mode}" for name in SHOWN for mode in (*MODES, "ratio"))]]
    for voice, paces in found.items():
        for pace, modes in paces.items():
            figures = [modes[mode][name] for name in SHOWN for mode in (*MODES, "ratio")]
            rows.append([voice, pace, *(f"{figure:.2f}" for figure in figures)])
    content = {"seconds": rounded(found), "texts": len(texts), "speeds": asdict(speeds)}
    write_json(args.out, {**content, "environment": _environment(args)})
    print(aligned_table(rows), end="")
    return 0


def run_admission(args: argparse.Namespace) -> int:
    """Simulate the rates on one GPU host, and say who was refused and who heard gaps."""
    costs = read_cost_model(args.model)
    heard = {rate: simulate_admission(costs, rate, args.seconds) for rate in args.rates}
    told = {rate: asdict(found) for rate, found in heard.items()}
    write_json(args.out, {"rates": told, "environment": _environment(args)})
    head = ("requests", "refused", "refused after it", "ran dry", "s short", "ttfa p95 ms", "audio s/s")
    rows = [["requests/s", *head]]
    for rate, found in heard.items():
        counts = (found.requests, found.refused, found.refused_recovered, found.ran_dry)
        seconds = [f"{found.short_s:.1f}", f"{1000 * found.ttfa_p95_s:.0f}", f"{found.audio_s_per_s:.0f}"]
        rows.append([f"{rate:g}", *map(str, counts), *seconds])
    print(aligned_table(rows), end="")
    return 0


def plan_again(run: FinishedRun, voices: Sequence[str]) -> RunPlan:
    """Return the plan that a finished run was made by, in so many voices."""
    return RunPlan(run.name, LoadPlan(**run.load), tuple(voices), run.is_unseen)


def _note(simulation: int, loss: float) -> None:
    print(f"simulation {simulation}: loss {loss:.4f}", file=sys.stderr, flush=True)


def _environment(args: argparse.Namespace) -> dict[str, Any]:
    """Return what is about to run and where; a commit that comes meanwhile is not what runs."""
    return describe_environment({name: str(value) for name, value in vars(args).items() if name != "run"})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_fit(commands)
    _add_compare(commands)
    _add_predict(commands)
    _add_fleet(commands)
    _add_curves(commands)
    _add_written(commands)
    _add_admission(commands)
    return parser


def _add_fit(commands: Any) -> None:
    parser = commands.add_parser("fit", help="find the cost model's parameters from measurements")
    parser.add_argument("--gpu", default="h200", help="name of the GPU in the model (default %(default)s)")
    _add_sources(parser)
    _add_load(parser, FIT_CLOSED, FIT_OPEN)
    parser.add_argument("--guess", type=Path, help="JSON of an earlier `fit`, where the search begins")
    parser.add_argument(
        "--simulations", type=int, default=64, help="number of simulations of the search (default %(default)s)"
    )
    _add_processes(parser)
    parser.add_argument("--out", type=Path, default=MODEL, help="JSON to write (default %(default)s)")
    parser.set_defaults(run=run_fit)


def _add_compare(commands: Any) -> None:
    parser = commands.add_parser("compare", help="simulate what was measured and print the errors")
    _add_sources(parser)
    _add_model(parser)
    _add_draws(parser)
    parser.add_argument("--out", type=Path, default=RESULTS / "simulator_h200.json", help="JSON to write")
    parser.set_defaults(run=run_compare)


def _add_predict(commands: Any) -> None:
    parser = commands.add_parser("predict", help="simulate runs that were not measured")
    _add_model(parser)
    _add_load(parser, (24, 48), (15.0, 25.0))
    add_run_lengths(parser)
    _add_draws(parser)
    parser.add_argument("--out", type=Path, default=RESULTS / "prediction_h200.json", help="JSON to write")
    parser.set_defaults(run=run_predict)


def _add_fleet(commands: Any) -> None:
    size = FleetSize()
    parser = commands.add_parser("fleet", help="simulate many listeners over many replicas")
    _add_model(parser)
    parser.add_argument(
        "--scenario",
        nargs="*",
        choices=list(SCENARIOS),
        default=list(SCENARIOS),
        help="scenario to simulate (default: all)",
    )
    parser.add_argument(
        "--listeners", type=int, default=size.listeners, help="number of listeners at once (default %(default)s)"
    )
    parser.add_argument("--token2wav", type=int, default=size.token2wav, help="token2wav servers (default %(default)s)")
    parser.add_argument("--llms", type=int, default=size.llms, help="LLM servers (default %(default)s)")
    parser.add_argument(
        "--gateways", type=int, default=size.gateways, help="number of gateway processes (default %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=size.seconds, help="simulated seconds (default %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "simulated_fleet", help="directory for a JSON of each scenario"
    )
    parser.add_argument("--no-plot", action="store_true", help="write no PNG (it needs matplotlib)")
    parser.set_defaults(run=run_fleet)


def _add_curves(commands: Any) -> None:
    parser = commands.add_parser("curves", help="simulate GPUs under ascending numbers of listeners")
    _add_sources(parser)
    _add_model(parser)
    seconds = "simulated seconds for each point; listeners come in the first ten (default %(default)s)"
    parser.add_argument("--seconds", type=float, default=40.0, help=seconds)
    _add_draws(parser, POINT_DRAWS)
    parser.add_argument("--out", type=Path, default=CURVES, help="JSON to write (default %(default)s)")
    parser.set_defaults(run=run_curves)


def _add_admission(commands: Any) -> None:
    parser = commands.add_parser("admission", help="simulate whom one GPU host refuses, below its capacity and beyond")
    parser.add_argument("--model", type=Path, default=ADMISSION_MODEL, help="cost model (default %(default)s)")
    parser.add_argument("--rates", type=float, nargs="+", default=ADMISSION_RATES, help="requests a second to try")
    parser.add_argument("--seconds", type=float, default=ADMISSION_S, help="of arrivals (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    parser.set_defaults(run=run_admission)


def _add_written(commands: Any) -> None:
    parser = commands.add_parser("written", help="compare two ways to speak a text that is still being written")
    parser.add_argument("--words-per-s", type=float, nargs="+", default=list(WORDS_PER_S), help="of the writer")
    parser.add_argument("--texts", type=int, default=len(TEXTS), help="how many, 12 at most (default %(default)s)")
    whats = ("a prompt of the LLM", "a token of the LLM", "a chunk of token2wav", "each token of a chunk")
    for (name, seconds), what in zip(asdict(Speeds()).items(), whats, strict=True):
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=float, default=seconds, help=f"{what}, seconds (default %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS / "interleaved_cpu.json", help="JSON to write")
    parser.set_defaults(run=run_written)


def _add_sources(parser: argparse.ArgumentParser) -> None:
    engine, runs = RESULTS / "h200_engine.json", RESULTS / "h200_capacity"
    parser.add_argument("--engine", type=Path, default=engine, help="JSON of benchmarks.engine_gpu")
    parser.add_argument("--end-to-end", type=Path, default=runs, help="directory of benchmarks.end_to_end")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=MODEL, help="JSON that `fit` wrote (default %(default)s)")


def _add_draws(parser: argparse.ArgumentParser, draws: int = DRAWS) -> None:
    text = "simulate so often, with other times of the steps, and take the medians (default %(default)s)"
    parser.add_argument("--draws", type=int, default=draws, help=text)
    _add_processes(parser)


def _add_processes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--processes", type=int, default=1, help="number of processes that simulate at once (default %(default)s)"
    )


def _add_load(parser: argparse.ArgumentParser, callers: Sequence[int], rates: Sequence[float]) -> None:
    parser.add_argument(
        "--callers", type=int, nargs="*", default=list(callers), help="numbers of callers of the closed loops"
    )
    parser.add_argument(
        "--rates",
        type=float,
        nargs="*",
        default=list(rates),
        help="rates of the open loops, in requests a second (Poisson)",
    )


if __name__ == "__main__":
    sys.exit(main())
