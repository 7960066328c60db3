// Builds the page: the answer at once, everything from the recording as soon as it is unpacked.

import "uplot/dist/uPlot.min.css";
import "./style.css";
import { memoryChart, queueChart, ranksChart, rooflineChart, stepChart, stepTable } from "./charts";
import { comparisonSections, comparisonTop } from "./compare";
import { openView, readDocument, VIEW_VERSION, type AnyDocument, type ComparisonDocument, type ComparisonView, type Document_, type ExperimentDocument, type Opened, type View } from "./data";
import { announcer, h } from "./dom";
import { experimentSections, experimentTop } from "./experiment";
import { connect, findings } from "./findings";
import { FlameView } from "./flame";
import { findingChanges, loopTracks } from "./loop";
import { overview, todo } from "./overview";
import { quality } from "./quality";
import { followReading, missing, section, sectionList } from "./section";
import { tables } from "./table";
import { NO_DIFFERENCE, NO_VIEW } from "./texts";
import { themeButton } from "./theme";
import { tipElement } from "./tip";
import { TimelineView } from "./timeline/view";

function header(inputs: string): HTMLElement {
  return h("header", { class: "top" },
    h("p", { class: "brand", text: "Kinetoscope" }),
    h("p", { class: "inputs", text: inputs, title: inputs }),
    themeButton());
}

/** One kind of page: what it shows at once, and what it adds when the view is unpacked. */
interface Plan {
  inputs: string;
  version: string;
  top: HTMLElement[];
  rest: (problem: string, opened: Opened<unknown> | null) => HTMLElement[];
}

function resultPlan(page: Document_): Plan {
  return {
    inputs: page.words.inputs.join("; "),
    version: page.result.kinetoscope,
    top: [overview(page), ...(page.before ? [loop(page.before)] : []), todo(page)],
    rest: (problem, opened) => {
      const view = opened as Opened<View> | null;
      const known = view && view.view.version === VIEW_VERSION ? view : null;
      const found = findings(page);
      return [found, ...sections(page, found, known, problem || NO_VIEW)];
    },
  };
}

function comparisonPlan(page: ComparisonDocument): Plan {
  return {
    inputs: `${page.words.before.paths} → ${page.words.after.paths}`,
    version: page.comparison.kinetoscope,
    top: [comparisonTop(page)],
    rest: (problem, opened) => comparisonSections(page, opened as Opened<ComparisonView> | null, problem || NO_DIFFERENCE),
  };
}

/** The way from an earlier result to this one. */
function loop(before: ComparisonDocument): HTMLElement {
  const box = section("loop", "Since the result before", "Before, what was predicted, and what came of it.");
  box.append(h("p", { class: "answer", text: before.comparison.verdict.sentence }), loopTracks(before), findingChanges(before));
  return box;
}

function experimentPlan(page: ExperimentDocument): Plan {
  return {
    inputs: page.experiment.program,
    version: page.experiment.kinetoscope,
    top: [experimentTop(page)],
    rest: () => experimentSections(page),
  };
}

function planOf(page: AnyDocument): Plan {
  if (page.kind === "experiment") return experimentPlan(page);
  return page.kind === "comparison" ? comparisonPlan(page) : resultPlan(page);
}

async function build(): Promise<void> {
  const plan = planOf(readDocument());
  const app = document.getElementById("app")!;
  const main = h("main", { id: "main", tabindex: "-1" }, ...plan.top);
  const body = h("div", { class: "layout" }, main);
  app.append(h("a", { class: "skip", href: "#main", text: "Skip to the verdict" }), header(plan.inputs), body, tipElement(), announcer());
  await nextFrame();
  let opened: Opened<unknown> | null = null;
  let problem = "";
  try {
    opened = await openView<unknown>();
  } catch {
    problem = "The data of the recording in this file cannot be unpacked: the file is damaged, or the browser is older than 2023.";
  }
  main.append(...plan.rest(problem, opened));
  const nav = sectionList();
  body.prepend(nav);
  main.append(h("footer", { text: `Made by Kinetoscope ${plan.version}. This file loads nothing and sends nothing.` }));
  followReading(nav);
  if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
  document.documentElement.dataset.ready = "true";
}

function nextFrame(): Promise<void> {
  return new Promise((resolve) => requestAnimationFrame(() => window.setTimeout(resolve, 0)));
}

function sections(page: Document_, found: HTMLElement, opened: Opened | null, without: string): HTMLElement[] {
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
    connect(page, found, {
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
