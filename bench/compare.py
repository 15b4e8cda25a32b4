#!/usr/bin/env python3
"""Time fusegrad, the plain products and the peers in one run, and print the table.

    python3 bench/compare.py --device gpu --bin-dir build/cuda/bench > table.md

Programs run one after the other, round after round, every other round in the reverse order, so that a drift of the
machine's clocks hits all of them; the table has medians over rounds. Ratios are good within a run only. On a GPU two
seconds of products come first, since a cold card is faster.

The table goes to standard output, ready for docs/benchmarks.md, with the command, the date, the machine and the commit.
Every measurement of every round is a JSON line of --output. A program that crashes, runs out of time or is missing gives
lines with "error", and a cell that says so. The exit status is 1 if nothing was measured.
"""
import argparse
import datetime
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import table
from workloads import INFERENCE, TRAINING, names_for

ACTIVATIONS = ["relu", "gelu"]
HERE = Path(__file__).resolve().parent


class Job:
    """A program that is run once a round: how it is called, the workloads it measures, and the column it fills first,
    which its failures are put down to. `both` says that it knows the workloads of inference by their activations."""

    def __init__(self, command, workloads, peer, both=True):
        self.command = [str(part) for part in command]
        self.peer = peer
        self.rows = []
        for name in workloads:
            activations = ACTIVATIONS if both and name in INFERENCE else [None]
            self.rows += [{"workload": name} | ({"activation": kind} if kind else {}) for kind in activations]

    def run(self, timeout):
        """The lines that it printed; if it failed, an error for each row without any, or for the last one."""
        lines, error = run_program(self.command, timeout)
        if error:
            measured = {table.row_of(line) for line in lines}
            missing = [row for row in self.rows if table.row_of(row) not in measured] or self.rows[-1:]
            lines += [row | {"peer": self.peer, "error": error} for row in missing]
        return lines


def run_program(command, timeout):
    """(JSON lines of its output, what went wrong or None)."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            # In a session of its own, so that its own children end with it.
            child = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
        except OSError as problem:
            return [], f"cannot be run: {problem.strerror}"
        try:
            status = child.wait(timeout)
            error = None if status == 0 else f"exit status {status}"
            if status < 0:
                error = f"ended by {signal.Signals(-status).name}"
        except subprocess.TimeoutExpired:
            error = f"not done after {timeout:g} s"
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        out.seek(0)
        err.seek(0)
        said = err.read().strip().splitlines()
        if said:
            print("\n".join(said[-3:]), file=sys.stderr)
        if error and said:
            error += f": {said[-1][:160]}"
        return list(parsed(out)), error


def parsed(text):
    """The measurements among the lines of a program's output; the last one may be cut off."""
    for line in text:
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(value, dict) and "workload" in value and "peer" in value:
            yield value


def our_name(plans, mode):
    return ("fusegrad measured" if plans == "measure" else "fusegrad") + (" + graph" if mode == "graph" else "")


def jobs_for(args):
    """All programs of a round."""
    training = [name for name in args.workloads if name in TRAINING]
    inference = [name for name in args.workloads if name in INFERENCE]
    timing = ["--repeats", args.repeats, "--warm-up", args.warm_up]
    on_cpu = ["--threads", args.threads] if args.device == "cpu" else []
    jobs = []
    for program, names in (("train_step", training), ("inference", inference)):
        for mode in args.modes if names else []:
            for plans in args.plans:
                command = [args.bin_dir / program, "--device", args.device, "--workloads", ",".join(names), "--mode", mode,
                           "--plans", plans, *timing, *on_cpu]
                jobs.append(Job(command, names, our_name(plans, mode)))
    if args.device == "gpu":
        command = [args.bin_dir / "cuda/products_only", "--workloads", ",".join(args.workloads), *timing]
        jobs.append(Job(command, args.workloads, table.PRODUCTS, both=False))
    for peer in args.peers:
        names = training if peer == "jax" else [name for name in args.workloads if name != "P"]
        if names:
            command = [args.python, "-B", HERE / "peers.py", "--device", args.device, "--peers", peer, "--workloads",
                       ",".join(names), *timing, *on_cpu]
            jobs.append(Job(command, names, "jax jit" if peer == "jax" else "pytorch eager"))
    return jobs


