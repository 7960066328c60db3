"""What would the step take if ...? A model of host and device, replayed with a change applied."""

from kinetoscope.replay.change import Change
from kinetoscope.replay.model import Model, build_model
from kinetoscope.replay.simulate import Replayed, simulate

__all__ = ["Change", "Model", "Replayed", "build_model", "simulate"]
