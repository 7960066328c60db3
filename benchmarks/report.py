"""Size of the HTML report, time to make and to open it, and frames a second while moving in it.

python benchmarks/report.py TRACE...                  for these recordings
python benchmarks/report.py --synthetic 2000000       for a made one with Python stacks

Needs `pip install -e '.[dev]'` and a Chromium.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
SECONDS = 3

# Moves the timeline in every frame for a while; returns frames a second, the longest frame and
# the mean time that one drawing takes.
MOVE = """
([seconds, zooming]) => new Promise(done => {
  const view = kinetoscopeTimeline;
  const times = [];
  const began = performance.now();
  const step = now => {
    times.push(now);
    if (zooming) view.zoom(Math.floor((now - began) / 700) % 2 ? 1.06 : 1 / 1.06);
    else view.pan(Math.floor((now - began) / 700) % 2 ? -9 : 9);
    if (now - began < seconds * 1000) requestAnimationFrame(step);
    else {
      const gaps = times.slice(1).map((t, i) => t - times[i]).sort((a, b) => a - b);
      let spent = 0;
      for (let i = 0; i < 20; i++) {
        view.pan(3);
        const t = performance.now();
        view.paint();
        spent += performance.now() - t;
      }
      done({fps: 1000 * gaps.length / (times[times.length - 1] - times[0]),
            p99: gaps[Math.floor(gaps.length * 0.99)], draw: spent / 20});
    }
  };
  requestAnimationFrame(step);
})
"""


def synthetic(events: int) -> Iterator[str]:
    """Lines of a training loop: Python frames, modules, operators, launches, kernels."""
    header = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "with_stack": 1,
    }
    yield json.dumps(header)[:-1] + ',"traceEvents":['
    random = Random(7)
    blocks, at, corr, made, step = 80, 0.0, 0, 0, 0
    while made < events:
        began = at
        for block in range(blocks):
            lines = list(_block(at, block, corr, random))
            made += len(lines)
            corr += 8
            at += 400.0 + 40 * random.random()
            yield ",\n".join(lines) + ","
        args = '{"External id": 1, "Record function id": 0}'
        yield _line("user_annotation", f"ProfilerStep#{step}", began, at - began - 1, args) + ","
        step += 1
    yield _line("python_function", "train.py(1): <module>", 0, at + 10, '{"Python id": 1}') + "]}"


def _line(cat: str, name: str, ts: float, dur: float, args: str, tid: int = 100) -> str:
    return (
        f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": 1, "tid": {tid}, '
        f'"ts": {ts:.3f}, "dur": {dur:.3f}, "args": {args}}}'
    )


def _block(at: float, block: int, corr: int, random: Random) -> Iterator[str]:
    frames = (
        "train.py(30): main",
        "model.py(88): forward",
        "torch/nn/modules/module.py(1773): _wrapped_call_impl",
        "torch/nn/modules/module.py(1784): _call_impl",
    )
    for depth, name in enumerate(frames):
        number = corr * 10 + depth + 2
        args = f'{{"Python parent id": {depth}, "Python id": {number}, "Ev Idx": {corr}}}'
        yield _line("python_function", name, at + depth * random.random(), 390 - 2 * depth, args)
    yield _line(
        "python_function",
        f"nn.Module: Block_{block}",
        at + 5,
        380,
        f'{{"Python module id": {block}}}',
    )
    for i in range(8):
        t = at + 10 + 46 * i + 4 * random.random()
        jitter = [random.expovariate(1.0) for _ in range(4)]
        shape = '"Input Dims": [[64, 1024], [1024, 1024]], "Input type": ["float", "float"]'
        args = f'{{"External id": {corr + i}, "Record function id": 0, {shape}}}'
        yield _line("cpu_op", "aten::linear", t, 38 + min(jitter[0], 3), args)
        yield _line("cpu_op", "aten::addmm", t + 1 + min(jitter[1], 2), 32, args)
        call = f'{{"External id": {corr + i}, "cbid": 211, "correlation": {corr + i + 1}}}'
        yield _line("cuda_runtime", "cudaLaunchKernel", t + 20, 4.5 + min(jitter[2] * 2, 6), call)
        kernel = (
            f'{{"External id": {corr + i}, "device": 0, "stream": 7, '
            f'"correlation": {corr + i + 1}, '
            '"registers per thread": 168, "shared memory": 229376, "grid": [132, 1, 1], '
            '"block": [384, 1, 1], "est. achieved occupancy %": 19}'
        )
        name = ("nvjet_sm90_tst_128x256", "vectorized_elementwise_kernel", "reduce_kernel")[i % 3]
        yield _line(
            "kernel", name, t + 32 + jitter[1] % 1, 11.0 + min(jitter[3] * 4, 20), kernel, tid=7
        )


def measure(path: Path, folder: Path) -> dict[str, object]:
    """Make the page of one recording and move about in it."""
    from kinetoscope import viewdata
    from kinetoscope.engine import examine
    from kinetoscope.report import RenderOptions, render

    start = time.perf_counter()
    found = examine(path)
    read = time.perf_counter()
    view = viewdata.build(found.lead, found.ranks, found.diagnosis.findings)
    page = render(found.diagnosis, "html", RenderOptions(view=view))
    made = time.perf_counter()
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    timeline = view.timeline
    row: dict[str, object] = {
        "recording": path.name,
        "MB": round(path.stat().st_size / 1e6, 1),
        "events": sum(len(a.trace) for a in found.ranks),
        "diagnosis s": round(read - start, 1),
        "page s": round(made - read, 1),
        "page MB": round(file.stat().st_size / 1e6, 2),
        "boxes": sum(sum(lane.rows) for lane in timeline.lanes) if timeline else 0,
        "joined below us": timeline.merged_below_ns / 1000 if timeline else 0,
    }
    return {**row, **_in_browser(file)}


def _in_browser(file: Path) -> dict[str, object]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto("about:blank")
        opening, answers = [], []
        for _ in range(3):
            page.goto(file.as_uri(), wait_until="commit")
            page.wait_for_selector("html[data-ready=true]", state="attached")
            opening.append(page.evaluate("performance.now()") / 1000)
            answers.append(
                page.evaluate(
                    "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
                )
                / 1000
            )
        page.evaluate("document.getElementById('timeline').scrollIntoView()")
        row: dict[str, object] = {
            "opens s": round(min(opening), 2),
            "answer s": round(min(answers), 2),
        }
        for name, before in (("steps", ""), ("all", "kinetoscopeTimeline.zoomTo(0, 1e18)")):
            if before:
                page.evaluate(before)
            for zooming in (False, True):
                found = page.evaluate(MOVE, [SECONDS, zooming])
                move = "zoom" if zooming else "pan"
                row[f"{move} {name} fps"] = round(found["fps"], 1)
                row[f"{move} {name} draw ms"] = round(found["draw"], 1)
        browser.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--synthetic", type=int, metavar="EVENTS", default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        traces = list(options.traces)
        if options.synthetic:
            made = folder / f"synthetic_{options.synthetic}.json"
            with made.open("w", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in synthetic(options.synthetic))
            traces.append(made)
        for trace in traces:
            json.dump(measure(trace, folder), sys.stdout, indent=1)
            sys.stdout.write("\n")


if __name__ == "__main__":
    main()
