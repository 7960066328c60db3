"""The planted programs. Importing this package registers every case."""

from zoo.programs import (  # noqa: F401
    blind_healthy,
    blind_infer,
    blind_train,
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
