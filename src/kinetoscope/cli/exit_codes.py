"""Exit codes of the command, and what they mean."""

from __future__ import annotations

OK = 0
FOUND = 1
USAGE = 2
UNREADABLE = 3
DAMAGED = 4
NOT_COMPARABLE = 5
UNEXPECTED = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

MEANINGS = {
    OK: "fine",
    FOUND: "a finding at or above `--fail-on`, or a regression; wins over 4",
    USAGE: "wrong usage: an unknown option, rule or format, or an output that cannot be written",
    UNREADABLE: "an input is missing, is in no known format, or holds no events",
    DAMAGED: "analyzed, but events of an input were lost or could not be trusted",
    NOT_COMPARABLE: "not comparable, or inconclusive",
    UNEXPECTED: "a defect of Kinetoscope itself",
    INTERRUPTED: "interrupted (Ctrl-C); no half-written file is left",
    BROKEN_PIPE: "the reader of the output went away, as in `| head`",
}
