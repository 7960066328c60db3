"""Record the planted programs: traces plus TRUTH.json with unprofiled step times.

python -m zoo.record --out DIR [--ranks 2] [--budget SECONDS] [CASE ...]

The parent starts one worker per rank, which run the cases one after another. When a
case fails or hangs, the workers are ended and new ones go on with the next case, so
that one bad program costs only itself.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import gzip
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MARK = "@@ "


# ---------------------------------------------------------------- worker: one rank


def work(names: list[str], out: Path) -> None:
    import torch.distributed as dist

    import zoo.programs  # noqa: F401
    from zoo import harness as h

    if h.WORLD > 1:
        options = {} if h.DRY else {"device_id": h.DEV}
        dist.init_process_group("gloo" if h.DRY else "nccl", **options)
    if not h.DRY:
        h.torch.cuda.set_device(h.DEV)
        warm_profiler(h)
    for name in names:
        tell({"start": name})
        tell({"done": name, "facts": run_case(h, h.CASES[name], out)})
    if h.WORLD > 1:
        dist.destroy_process_group()


def tell(message: dict) -> None:
    print(MARK + json.dumps(message), flush=True)


def warm_profiler(h) -> None:
    """The first profile of a process sets CUPTI up; keep that out of every recording."""
    with h.profile():
        h.torch.zeros(1, device=h.DEV).add_(1)
        h.sync()


def run_case(h, c, out: Path) -> dict:
    facts: dict = {}
    for variant in ("slow", "fixed"):
        h.fresh()
        step = c.build(variant == "fixed")
        runs = h.step_ms(step, *((0.1, 2) if h.DRY else ()))
        facts[variant] = {"pipelined_ms": h.median(runs), "runs_ms": runs}
        if not h.DRY:
            facts[variant]["peak_mb"] = h.torch.cuda.max_memory_allocated() / 1e6
        slow = variant == "slow"
        path = trace_path(h, c, out, variant)
        h.record(step, c, path, shapes=True, stacks=slow and c.stacks)
        if slow and c.light:
            h.record(step, c, trace_path(h, c, out, "light"), shapes=False, stacks=False)
        del step
        gc.collect()
    return facts


def trace_path(h, c, out: Path, variant: str) -> Path:
    rank = f".rank{h.RANK}" if c.ranks > 1 else ""
    return out / f"{c.name}.{variant}{rank}.json"


# ---------------------------------------------------------------- parent


class Workers:
    """One process per rank over the same list of cases."""

    def __init__(self, names: list[str], out: Path, ranks: int) -> None:
        port = free_port()
        self.said: queue.Queue = queue.Queue()
        self.procs = []
        for rank in range(ranks):
            env = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            command = [sys.executable, "-m", "zoo.record", "--worker", "--out", str(out), *names]
            self.procs.append(
                subprocess.Popen(
                    command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
                )
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.procs[0].stdout:
            if line.startswith(MARK):
                self.said.put(json.loads(line[len(MARK) :]))
            else:
                print(line, end="", flush=True)
        self.said.put({"end": True})

    def end(self) -> None:
        for p in self.procs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)
            p.wait()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def record_all(names: list[str], out: Path, ranks: int, budget: float, limit: float) -> dict:
    """Facts of every case that worked."""
    deadline = time.monotonic() + budget
    found: dict = {}
    left = list(names)
    with ThreadPoolExecutor(3) as pool:
        while left and time.monotonic() < deadline:
            workers = Workers(left, out, ranks)
            current = left[0]
            try:
                while left:
                    rest = deadline - time.monotonic()
                    message = workers.said.get(timeout=max(1.0, min(limit, rest)))
                    if "end" in message:
                        break
                    if "start" in message:
                        current = message["start"]
                    elif "done" in message:
                        found[current] = message["facts"]
                        left.remove(current)
                        show(current, message["facts"], deadline)
                        pool.submit(compress, out, current)
                        write_truth(found, out)
            except queue.Empty:
                print(f"TIMEOUT {current}", flush=True)
            finally:
                workers.end()
            if current in left:
                print(f"FAILED {current}", flush=True)
                left.remove(current)
    if left:
        print("NOT RUN " + " ".join(left), flush=True)
    for path in out.glob("*.json"):
        if path.name != "TRUTH.json":
            path.unlink()  # what a failed case left behind
    return found


def show(name: str, facts: dict, deadline: float) -> None:
    slow, fixed = (facts[v]["pipelined_ms"] for v in ("slow", "fixed"))
    left = deadline - time.monotonic()
    print(
        f"{name:26} {slow:9.3f} {fixed:9.3f} x{slow / fixed:6.2f}  {left:4.0f} s left", flush=True
    )


def compress(out: Path, name: str) -> None:
    for path in sorted(out.glob(f"{name}.*.json")):
        with path.open("rb") as src, gzip.open(f"{path}.gz", "wb", compresslevel=6) as dst:
            shutil.copyfileobj(src, dst, 1 << 20)
        path.unlink()


def write_truth(found: dict, out: Path) -> None:
    import zoo.programs  # noqa: F401
    from zoo.harness import CASES, find_plant

    truth = {}
    for name, facts in sorted(found.items()):
        c = CASES[name]
        planted = find_plant(c)
        entry = {"label": c.label, "class": c.cls, "also": list(c.also), **facts}
        entry["speedup"] = round(facts["slow"]["pipelined_ms"] / facts["fixed"]["pipelined_ms"], 3)
        entry["ranks"] = c.ranks
        entry["codes"] = list(c.codes)
        entry["functions"] = list(c.functions) or ([planted["function"]] if planted else [])
        entry["planted"] = planted
        entry["step_marks"] = c.marks
        truth[name] = entry
    (out / "TRUTH.json").write_text(json.dumps(truth, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds for everything")
    parser.add_argument("--limit", type=float, default=75.0, help="seconds for one case")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.worker:
        try:
            work(args.cases, args.out)
        except Exception:
            traceback.print_exc()
            os._exit(1)  # a peer that waits in a collective must not keep this one alive
        return
    import zoo.programs  # noqa: F401
    from zoo.harness import CASES, find_plant

    # Workers have sessions of their own: a plain kill of this process must end them too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    names = args.cases or [n for n, c in CASES.items() if c.ranks == args.ranks]
    for name in names:
        find_plant(CASES[name])
    found = record_all(names, args.out, args.ranks, args.budget, args.limit)
    print(f"{len(found)} of {len(names)} cases recorded")


if __name__ == "__main__":
    main()
