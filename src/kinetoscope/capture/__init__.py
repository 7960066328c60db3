"""Makes recordings: finds the steps of a running program and records the right ones.

Nothing here imports torch at module level: the capture uses the torch that the program imports.

    seams        where torch tells that a step may have begun
    boundaries   which of those is the step, and whether it is steady
    plan         how many steps each phase gets
    session      the phases: baseline, light window, full window, lines, samples
    sidecar      what a trace lacks, written into it
"""
