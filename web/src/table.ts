// Tables: sort by a click on a heading, filter, copy as CSV; trees stay trees.

import type { Cell, Table } from "./data";
import { across, announce, copyButton, h, replace } from "./dom";
import { missing } from "./section";
import { explain } from "./tip";
import { plural, quantity } from "./units";

const FIRST = 25;
/** A table of so few rows needs no filter. */
const FEW = 3;

interface Row {
  cells: Cell[];
  level: number;
  children: Row[];
}

export function tableView(table: Table): HTMLElement {
  if (!table.rows.length) return missing(table.missing || "Nothing was recorded.");
  return new TableView(table).element;
}

class TableView {
  readonly element: HTMLElement;
  private readonly body = h("tbody");
  private readonly status = h("p", { class: "note", role: "status" });
  private readonly more = h("button", { type: "button", class: "quiet" });
  private readonly roots: Row[];
  private readonly maxima: number[];
  private heads: HTMLElement[] = [];
  private sorted = -1;
  private falling = true;
  private all = false;
  private needle = "";

  constructor(private readonly table: Table) {
    this.roots = forest(table);
    this.maxima = table.columns.map((column, c) =>
      column.unit === "ratio" ? Math.max(...table.rows.map((row) => Number(row[c] ?? 0)), 1e-9) : 0,
    );
    this.more.addEventListener("click", () => {
      this.all = !this.all;
      this.draw();
    });
    this.sorted = fallingTime(table);
    this.element = this.frame();
    this.draw();
  }

  private frame(): HTMLElement {
    const { table } = this;
    const filter = h("input", { type: "search", placeholder: "Filter", "aria-label": `Filter ${table.title.toLowerCase()}` });
    filter.addEventListener("input", () => {
      this.needle = filter.value.toLowerCase();
      this.draw();
      announce(this.status.textContent ?? "");
    });
    const head = h("tr", {}, ...table.columns.map((_, c) => this.heading(c)));
    return h(
      "div",
      { class: "tablebox" },
      h("div", { class: "tools" }, table.rows.length > FEW ? filter : null, copyButton("Copy as CSV", () => this.csv()), this.status),
      h(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": `${table.title}, table` },
        h("table", {}, h("caption", { class: "offscreen", text: table.title }), h("thead", {}, head), this.body),
      ),
      this.more,
      table.note ? h("p", { class: "note", text: table.note }) : null,
    );
  }

  private heading(c: number): HTMLElement {
    const column = this.table.columns[c];
    const button = explain(h("button", { type: "button", class: "sort", text: column.title }), column.meaning);
    button.addEventListener("click", () => {
      const first = column.unit !== "text";
      this.falling = this.sorted === c ? !this.falling : first;
      this.sorted = c;
      this.draw();
      announce(`Sorted by ${column.title}, ${this.falling ? "largest first" : "smallest first"}`);
    });
    const cell = h("th", { scope: "col", class: column.unit === "text" ? "" : "number" }, button);
    this.heads.push(cell);
    return cell;
  }

  private visibleRows(): Row[] {
    const rows: Row[] = [];
    const visit = (row: Row): boolean => {
      const at = rows.length;
      rows.push(row);
      let found = this.matches(row);
      for (const child of this.inOrder(row.children)) found = visit(child) || found;
      if (!found) rows.length = at;
      return found;
    };
    for (const row of this.inOrder(this.roots)) visit(row);
    return rows;
  }

  private matches(row: Row): boolean {
    if (!this.needle) return true;
    return row.cells.some((cell) => typeof cell === "string" && cell.toLowerCase().includes(this.needle));
  }

  private inOrder(rows: Row[]): Row[] {
    const c = this.sorted;
    if (c < 0) return rows;
    const sign = this.falling ? -1 : 1;
    return [...rows].sort((a, b) => sign * compare(a.cells[c], b.cells[c]));
  }

