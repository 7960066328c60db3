// One script and one style, with fixed names: the report puts both into a single HTML file.
import { defineConfig } from "vite";

export default defineConfig({
  build: {
    outDir: "../src/kinetoscope/report/assets",
    emptyOutDir: false,
    target: "es2022",
    cssCodeSplit: false,
    modulePreload: false,
    reportCompressedSize: false,
    lib: {
      entry: "src/main.ts",
      formats: ["iife"],
      name: "kinetoscopeReport",
      fileName: () => "report.js",
      cssFileName: "report",
    },
  },
});
