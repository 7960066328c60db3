// Builds the page: the answer at once, everything from the recording as soon as it is unpacked.

import "uplot/dist/uPlot.min.css";
import "./style.css";
import { memoryChart, queueChart, ranksChart, rooflineChart, stepChart, stepTable } from "./charts";
import { openView, readDocument, VIEW_VERSION, type Document_, type Opened } from "./data";
import { announcer, h } from "./dom";
import { connect, findings } from "./findings";
import { FlameView } from "./flame";
import { overview, todo } from "./overview";
import { quality } from "./quality";
import { followReading, missing, section, sectionList } from "./section";
import { tables } from "./table";
import { NO_VIEW } from "./texts";
import { themeButton } from "./theme";
import { tipElement } from "./tip";
import { TimelineView } from "./timeline/view";

function header(page: Document_): HTMLElement {
  const inputs = page.words.inputs.join("; ");
  return h("header", { class: "top" },
    h("p", { class: "brand", text: "Kinetoscope" }),
    h("p", { class: "inputs", text: inputs, title: inputs }),
    themeButton());
}

async function build(): Promise<void> {
  const page = readDocument();
  const app = document.getElementById("app")!;
  const main = h("main", { id: "main", tabindex: "-1" }, overview(page), todo(page));
  const body = h("div", { class: "layout" }, main);
  app.append(h("a", { class: "skip", href: "#main", text: "Skip to the verdict" }), header(page), body, tipElement(), announcer());
  await nextFrame();
  let opened: Opened | null = null;
  let problem = "";
  try {
    opened = await openView();
    if (opened && opened.view.version !== VIEW_VERSION) opened = null;
  } catch {
    problem = "The data of the recording in this file cannot be unpacked: the file is damaged, or the browser is older than 2023.";
  }
  main.append(findings(page));
  main.append(...sections(page, opened, problem || NO_VIEW));
  const nav = sectionList();
  body.prepend(nav);
  main.append(h("footer", { text: `Made by Kinetoscope ${page.result.kinetoscope}. This file loads nothing and sends nothing.` }));
  followReading(nav);
  if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
  document.documentElement.dataset.ready = "true";
}

function nextFrame(): Promise<void> {
  return new Promise((resolve) => requestAnimationFrame(() => window.setTimeout(resolve, 0)));
}

function sections(page: Document_, opened: Opened | null, without: string): HTMLElement[] {
  const view = opened?.view ?? null;
  const all: HTMLElement[] = [];
  const add = (id: string, title: string, lead: string, content: () => (HTMLElement | null)[] | string): void => {
    const box = section(id, title, lead);
    const made = view ? content() : without;
    if (typeof made === "string") box.append(missing(made));
    else box.append(...made.filter((part) => part !== null));
    all.push(box);
  };
  add("timeline", "Timeline", "What ran when, and why the device was idle in between.", () => {
    if (!view!.timeline || !view!.timeline.lanes.length) return "The recording has no events on a thread or a device.";
    const timeline = new TimelineView(opened!);
    connect(page, {
      focusOf: (finding) => view!.focus.find((focus) => focus.finding === finding),
      showInTimeline: (focus) => timeline.show(focus),
    });
    (window as unknown as Record<string, unknown>).kinetoscopeTimeline = timeline;
    return [timeline.element];
  });
  add("flame", "Flame graph", "Which calls the time belongs to, Python down to kernels.", () =>
    view!.flame ? [new FlameView(view!.flame, opened!).element] : "The recording has no call with time in the steady steps.");
  add("tables", "Tables", "Time per step, mean of the steady steps. Click a heading to sort; hover it for what it means.", () => [tables(view!.steps.length ? [...view!.tables, stepTable(view!.steps)] : view!.tables)]);
  add("memory", "Memory", "How much is allocated when, and what holds the peak.", () =>
    view!.memory.length ? view!.memory.map((curve) => memoryChart(curve, opened!, view!.memory.some((c) => c.rank !== curve.rank))) : view!.memory_missing);
  add("roofline", "Roofline", "How close each kernel comes to what the device can do. Size is time.", () =>
    view!.roofline?.points.length ? [rooflineChart(view!.roofline)] : view!.roofline?.missing || "No kernel was recorded.");
  add("communication", "Communication", "Ranks side by side: who computes, who transfers, who waits.", () =>
    view!.comm?.rows.length ? [ranksChart(view!.comm, view!.tables.find((table) => table.id === "collectives"))] : view!.comm?.missing || "No collective was recorded.");
  add("steps", "Step variation", "Whether all steps take the same time.", () =>
    view!.steps.length ? [stepChart(view!.steps)] : "No steps were found. Call prof.step() after each step.");
  add("queue", "Launch queue", "How far the host runs ahead of the device.", () =>
    view!.queue ? [queueChart(view!.queue, opened!)] : "No kernel with its launch was recorded. Record the host and the device: activities=[CPU, CUDA].");
  all.push(quality(page, view));
  return all;
}

void build();