  private draw(): void {
    const rows = this.visibleRows();
    const shown = this.all ? rows : rows.slice(0, FIRST);
    replace(this.body, ...shown.map((row) => this.line(row)));
    this.heads.forEach((head, c) => {
      if (c === this.sorted) head.setAttribute("aria-sort", this.falling ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.status.textContent = this.needle
      ? `${plural(rows.length, "row")} of ${this.table.rows.length.toLocaleString("en-US")}`
      : plural(rows.length, "row");
    this.more.hidden = rows.length <= FIRST;
    this.more.textContent = this.all ? `Show the first ${FIRST}` : `Show all ${rows.length.toLocaleString("en-US")}`;
  }

  private line(row: Row): HTMLElement {
    const line = h("tr");
    this.table.columns.forEach((column, c) => {
      const value = row.cells[c];
      const text = quantity(value, column.unit);
      if (column.unit === "text") {
        const cell = h("td", { class: c === 0 ? "name" : "text" }, h("span", { text, title: text }));
        if (c === 0 && this.table.levels) cell.style.paddingLeft = `${0.6 + row.level * 1.1}rem`;
        line.append(cell);
        return;
      }
      const nothing = value === null || (value === 0 && column.unit !== "count");
      const cell = h("td", { class: nothing ? "number zero" : "number", text: value === 0 ? "0" : text });
      if (this.maxima[c] && typeof value === "number") {
        cell.append(across(h("span", { class: "inbar", "aria-hidden": "true" }), 0, value / this.maxima[c]));
        cell.classList.add("withbar");
      }
      line.append(cell);
    });
    return line;
  }

  private csv(): string {
    const head = this.table.columns.map((column) => (column.unit === "text" || column.unit === "count" ? column.title : `${column.title} (${column.unit})`));
    const lines = [head.map(csvCell).join(",")];
    for (const row of this.visibleRows()) lines.push(row.cells.map(csvCell).join(","));
    return `${lines.join("\r\n")}\r\n`;
  }
}

// A spreadsheet runs text that begins like a formula.
export function csvCell(value: Cell): string {
  if (value === null) return "";
  if (typeof value === "number") return String(value);
  const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function compare(a: Cell, b: Cell): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number") return 1;
  if (typeof b === "number") return -1;
  return (a ?? "").localeCompare(b ?? "");
}

/** The first column of times when the rows come sorted by it, largest first; else -1. */
function fallingTime(table: Table): number {
  const c = table.columns.findIndex((column) => column.unit === "ns");
  if (c < 0 || table.levels || table.rows.length < 2) return -1;
  return table.rows.every((row, i) => i === 0 || compare(table.rows[i - 1][c], row[c]) >= 0) ? c : -1;
}

function forest(table: Table): Row[] {
  const roots: Row[] = [];
  const stack: Row[] = [];
  table.rows.forEach((cells, i) => {
    const level = table.levels ? table.levels[i] : 0;
    const row: Row = { cells, level, children: [] };
    stack.length = Math.min(stack.length, level);
    (stack.length ? stack[stack.length - 1].children : roots).push(row);
    stack.push(row);
    if (!table.levels) stack.length = 0;
  });
  return roots;
}

/** Tables behind tabs. */
export function tables(list: Table[]): HTMLElement {
  const tabs = h("div", { role: "tablist", "aria-label": "Tables", class: "tabs" });
  const panels = h("div");
  const buttons = list.map((table, i) => {
    const button = h("button", {
      type: "button", role: "tab", id: `tab-${table.id}`, "aria-controls": `panel-${table.id}`, text: table.title,
    });
    const panel = h("div", { role: "tabpanel", id: `panel-${table.id}`, "aria-labelledby": `tab-${table.id}`, tabindex: "0" });
    button.addEventListener("click", () => select(i));
    tabs.append(button);
    panels.append(panel);
    return { button, panel, drawn: false };
  });
  const select = (chosen: number): void => {
    buttons.forEach((entry, i) => {
      entry.button.setAttribute("aria-selected", String(i === chosen));
      entry.button.tabIndex = i === chosen ? 0 : -1;
      entry.panel.hidden = i !== chosen;
      if (i === chosen && !entry.drawn) {
        entry.panel.append(tableView(list[i]));
        entry.drawn = true;
      }
    });
  };
  tabs.addEventListener("keydown", (event) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const at = buttons.findIndex((entry) => entry.button === document.activeElement);
    const next = (at + step + buttons.length) % buttons.length;
    select(next);
    buttons[next].button.focus();
  });
  window.addEventListener("beforeprint", () => buttons.forEach((entry, i) => {
    if (!entry.drawn) {
      entry.panel.append(tableView(list[i]));
      entry.drawn = true;
    }
  }));
  select(0);
  return h("div", {}, tabs, panels);
}
