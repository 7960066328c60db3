"""The catalogue: one file a rule. `api` is the contract, `registry` finds the files."""
