"""`sonde watch`: traces come in, issues come out.

`loop` reads windows of traces and spends the budget, `state` is the file that survives everything. `groups` recognises failures again,
`lifecycle` makes issues of them and takes what people say, `investigations` is what models find out, `issues` is what people see.
`listener` takes traces by OTLP (`otlp`) into a store of our own (`intake`), for whoever has no server of traces.
"""
