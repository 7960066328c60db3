// Sections of the page, and the list of them at its side.

import { h } from "./dom";

const sections: { id: string; title: string }[] = [];

/** A section with a heading; `lead` is one sentence on what it answers. */
export function section(id: string, title: string, lead: string): HTMLElement {
  sections.push({ id, title });
  const heading = h("h2", { id: `${id}-title`, text: title });
  return h(
    "section",
    { id, class: "section", "aria-labelledby": `${id}-title`, tabindex: "-1" },
    heading,
    lead ? h("p", { class: "lead", text: lead }) : null,
  );
}

/** What a section says when there is nothing to draw: never a blank. */
export function missing(text: string): HTMLElement {
  const parts = text.split("`");
  const line = h("p", { class: "missing" });
  parts.forEach((part, i) => line.append(i % 2 ? h("code", { text: part }) : part));
  return line;
}

export function sectionList(): HTMLElement {
  const list = h("ul");
  for (const { id, title } of sections) {
    list.append(h("li", {}, h("a", { href: `#${id}`, text: title })));
  }
  return h("nav", { class: "contents", "aria-label": "Sections" }, list);
}

/** Marks the section that is being read. */
export function followReading(nav: HTMLElement): void {
  const links = new Map<string, HTMLAnchorElement>();
  nav.querySelectorAll("a").forEach((a) => links.set(a.getAttribute("href")!.slice(1), a));
  const seen = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        links.forEach((a) => a.removeAttribute("aria-current"));
        links.get(entry.target.id)?.setAttribute("aria-current", "true");
      }
    },
    { rootMargin: "-20% 0px -70% 0px" },
  );
  document.querySelectorAll("section.section").forEach((s) => seen.observe(s));
}
