// What the page must never do: turn data into markup, run text as code, or reach for a network.
import { readFileSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";

const FORBIDDEN = [
  [/\.(inner|outer)HTML\b/, "writes markup; use textContent"],
  [/insertAdjacentHTML|document\.write|createContextualFragment|DOMParser/, "parses markup"],
  [/\beval\(|new Function\(/, "runs text as code"],
  [/\bfetch\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon|import\(/, "reaches for a network"],
  [/setAttribute\(\s*["'](style|on\w+|srcdoc)["']/, "sets an attribute that acts"],
];

function* sources(folder) {
  for (const name of readdirSync(folder)) {
    const path = join(folder, name);
    if (statSync(path).isDirectory()) yield* sources(path);
    else if (path.endsWith(".ts")) yield path;
  }
}

let bad = 0;
const complain = (where, why) => {
  console.error(`${where}: ${why}`);
  bad += 1;
};

for (const path of sources("src")) {
  readFileSync(path, "utf8")
    .split("\n")
    .forEach((line, at) => {
      for (const [pattern, why] of FORBIDDEN) {
        if (pattern.test(line)) complain(`${path}:${at + 1}`, why);
      }
    });
}

const bundle = readFileSync("../src/kinetoscope/report/assets/report.js", "utf8");
if (/<\/script|<!--/i.test(bundle)) complain("report.js", "would end its script element");
if (/https?:\/\/(?!www\.w3\.org\/)/.test(bundle)) complain("report.js", "holds an address");
const style = readFileSync("../src/kinetoscope/report/assets/report.css", "utf8");
if (/<\/style|@import|url\((?!["']?data:)/i.test(style)) complain("report.css", "loads something");

process.exit(bad ? 1 : 0);
