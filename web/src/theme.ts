// Light and dark: what the system wants, until the reader says otherwise. Nothing is stored.

import { h } from "./dom";

export function themeButton(): HTMLElement {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = (): boolean => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const button = h("button", { type: "button", class: "quiet" });
  const label = (): void => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
    document.dispatchEvent(new Event("themechange"));
  });
  dark.addEventListener("change", label);
  label();
  return button;
}
