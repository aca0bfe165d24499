"""`sonde watch`: traces come in, issues come out.

`loop` reads windows of traces and spends the budget, `state` is the file that survives everything, `issues` is what people see and change.
`listener` takes traces by OTLP (`otlp`) into a store of our own (`intake`), for whoever has no server of traces.
"""
