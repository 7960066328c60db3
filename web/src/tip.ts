// Definitions: every number says on hover, focus or click what it is.

import { h, replace, visible } from "./dom";

const tip = h("div", { id: "tip", role: "tooltip", class: "tip", hidden: true });
let owner: HTMLElement | null = null;

export function tipElement(): HTMLElement {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  return tip;
}

function show(target: HTMLElement, text: string): void {
  owner?.removeAttribute("aria-describedby");
  owner = target;
  replace(tip, text);
  tip.hidden = false;
  target.setAttribute("aria-describedby", "tip");
  const box = target.getBoundingClientRect();
  const width = Math.min(340, window.innerWidth - 24);
  tip.style.maxWidth = `${width}px`;
  const left = Math.max(12, Math.min(box.left, window.innerWidth - tip.offsetWidth - 12));
  const below = box.bottom + 6;
  const fits = below + tip.offsetHeight < window.innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${fits ? below : Math.max(4, box.top - tip.offsetHeight - 6)}px`;
}

function hide(): void {
  tip.hidden = true;
  owner?.removeAttribute("aria-describedby");
  owner = null;
}

/** Gives an element a definition. */
export function explain<T extends HTMLElement>(element: T, text: string): T {
  element.addEventListener("mouseenter", () => show(element, text));
  element.addEventListener("mouseleave", hide);
  element.addEventListener("focus", () => show(element, text));
  element.addEventListener("blur", hide);
  element.addEventListener("click", () => show(element, text));
  return element;
}

/** A number with its definition. */
export function num(text: string, definition: string, className = ""): HTMLElement {
  const button = h("button", { type: "button", class: `num ${className}`.trim() }, visible(text));
  return h("dfn", {}, explain(button, definition));
}