def output_of(*command):
    """First line that a program prints; "" if there is no such program."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE)
    except OSError:
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""


def machine(device, threads):
    if device == "gpu":
        name, _, driver = output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").partition(", ")
        return f"{name or 'an unknown GPU'}, driver {driver or 'unknown'}"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "an unknown CPU")
    return f"{model}, {threads} threads"


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--bin-dir", type=Path, default=None, help="folder of train_step; default: build/cuda/bench or cpu")
    parser.add_argument("--workloads", default=None, help="comma-separated; default: all of the device's")
    parser.add_argument("--modes", default=None, help="of fusegrad: eager, graph or both; default: both on a GPU")
    parser.add_argument("--plans", default=None, help="heuristic, measure or both; default: both on a GPU")
    parser.add_argument("--peers", default="pytorch,jax", help="pytorch, jax, both (default) or an empty text")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=40, help="timed steps, or blocks of steps, a round")
    parser.add_argument("--warm-up", type=float, default=0.5, help="seconds of steps before each is timed")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="on a CPU")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one program in one round")
    parser.add_argument("--commit", default=None, help="what was built, where git cannot say it")
    parser.add_argument("--output", type=Path, default=Path("compare.jsonl"), help="file for the measurements")
    args = parser.parse_args(arguments)
    args.bin_dir = args.bin_dir or HERE.parent / "build" / ("cuda" if args.device == "gpu" else "cpu") / "bench"
    args.workloads = args.workloads.split(",") if args.workloads else [
        *names_for(TRAINING, args.device), *names_for(INFERENCE, args.device)]
    if unknown := [name for name in args.workloads if name not in TRAINING and name not in INFERENCE]:
        parser.error(f"there is no workload {unknown[0]}")
    args.modes = "eager,graph" if args.modes == "both" else args.modes
    args.plans = "heuristic,measure" if args.plans == "both" else args.plans
    args.peers = "pytorch,jax" if args.peers == "both" else args.peers
    args.modes = (args.modes or ("eager,graph" if args.device == "gpu" else "eager")).split(",")
    args.plans = (args.plans or ("heuristic,measure" if args.device == "gpu" else "heuristic")).split(",")
    args.peers = [peer for peer in args.peers.split(",") if peer]
    return args


def main(arguments=None):
    args = parse(arguments)
    jobs = jobs_for(args)
    if args.device == "gpu":
        run_program([str(args.bin_dir / "cuda/products_only"), "--workloads", "C", "--repeats", "4", "--warm-up", "2"],
                    args.timeout)
    lines = []
    with args.output.open("w", encoding="utf-8") as output:
        for turn in range(args.rounds):
            for job in jobs if turn % 2 == 0 else reversed(jobs):
                print(f"round {turn + 1} of {args.rounds}: {shlex.join(job.command)}", file=sys.stderr, flush=True)
                for line in job.run(args.timeout):
                    lines.append(line | {"round": turn + 1})
                    print(json.dumps(lines[-1]), file=output, flush=True)

    # Columns and rows in the order of the jobs and tables, whichever round they were measured in first.
    order = {name: i for i, name in enumerate([*TRAINING, *INFERENCE])}
    lines.sort(key=lambda line: (order[line["workload"].split(" ")[0]], line["round"]))
    commit = args.commit or output_of("git", "rev-parse", "--short=12", "HEAD") or "unknown"
    command = shlex.join(["python3", "bench/compare.py", *(sys.argv[1:] if arguments is None else arguments)])
    print(f"Microseconds a step, medians of {args.rounds} rounds, {machine(args.device, args.threads)}, "
          f"{datetime.date.today().isoformat()}, commit {commit}:\n\n```sh\n{command}\n```\n")
    print(table.markdown(lines))
    largest, cell = table.spread(lines)
    if cell:
        print(f"The rounds differ by up to {100 * (largest - 1):.0f} % ({cell[0]}, {cell[1]}).")
    sys.exit(0 if any("us" in line for line in lines) else 1)


if __name__ == "__main__":
    main()
