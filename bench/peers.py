#!/usr/bin/env python3
"""Time PyTorch and JAX on the workloads of the benchmarks, as train_step and inference time fusegrad.

    python3 bench/peers.py --device gpu --workloads A,B,I1

One JSON object a measurement: {"workload", "peer", "mode", "policy", "device", "us", "peak_mib", "steps_per_wait"},
for inference also "activation". A step is forward, mean squared error, backward and Adam. Peers: "pytorch eager",
"pytorch compile", on a GPU each also " + graph" (a captured CUDA graph), and "jax jit".

mode "eager": single steps, each with a wait for the device; the median.
mode "graph" (captured graphs and jitted steps): blocks of steps back to back that take about 20 ms, one wait at the end
of each; the median over blocks. bf16 is autocast with fp32 parameters in PyTorch's training, bf16 parameters in its
inference, a cast of fp32 parameters inside the jitted step in JAX.
peak_mib is PyTorch's own count of device memory that its tensors hold, the largest since the network was made; JAX has
no count that can be reset.

A peer that is not installed is named on standard error, and a workload that a peer cannot run is a line with "error".
The exit status is 3 if none of the peers asked for is installed.
"""
import argparse
import json
import os
import statistics
import sys
import time

from workloads import INFERENCE, TRAINING, names_for

BLOCK_SECONDS = 0.02
MOST_STEPS_OF_A_BLOCK = 256


class Bench:
    """What a measurement is made with, and where it goes."""

    def __init__(self, args):
        self.device = args.device
        self.on_gpu = args.device == "gpu"
        self.threads = args.threads
        self.repeats = args.repeats
        self.warm_up = args.warm_up

    def report(self, workload, peer, policy, **rest):
        line = {"workload": workload, "peer": peer, "mode": "eager", "policy": policy, "device": self.device}
        print(json.dumps(line | rest), flush=True)

    def fail(self, workload, peer, policy, error, **rest):
        text = f"{type(error).__name__}: {error}".split("\n")[0][:200]
        self.report(workload, peer, policy, error=text, **rest)

    def time(self, step, wait, back_to_back):
        """{"us", "steps_per_wait", "mode"} of step(), which enqueues work that wait() waits for."""

        def block(steps):
            start = time.perf_counter()
            for _ in range(steps):
                step()
            wait()
            return (time.perf_counter() - start) / steps

        start = time.perf_counter()
        block(5)
        steps, estimate = 1, block(1)
        if back_to_back:
            for _ in range(2):  # one step from rest says too much of what is quick
                steps = int(min(max(BLOCK_SECONDS / estimate + 1, 1), MOST_STEPS_OF_A_BLOCK))
                estimate = block(steps)
        while time.perf_counter() - start < self.warm_up:
            block(steps)
        us = statistics.median(block(steps) for _ in range(self.repeats)) * 1e6
        return {"us": round(us, 1), "steps_per_wait": steps, "mode": "graph" if back_to_back else "eager"}


class Torch:
    """PyTorch, eager and compiled, each also as a CUDA graph."""

    name = "pytorch"

    def __init__(self, bench):
        import torch

        self.torch, self.bench = torch, bench
        self.where = "cuda" if bench.on_gpu else "cpu"
        if bench.on_gpu and not torch.cuda.is_available():
            raise ImportError("this PyTorch finds no GPU")
        if hasattr(torch, "set_float32_matmul_precision"):
            torch.set_float32_matmul_precision("high")  # tf32 on a GPU; CPUs have no such thing
        if not bench.on_gpu:
            torch.set_num_threads(bench.threads)

    def wait(self):
        if self.bench.on_gpu:
            self.torch.cuda.synchronize()

    def layers(self, widths, activation):
        nn = self.torch.nn
        layers = []
        for i, (inner, outer) in enumerate(zip(widths, widths[1:])):
            layers.append(nn.Linear(inner, outer))
            if i < len(widths) - 2 or len(widths) == 2:
                layers.append(nn.ReLU() if activation == "relu" else nn.GELU(approximate="tanh"))
        return nn.Sequential(*layers).to(self.where)

    def captured(self, step, prepare):
        cuda = self.torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(3):
                step()
        cuda.current_stream().wait_stream(side)
        prepare()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            step()
        return graph

    def measure(self, workload, policy, make, **rest):
        """Times make(compiled) -> (step, prepare for a capture), with and without the compiler and a graph."""
        torch, bench = self.torch, self.bench
        for compiled in (False, True) if hasattr(torch, "compile") else (False,):
            label = "pytorch compile" if compiled else "pytorch eager"
            try:
                if bench.on_gpu:
                    torch.cuda.reset_peak_memory_stats()
                step, prepare = make(compiled)
                timing = bench.time(step, self.wait, back_to_back=False)
                bench.report(workload, label, policy, peak_mib=self.peak_mib(), **timing, **rest)
            except Exception as error:  # a peer that cannot run a workload is a line, not a stop
                bench.fail(workload, label, policy, error, **rest)
            else:
                if bench.on_gpu:
                    try:
                        graph = self.captured(step, prepare)
                        timing = bench.time(graph.replay, self.wait, back_to_back=True)
                        bench.report(workload, label + " + graph", policy, peak_mib=self.peak_mib(), **timing, **rest)
                        del graph
                    except Exception as error:
                        bench.fail(workload, label + " + graph", policy, error, **rest)
            step = prepare = None
            if bench.on_gpu:
                torch.cuda.empty_cache()
            if hasattr(torch, "_dynamo"):
                torch._dynamo.reset()

    def peak_mib(self):
        return round(self.torch.cuda.max_memory_allocated() / 2**20, 1) if self.bench.on_gpu else None

    def train(self, workload):
        torch = self.torch
        batch, widths, policy = TRAINING[workload]

        def make(compiled):
            x = torch.randn(*batch, widths[0], device=self.where)
            target = torch.randn(*batch, widths[-1], device=self.where)
            net = self.layers(widths, "relu")
            for_a_gpu = {"fused": True, "capturable": True} if self.bench.on_gpu else {}
            optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, **for_a_gpu)

            def loss_of(x, target):
                with torch.autocast(self.where, torch.bfloat16, enabled=policy == "bf16"):
                    y = net(x)
                return torch.nn.functional.mse_loss(y.float(), target)

            run = torch.compile(loss_of) if compiled else loss_of

            def step():
                optimizer.zero_grad(set_to_none=True)
                run(x, target).backward()
                optimizer.step()

            return step, lambda: optimizer.zero_grad(set_to_none=True)

        self.measure(workload, policy, make)

    def infer(self, workload, activation):
        torch = self.torch
        batch, widths, policy = INFERENCE[workload]
        dtype = torch.bfloat16 if policy == "bf16" else torch.float32

        def make(compiled):
            x = torch.randn(*batch, widths[0], device=self.where).to(dtype)
            net = self.layers(widths, activation).to(dtype).eval()
            run = torch.compile(net) if compiled else net

            def step():
                with torch.no_grad():
                    return run(x)

            return step, lambda: None

        self.measure(workload, policy, make, activation=activation)


