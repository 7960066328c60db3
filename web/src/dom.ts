// Elements from code. Text only ever becomes a text node: names from a recording stay text.

type Child = Node | string | number | null | undefined | false;

interface Attributes {
  class?: string;
  text?: string;
  title?: string;
  on?: Record<string, (event: never) => void>;
  [name: string]: unknown;
}

// Characters that a reader cannot see, or that reorder what he sees. Data arrive cleaned; this is
// the second lock on the same door.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function visible(text: string): string {
  return text.replace(HIDDEN, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  apply(element, attributes);
  append(element, children);
  return element;
}

export function svg(tag: string, attributes: Attributes = {}, ...children: Child[]): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  apply(element, attributes);
  append(element, children);
  return element;
}

function apply(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") element.textContent = visible(String(value));
    else if (name === "on") listen(element, value as Record<string, EventListener>);
    else element.setAttribute(name, value === true ? "" : visible(String(value)));
  }
}

function listen(element: Element, handlers: Record<string, EventListener>): void {
  for (const [event, handler] of Object.entries(handlers)) element.addEventListener(event, handler);
}

export function append(element: Element, children: Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(String(child)));
  }
}

export function replace(element: Element, ...children: Child[]): void {
  element.replaceChildren();
  append(element, children);
}

/** Places an element by shares of its parent's width. */
export function across(element: HTMLElement, from: number, to: number): HTMLElement {
  const left = Math.max(0, Math.min(1, from));
  const right = Math.max(left, Math.min(1, to));
  element.style.left = `${left * 100}%`;
  element.style.width = `${(right - left) * 100}%`;
  return element;
}

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

// Pages from a file, or without the permission, have no clipboard object that works.
function copyBySelection(text: string): boolean {
  const area = h("textarea", { class: "offscreen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

export function copyButton(label: string, text: () => string): HTMLButtonElement {
  const button = h("button", { type: "button", class: "quiet", text: label });
  button.addEventListener("click", () => {
    void copyText(text()).then((done) => {
      button.textContent = done ? "Copied" : "Could not copy";
      announce(done ? "Copied" : "Could not copy");
      window.setTimeout(() => (button.textContent = label), 1500);
    });
  });
  return button;
}

const live = h("div", { class: "offscreen", role: "status", "aria-live": "polite" });

export function announcer(): HTMLElement {
  return live;
}

export function announce(text: string): void {
  live.textContent = visible(text);
}
