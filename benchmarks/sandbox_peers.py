"""The peers, run in an environment of their own by sandbox.py: pydantic-monty, smolagents' local executor, RestrictedPython.

Prints one JSON object of rows by engine.
"""
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# The peers are not installed where this is checked.

from __future__ import annotations

import importlib.metadata
import json
import operator
import sys
from typing import Any

from sandbox_measure import Engine, Host, Rows, Session, measure


class MontySession:
    def __init__(self, pool: Any, hosts: dict[str, Host], wall_s: float | None) -> None:
        limits = {"max_suspensions": 1_000_000, **({"max_feed_duration_secs": wall_s} if wall_s else {})}
        self._inputs: dict[str, Any] = {}
        self._hosts = hosts
        self._session = pool.checkout(limits=limits)
        self._session.__enter__()

    def run(self, code: str) -> None:
        import pydantic_monty

        inputs, self._inputs = self._inputs, {}
        try:
            self._session.feed_run(code, inputs=inputs, external_lookup=self._hosts)
        except pydantic_monty.MontyRuntimeError as error:
            if "TimeoutError" not in str(error) and "time limit" not in str(error):
                raise

    def share(self, text: bytes) -> None:
        self._inputs["context"] = text.decode()

    def close(self) -> None:
        self._session.__exit__(None, None, None)


class Monty:
    loop_part = 1

    def __init__(self) -> None:
        import pydantic_monty

        self.name = f"pydantic-monty {importlib.metadata.version('pydantic-monty')}"
        self._pool = pydantic_monty.Monty()
        self._pool.__enter__()

    def open(self, hosts: dict[str, Host], wall_s: float | None) -> Session:
        return MontySession(self._pool, hosts, wall_s)


class SmolSession:
    def __init__(self, hosts: dict[str, Host]) -> None:
        from smolagents.local_python_executor import LocalPythonExecutor

        self._executor = LocalPythonExecutor(additional_authorized_imports=[], timeout_seconds=None)
        self._executor.send_tools(hosts)

    def run(self, code: str) -> None:
        self._executor(code)

    def share(self, text: bytes) -> None:
        self._executor.send_variables({"context": text.decode()})

    def close(self) -> None:
        pass


class Smolagents:
    loop_part = 25

    def __init__(self) -> None:
        self.name = f"smolagents {importlib.metadata.version('smolagents')} (local)"

    def open(self, hosts: dict[str, Host], wall_s: float | None) -> Session:
        if wall_s is not None:
            raise NotImplementedError("cannot kill (in-process)")
        return SmolSession(hosts)


def _add(_: str, left: Any, right: Any) -> Any:
    return left + right


class RestrictedSession:
    def __init__(self, hosts: dict[str, Host]) -> None:
        from RestrictedPython import safe_globals

        self._namespace: dict[str, Any] = {
            **safe_globals,
            **hosts,
            "_getiter_": iter,
            "_getitem_": operator.getitem,
            "_inplacevar_": _add,
        }

    def run(self, code: str) -> None:
        from RestrictedPython import compile_restricted

        exec(compile_restricted(code, "<turn>", "exec"), self._namespace)

    def share(self, text: bytes) -> None:
        self._namespace["context"] = text.decode()

    def close(self) -> None:
        pass


class Restricted:
    loop_part = 1

    def __init__(self) -> None:
        self.name = f"RestrictedPython {importlib.metadata.version('RestrictedPython')}"

    def open(self, hosts: dict[str, Host], wall_s: float | None) -> Session:
        if wall_s is not None:
            raise NotImplementedError("cannot kill (in-process)")
        return RestrictedSession(hosts)


def main(turns: int) -> None:
    engines: list[Engine] = [Monty(), Smolagents(), Restricted()]
    found: dict[str, Rows] = {engine.name: measure(engine, turns) for engine in engines}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]))
