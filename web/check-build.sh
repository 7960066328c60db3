#!/usr/bin/env bash
# Builds the report's program from its sources and compares it with the one in the package.
set -euo pipefail
cd "$(dirname "$0")"
assets=../src/kinetoscope/report/assets
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
cp "$assets"/report.js "$assets"/report.css "$before"
npm ci --no-audit --no-fund --loglevel=error
npm run --silent build
for file in report.js report.css; do
  cmp "$before/$file" "$assets/$file" || {
    echo "$file is not what web/ builds: commit the fresh one" >&2
    exit 1
  }
done
echo "the bundle in the package is what web/ builds"
