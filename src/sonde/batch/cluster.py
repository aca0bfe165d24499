"""Workers as actors on a Ray cluster (extra `cluster`): an existing one, one behind ray://HOST:PORT, or one started on this machine.

Jobs carry references, never data: the batch folder and whatever the items name must be on storage that every node sees, and every node
needs the same Sonde. Both are checked before anything is spent. A lost worker or node costs the requests that were in flight there; its
items are resumed elsewhere from their journals.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from sonde.api.launch import sonde_version
from sonde.batch.crew import Happening, Lost
from sonde.batch.item_runner import Job, Order, Station, check_models
from sonde.batch.limits import Answer, Ask, Closed, Limiter, SharedLimits, Slot, Told
from sonde.batch.ray_connection import Aside, connect
from sonde.batch.worker import attempt
from sonde.errors import ConfigError
from sonde.runs.rundir import write_atomically

THREADS = 4
READY_S = 120.0
STILLBORN = 5  # workers in a row that never came up
TOKEN = ".seen-by-all"
LOOK_AT_LIMITS_S = 1.0
LOOK_AT_NODES_S = 5.0


class ActorGate:
    """The limits, asked of the limiter's actor. If nothing is limited it reports only failures, and the success that ends them."""

    def __init__(self, limiter: Any, who: str, *, counts: bool) -> None:
        self.counts = counts
        self.stopping = threading.Event()
        self._limiter = limiter
        self._who = who
        self._failing = False

    def book(self, ask: Ask) -> Answer:
        """Ask the actor, and wait for one that is being restarted elsewhere."""
        if not self.counts:
            return Slot(delay_s=0.0)
        ray: Any = import_module("ray")
        answer = self._limiter.book.remote(ask, self._who)
        while not self.stopping.is_set():
            ready, _ = ray.wait([answer], timeout=1.0)
            if ready:
                return ray.get(answer)
        return Closed(reason="the batch stops")

    def tell(self, told: Told) -> None:
        """Tell the actor, without waiting."""
        if self.counts or self._failing or told.failure is not None:
            self._failing = told.failure is not None
            self._limiter.tell.remote(told, self._who)


class LimiterActor(Limiter):
    """The limiter as an actor: a state that can be asked for."""

    def why_closed(self) -> str | None:
        """Why nothing more goes out."""
        return self.closed


class WorkerActor:
    """A station on some node."""

    def __init__(self, order: Order, limiter: Any, who: str, *, counts: bool) -> None:
        self._order = order
        self._gate = ActorGate(limiter, who, counts=counts)
        self._station = Station(order, self._gate)

    def problem(self, token: str, version: str) -> str | None:
        """What keeps this node from working, or None."""
        node = socket.gethostname()
        if sonde_version() != version:
            return f"node {node} has sonde {sonde_version()}, this machine {version}: install the same on every node"
        try:
            seen = (self._order.folder / TOKEN).read_text("utf-8")
        except OSError:
            seen = ""
        if seen != token:
            return f"node {node} does not see {self._order.folder}: put --runs-dir on storage that every node shares"
        try:
            check_models(self._order.settings)
        except ConfigError as error:
            return f"node {node}: {error.message}"
        return None

    def pid(self) -> int:
        """The process of this worker."""
        return os.getpid()

    def work(self, job: Job) -> Happening:
        """Do one job."""
        return attempt(self._station, job)

    def pause(self) -> None:
        """Stop before the next request."""
        self._gate.stopping.set()


@dataclass(slots=True, eq=False)
class Hand:
    """One actor: being started while `starting` is set, then at its jobs. The limiter knows it as `who`."""

    actor: Any
    who: str
    starting: Any
    jobs: list[Job] = field(default_factory=list[Job])
    alone: bool = False


