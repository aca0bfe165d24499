"""A program that plays a model which reads notes.txt and answers from it."""

from __future__ import annotations

import sys

READ = '```python\nprint(read_file("notes.txt"))\n```'
FINISH = '```python\nadd_citation("notes.txt", 2, 2)\nFINAL("The service is payments. [notes.txt:2-2]")\n```'

if __name__ == "__main__":
    print(FINISH if "service: payments" in sys.stdin.read() else READ)
