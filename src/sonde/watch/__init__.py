"""`sonde watch`: traces come in, issues come out.

`loop` reads windows of traces and spends the budget, `state` is the file that survives everything, `issues` is what people see and change.
"""
