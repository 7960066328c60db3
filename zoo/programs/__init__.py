"""The planted programs. Importing this package registers every case."""

from zoo.programs import (  # noqa: F401
    diffusion,
    graphs,
    healthy,
    language,
    parallel,
    recsys,
    rl,
    serving,
    speech,
    tabular,
    vision,
)
