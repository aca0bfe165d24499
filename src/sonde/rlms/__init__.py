"""A drop-in worker for agent loops: before a role runs, look into its files and leave highlights and proved citations.

It is the same session as `ask`, with the strict profile and the loop's own helpers, limits, files and failure classes, and no
second loop. `request` says what is asked, `worker` runs it, `wrapper` makes the time limit hard and writes the files, `policy`
decides whether to run at all, `canary` judges a result. It does not start roles: the loop does.
"""
