// Definitions and section texts, in one place so that another language needs no other change.

export const DEF = {
  step: "Time of one step without the profiler, as a range: the profiler slows a program down, so "
    + "the recording alone gives no single true number. The dot is the best estimate.",
  recorded: "Time of one step as recorded, with the cost of profiling in it.",
  confidence: "How sure the class of the verdict is, 0 to 1, given what the recording holds. High "
    + "from 0.85, moderate from 0.6, low below.",
  budget: "Where the time of one step goes. The lines do not overlap and add up to the step. Idle "
    + "time of the device counts for what the launching thread was doing meanwhile.",
  budgetNs: "Time per step in this line, without the profiler's cost.",
  budgetShare: "This line as a share of the step.",
  gain: "Old step time divided by new step time if the fix is applied. The range covers how well "
    + "the effect is known; the dot is the most likely value.",
  stepBefore: "Likely step time before the change, without the profiler: the mean over the steps of all runs.",
  stepAfter: "Likely step time after the change, without the profiler: the mean over the steps of all runs.",
  predictedStep: "Step time that the diagnosis of the first side promised for this fix alone.",
  speedup: "Step time before divided by step time after, with its 95 % interval over steps, runs and "
    + "what recording cost.",
  expected: "Step time that the fix should give.",
  measured: "Measured: read from the recording.",
  derived: "Derived: computed from recorded times.",
  estimated: "Estimated: from a model, not recorded.",
  events: "Recorded events behind this place.",
  span: "First start to last end of any device work in the recording.",
  busy: "Time in which at least one kernel, copy or memset ran, as a share of the span.",
  compute: "Time in which a kernel that is not communication, or a memset, ran.",
  exposedComm: "Communication while no compute ran.",
  exposedCopy: "Copies while neither compute nor communication ran.",
  mfu: "Model FLOP utilisation: time that the matrix products, convolutions and attention of a step would take at the data sheet's rate, over the likely step time. Recomputed work does not count.",
  idle: "Span minus busy: the device does nothing.",
  peak: "Most memory that PyTorch's allocator had handed out at one moment.",
  peakReserved: "Most memory that the allocator held from the driver. The difference to what is "
    + "allocated is its cache and fragmentation.",
  capacity: "Memory of the device.",
  unknownMemory: "Allocated at the peak, but before the recording began, so nobody knows by whom: "
    + "usually parameters and optimizer state.",
  queueMedian: "Middle value of the time between the end of a launch and the start of its kernel.",
  queueP90: "Nine in ten kernels stood in the queue for less than this.",
  queueEmpty: "Share of kernels that were launched when their stream had nothing left to do: the "
    + "device waited for the host.",
  stepMedian: "Middle value of the recorded step times.",
  stepSpread: "Standard deviation of the recorded step times as a share of their mean.",
  stepMax: "Longest recorded step.",
  coverage: "Share of the kernel time whose work is known from input shapes.",
  length: "Length of the event.",
  start: "Start, from the beginning of the recording.",
  merged: "Events shorter than the limit were joined with their neighbours to keep this file small. "
    + "Their number and their summed time are exact.",
};

export const NO_VIEW =
  "This page was made from a saved result, which holds no timeline data. For this section, run "
  + "`kinetoscope analyze TRACE -o report.html` on the recording.";

export const NO_DIFFERENCE =
  "This page was made without the recordings, whose call paths this section draws. For it, run "
  + "`kinetoscope compare TRACE TRACE -o comparison.html` on the recordings.";