class Jax:
    """JAX, the whole step jitted, with optax's Adam."""

    name = "jax"

    def __init__(self, bench):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        if not bench.on_gpu:
            os.environ["JAX_PLATFORMS"] = "cpu"
            # XLA has no number of threads of its own: it takes the cores that the process may run on.
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: bench.threads])
        import jax
        import optax

        self.jax, self.optax, self.bench = jax, optax, bench
        if bench.on_gpu and jax.default_backend() != "gpu":
            raise ImportError("this JAX finds no GPU")
        jax.config.update("jax_default_matmul_precision", "tensorfloat32" if bench.on_gpu else "float32")

    def train(self, workload):
        try:
            self.train_or_raise(workload)
        except Exception as error:  # a peer that cannot run a workload is a line, not a stop
            self.bench.fail(workload, "jax jit", TRAINING[workload][2], error)

    def train_or_raise(self, workload):
        jax, jnp, optax = self.jax, self.jax.numpy, self.optax
        batch, widths, policy = TRAINING[workload]
        compute = jnp.bfloat16 if policy == "bf16" else jnp.float32
        keys = jax.random.split(jax.random.PRNGKey(0), len(widths) + 1)
        params = [(jax.random.normal(key, (inner, outer)) / inner**0.5, jnp.zeros((outer,)))
                  for key, inner, outer in zip(keys, widths, widths[1:])]
        x = jax.random.normal(keys[-1], (*batch, widths[0]), compute)
        target = jax.random.normal(keys[-2], (*batch, widths[-1]))
        optimizer = optax.adam(1e-4)

        def loss_of(params, x, target):
            h = x
            for i, (w, b) in enumerate(params):
                h = h @ w.astype(compute) + b.astype(compute)
                if i < len(params) - 1:
                    h = jax.nn.relu(h)
            return jnp.mean((h.astype(jnp.float32) - target) ** 2)

        def step_of(params, state, x, target):
            loss, grads = jax.value_and_grad(loss_of)(params, x, target)
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state, loss

        jitted = jax.jit(step_of, donate_argnums=(0, 1))
        now = [params, optimizer.init(params), None]

        def step():
            now[:] = jitted(now[0], now[1], x, target)

        timing = self.bench.time(step, lambda: jax.block_until_ready(now), back_to_back=True)
        self.bench.report(workload, "jax jit", policy, peak_mib=None, **timing)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--workloads", default=None, help="comma-separated; default: all of the device's")
    parser.add_argument("--activations", default="relu,gelu", help="of inference; default: both")
    parser.add_argument("--peers", default="pytorch,jax", help="pytorch, jax or both (default)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="on a CPU")
    parser.add_argument("--repeats", type=int, default=40, help="timed steps, or blocks of steps")
    parser.add_argument("--warm-up", type=float, default=0.5, help="seconds of steps before each is timed")
    args = parser.parse_args()
    names = args.workloads.split(",") if args.workloads else [
        *names_for(TRAINING, args.device), *(n for n in names_for(INFERENCE, args.device) if n != "P")]
    if unknown := [name for name in names if name not in TRAINING and name not in INFERENCE]:
        parser.error(f"there is no workload {unknown[0]}")
    installed = 0
    for kind in (Torch, Jax):
        if kind.name not in args.peers.split(","):
            continue
        try:
            peer = kind(Bench(args))
        except ImportError as error:
            print(f"peers.py: {kind.name} cannot be timed on this machine: {error}", file=sys.stderr)
            continue
        installed += 1
        for name in names:
            if name in TRAINING:
                peer.train(name)
            elif kind is Torch:
                for activation in args.activations.split(","):
                    peer.infer(name, activation)
    sys.exit(0 if installed else 3)


if __name__ == "__main__":
    main()
