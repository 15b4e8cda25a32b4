#!/usr/bin/env python3
"""Time the peers' training step (forward, loss, backward, Adam) on the workloads.

One JSON object a line: {"workload", "peer", "policy", "device", "us", "peak_mib"}. `us` is the median of single-step times
(device events on a GPU, host clock on a CPU). Peers that are not installed are skipped with a line on standard error.
Run it beside our own benchmark in one go: only ratios within one run mean anything.
"""
import argparse
import json
import os
import statistics
import sys
import time

WORKLOADS = {  # name: (batch, layer widths, precision policy)
    "A": (128, [784, 512, 512, 16], "tf32"),
    "A2": (1024, [784, 1024, 1024, 1024, 16], "tf32"),
    "B": (1024, [784, 1024, 1024, 1024, 16], "bf16"),
    "mid": (4096, [2048, 2048, 2048, 2048, 2048], "bf16"),
    "C": (16384, [4096, 4096, 4096, 4096, 4096], "bf16"),
    "D": (8192, [4096, 16384, 4096], "bf16"),
    "E": (262144, [32, 64, 64, 64, 64, 16], "bf16"),
    "E2": (262144, [32, 128, 128, 128, 128, 16], "bf16"),
    "cpu-small": (32, [64, 64, 64, 10], "fp32"),
    "cpu-A": (128, [784, 512, 512, 10], "fp32"),
    "cpu-B": (1024, [784, 1024, 1024, 1024, 10], "fp32"),
    "cpu-E": (16384, [32, 64, 64, 64, 64, 16], "fp32"),
}


def report(workload, peer, policy, device, us, peak_mib=None):
    print(json.dumps({"workload": workload, "peer": peer, "policy": policy, "device": device, "us": round(us, 1), "peak_mib": peak_mib}), flush=True)


def bench_torch(names, device, threads, repeats):
    import torch
    from torch import nn

    torch.set_float32_matmul_precision("high")
    if device == "cpu":
        torch.set_num_threads(threads)
    on_gpu = device == "gpu"
    where = "cuda" if on_gpu else "cpu"

    def median_us(step):
        for _ in range(5):
            step()
        times = []
        for _ in range(repeats):
            if on_gpu:
                a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                a.record(); step(); b.record(); b.synchronize()
                times.append(a.elapsed_time(b) * 1e3)
            else:
                t = time.perf_counter(); step(); times.append((time.perf_counter() - t) * 1e6)
        return statistics.median(times)

    def captured(step, optimizer):
        side = torch.cuda.Stream(); side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph

    for name in names:
        batch, widths, policy = WORKLOADS[name]
        x, target = torch.randn(batch, widths[0], device=where), torch.randn(batch, widths[-1], device=where)
        for compiled in (False, True) if hasattr(torch, "compile") else (False,):
            layers = []
            for i in range(len(widths) - 1):
                layers.append(nn.Linear(widths[i], widths[i + 1]))
                if i < len(widths) - 2:
                    layers.append(nn.ReLU())
            net = nn.Sequential(*layers).to(where)
            optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, **({"fused": True, "capturable": True} if on_gpu else {}))

            def loss_of(x, target):
                with torch.autocast(where, torch.bfloat16, enabled=policy == "bf16"):
                    y = net(x)
                return nn.functional.mse_loss(y.float(), target)

            run = torch.compile(loss_of) if compiled else loss_of

            def step():
                optimizer.zero_grad(set_to_none=True)
                run(x, target).backward()
                optimizer.step()

            label = "pytorch compile" if compiled else "pytorch eager"
            try:
                step()
                if on_gpu:
                    torch.cuda.reset_peak_memory_stats()
                us = median_us(step)
                peak = round(torch.cuda.max_memory_allocated() / 2**20) if on_gpu else None
                report(name, label, policy, device, us, peak)
                if on_gpu:
                    graph = captured(step, optimizer)
                    report(name, label + " + graph", policy, device, median_us(graph.replay))
                    del graph
            except Exception as error:  # a peer that cannot run a workload is a line, not a stop
                print(f"{name} {label}: {error!r:.200}", file=sys.stderr)
            del net, optimizer
            if on_gpu:
                torch.cuda.empty_cache()
            torch._dynamo.reset() if hasattr(torch, "_dynamo") else None


def bench_jax(names, device, threads, repeats):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ.setdefault("XLA_FLAGS", f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}")
    import jax
    import jax.numpy as jnp
    import optax

    jax.config.update("jax_default_matmul_precision", "tensorfloat32")
    for name in names:
        batch, widths, policy = WORKLOADS[name]
        compute = jnp.bfloat16 if policy == "bf16" else jnp.float32
        key = jax.random.PRNGKey(0)
        params = [(jax.random.normal(key, (widths[i], widths[i + 1])) / widths[i] ** 0.5, jnp.zeros((widths[i + 1],))) for i in range(len(widths) - 1)]
        x, target = jax.random.normal(key, (batch, widths[0]), compute), jax.random.normal(key, (batch, widths[-1]))
        optimizer = optax.adam(1e-4)
        state = optimizer.init(params)

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

        step = jax.jit(step_of, donate_argnums=(0, 1))
        for _ in range(5):
            params, state, loss = step(params, state, x, target)
        loss.block_until_ready()
        times = []
        for _ in range(5):  # a run of steps without host synchronisation, as a training loop has
            t = time.perf_counter()
            for _ in range(repeats):
                params, state, loss = step(params, state, x, target)
            jax.block_until_ready(params)
            times.append((time.perf_counter() - t) / repeats * 1e6)
        report(name, "jax jit", policy, device, min(times))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--workloads", default=None, help="comma-separated; default: all of the device's")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=40)
    args = parser.parse_args()
    names = args.workloads.split(",") if args.workloads else [n for n in WORKLOADS if n.startswith("cpu") == (args.device == "cpu")]
    for bench in (bench_torch, bench_jax):
        try:
            bench(names, args.device, args.threads, args.repeats)
        except ImportError as error:
            print(f"skipped: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
