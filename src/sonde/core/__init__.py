"""Values and rules only, no I/O: budgets, states, events, the record, evidence, canonical JSON."""
