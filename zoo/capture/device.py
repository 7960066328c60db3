"""Planted programs of the zoo through `kinetoscope run` on a GPU: one process each, one table.

python -m zoo.capture.device --out DIR [--limit SECONDS] [NAME ...]

Processes are forked from one that has imported torch but not touched the device.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import sys
import time
from importlib import import_module
from pathlib import Path

NAMES = """
dl_char_tokenizer dl_pad_in_loop h2d_pageable_clips mm_host_rescale mm_empty_cache
fw_cpu_mask fw_adamw_loop fw_moe_where fw_beam_python fw_anomaly_gnn fw_launch_gnn
fw_sgd_foreach_off fw_checkpoint_often cp_odd_hidden cp_odd_classes cp_attention_einsum
cp_attention_baddbmm cp_fp32_forecaster cp_float64_rbf cp_mixer_copies ew_focal_loss
h2d_same_stream dl_short_epochs ok_fused_adamw ok_item_gpu_bound
""".split()


MOVED = 1.1
"""A stated time is not judged where the true one changed by more than this around the capture."""


def child(name: str, out: Path, seconds: float) -> None:
    log = os.open(out / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from kinetoscope.cli import run
    from zoo.capture.play import truth

    # Outside of the capture: it would take these steps for those of the program.
    known = truth(name)
    words = ["run", "--stop-after", "--budget", "16s", "-o", str(out / f"{name}.json"), "-m"]
    words += ["zoo.capture.play", name, "--seconds", str(seconds)]
    code = run(words)
    known["after_ms"] = truth(name)["ms"]
    (out / f"{name}.truth.json").write_text(json.dumps(known))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def row(name: str, out: Path, took: float) -> str:
    try:
        truth = json.loads((out / f"{name}.truth.json").read_text())
        found = json.loads((out / f"{name}.json").read_text())
    except (OSError, ValueError):
        return f"| {name} | no result after {took:.0f} s | | | | | | | |"
    plant = truth["plant"] or {}
    verdict = found["verdict"]["bottleneck"]
    right = verdict in (truth["class"], *truth["also"])
    hit, line = "-", "-"
    for finding in found["findings"]:
        if finding["code"] in truth["codes"]:
            hit = finding["code"]
            places = finding["locations"]
            ok = [p for p in places if p["line"] == plant.get("line") and p["exact"]]
            first = places[0] if places else {"line": None, "exact": False}
            line = f"{plant.get('line')} exact" + ("" if first in ok else ", not first")
            if not ok:
                line = f"{first['line']}{' exact' if first['exact'] else ''}, not {plant['line']}"
            break
    stated = found["step"]["time_ns"]["mid"] / 1e6
    before, after = truth["ms"], truth["after_ms"]
    true = (before + after) / 2
    judged = "" if max(before, after) <= MOVED * min(before, after) else ", not judged"
    over = {w["name"]: w["overhead"] or 0 for w in found["capture"]["windows"]}
    return (
        f"| {name} | {verdict}{'' if right else ' (not ' + truth['class'] + ')'} | {hit} | {line} "
        f"| {before:.3f}, {after:.3f} | {stated:.3f} | {stated / true - 1:+.1%}{judged} "
        f"| {over.get('light', 0):+.0%} | {over.get('full', 0):+.0%} "
        f"| {found['capture']['step_source']} | {took:.0f} s |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=240.0)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + args.limit
    for name in ("polars", "torch", "torch._dynamo", "kinetoscope.engine"):
        import_module(name)

    context = mp.get_context("fork")
    print(
        "| program | class | finding | line | true ms, before and after | stated ms | error | light | full | steps |"
    )
    for name in args.names or NAMES:
        if time.monotonic() > end:
            print(f"| {name} | not run |")
            continue
        start = time.monotonic()
        process = context.Process(target=child, args=(name, args.out, args.seconds))
        process.start()
        process.join(50)
        if process.is_alive():
            process.kill()
        print(row(name, args.out, time.monotonic() - start), flush=True)


if __name__ == "__main__":
    main()