class RayCrew:
    """Actors with a few threads each, spread over the nodes."""

    def __init__(
        self,
        order: Order,
        limits: SharedLimits,
        on: str,
        *,
        spent_usd: float = 0.0,
        cancel: threading.Event | None = None,
        ready_s: float = READY_S,
    ) -> None:
        self._ray, self._ours = connect(on)
        self._quiet = ExitStack()
        self._quiet.enter_context(redirect_stdout(Aside()))  # Ray prints news of its nodes; stdout is the report's
        self._order, self._limits = order, limits
        self._token = secrets.token_hex(8)
        write_atomically(order.folder / TOKEN, self._token.encode())
        count = self._wanted()
        self._threads = -(-limits.concurrency // count)
        # The limiter stays beside the driver if that is a node: whoever loses it loses the batch's driver too.
        strategies: Any = import_module("ray.util.scheduling_strategies")
        node = self._ray.get_runtime_context().get_node_id()
        here = strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=True)
        actor = self._ray.remote(LimiterActor).options(
            num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here
        )
        self._limiter = actor.remote(limits, spent_usd=spent_usd)
        self._pausing = False
        self._stillborn = 0
        self._ready_s = ready_s
        self._staffed_at = time.monotonic()
        self._looked = 0.0
        self._closed: str | None = None
        self._asked: Any = None
        self._flights: dict[Any, tuple[Hand, Job]] = {}
        self._grown_at = time.monotonic()
        self._hands = [self._hire() for _ in range(count)]
        try:
            self._await_first(cancel or threading.Event())
        except BaseException:
            self.close()
            raise

    def room(self, *, alone: bool = False) -> bool:
        """Whether a job could start at once."""
        return len(self._flights) < self._limits.concurrency and bool(self._free(alone=alone))

    def _free(self, *, alone: bool) -> list[Hand]:
        most = 1 if alone else self._threads
        return [hand for hand in self._hands if not hand.starting and len(hand.jobs) < most and not hand.alone]

    def give(self, job: Job, *, alone: bool = False) -> None:
        """Start a job at the worker with the least to do."""
        hand = min(self._free(alone=alone), key=lambda hand: len(hand.jobs))
        hand.jobs.append(job)
        hand.alone = alone
        self._flights[hand.actor.work.remote(job)] = (hand, job)

    def wait(self, timeout_s: float) -> Sequence[Happening]:
        """Which jobs ended, which workers died."""
        now = time.monotonic()
        if not self._pausing and not self._stillborn and now - self._grown_at >= LOOK_AT_NODES_S:
            # Nodes that join later get workers too; a cluster that scales itself begins with none.
            self._grown_at = now
            self._hands += [self._hire() for _ in range(self._wanted() - len(self._hands))]
        self._welcome()
        now = time.monotonic()
        if any(not hand.starting for hand in self._hands):
            self._staffed_at = now
        elif now - self._staffed_at > self._ready_s:  # its nodes are gone; a later start resumes the batch
            self._closed = self._closed or self._no_room()
        if not self._flights:
            time.sleep(0.02)  # all workers are being started
            return []
        refs = list(self._flights)
        ready, rest = self._ray.wait(refs, num_returns=1, timeout=timeout_s)
        if ready and rest:
            more, _ = self._ray.wait(rest, num_returns=len(rest), timeout=0)
            ready += more
        happenings: list[Happening] = []
        for ref in ready:
            if ref not in self._flights:
                continue  # its worker was buried with a flight before it
            hand, job = self._flights.pop(ref)
            try:
                happenings.append(self._ray.get(ref))
            except self._ray.exceptions.RayError as error:
                happenings.append(self._bury(hand, f"{type(error).__name__}; see Ray's logs of the node"))
            else:
                hand.jobs.remove(job)
                hand.alone = False
        return happenings

    def _bury(self, hand: Hand, how: str) -> Lost:
        self._flights = {ref: flight for ref, flight in self._flights.items() if flight[0] is not hand}
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(hand.actor)  # a half-dead one must not continue what others now do
        self._limiter.lost.remote(hand.who)
        if hand in self._hands:
            self._hands.remove(hand)
            if not self._pausing:
                self._hands.append(self._hire())
        return Lost(jobs=tuple(hand.jobs), how=how)

    def _welcome(self) -> None:
        """Take in workers that have started, and replace those that did not come up.

        After a row of those no more are hired, and the workers that run continue without them.
        """
        waiting = {hand.starting: hand for hand in self._hands if hand.starting}
        if not waiting:
            return
        ready, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        for ref in ready:
            hand = waiting[ref]
            try:
                problem = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                self._hands.remove(hand)
                self._stillborn += 1
                if not self._pausing and self._stillborn < STILLBORN:
                    self._hands.append(self._hire())
                elif not self._pausing and not self._hands:
                    # Ray says the reason last, after the frames of a stack.
                    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                    reason = lines[-1][:500] if lines else type(error).__name__
                    raise ConfigError(f"workers end on the cluster before they begin: {reason}") from None
                continue
            if problem:
                raise ConfigError(problem)
            hand.starting = None
            self._stillborn = 0

    def _wanted(self) -> int:
        """One worker per CPU, but not more than the work needs."""
        cpus = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        return min(cpus, -(-self._limits.concurrency // THREADS))

    def _await_first(self, cancel: threading.Event) -> None:
        """Wait until one worker is up or the batch is cancelled; a cluster without room is an error, not a wait."""
        give_up = time.monotonic() + self._ready_s
        while not self._free(alone=False) and not cancel.is_set():
            self._welcome()
            if time.monotonic() > give_up:
                raise ConfigError(self._no_room())
            cancel.wait(0.05)

    def _no_room(self) -> str:
        return (
            f"no worker could be started on the cluster within {self._ready_s:.0f} s; "
            f"it has {self._ray.cluster_resources().get('CPU', 0):g} CPUs (`ray status` shows who has them)"
        )

    def pause(self) -> None:
        """Tell every worker."""
        self._pausing = True
        for hand in self._hands:
            hand.actor.pause.remote()

    def closed(self) -> str | None:
        """Why the limiter lets nothing more out, as of a second ago."""
        now = time.monotonic()
        if self._closed is None and now - self._looked >= LOOK_AT_LIMITS_S:
            self._looked = now
            self._asked = self._asked or self._limiter.why_closed.remote()
            ready, _ = self._ray.wait([self._asked], timeout=0)
            if ready:
                with suppress(self._ray.exceptions.RayError):
                    self._closed = self._ray.get(self._asked)
                self._asked = None
        return self._closed

    def spent(self, usd: float) -> None:
        """Correct a limiter that was lost with its node."""
        if time.monotonic() - self._looked >= LOOK_AT_LIMITS_S:
            self._limiter.at_least.remote(usd)

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        for actor in (*(hand.actor for hand in self._hands), self._limiter):
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)
        if self._ours:
            self._ray.shutdown()
        with suppress(OSError):
            (self._order.folder / TOKEN).unlink()
        self._quiet.close()

    def _hire(self) -> Hand:
        actor = self._ray.remote(WorkerActor)
        options = actor.options(num_cpus=1, max_concurrency=self._threads + 2, scheduling_strategy="SPREAD")
        who = secrets.token_hex(8)
        hired = options.remote(self._order, self._limiter, who, counts=self._limits.limited)
        return Hand(hired, who, hired.problem.remote(self._token, sonde_version()))
