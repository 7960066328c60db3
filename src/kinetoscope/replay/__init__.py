"""What would the step take if ...? A model of host and device, replayed with a change applied."""

from kinetoscope.replay.change import Change, combined
from kinetoscope.replay.job import JobModel, join, simulate_job, timeline_job
from kinetoscope.replay.model import Model, build_model
from kinetoscope.replay.simulate import Replayed, simulate
from kinetoscope.replay.timeline import Timeline, timeline

__all__ = [
    "Change",
    "JobModel",
    "Model",
    "Replayed",
    "Timeline",
    "build_model",
    "combined",
    "join",
    "simulate",
    "simulate_job",
    "timeline",
    "timeline_job",
]
