"""The door to batches: a manifest, settings and limits in; results, a report and issues out.

outcome = run_batch(read_manifest(path), folder, settings, limits=SharedLimits(concurrency=16))
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

from sonde.api.settings import Settings
from sonde.api.trace_source import cache_folder
from sonde.batch.driver import BatchOutcome, OnProgress, drive
from sonde.batch.folder import BatchFolder
from sonde.batch.item_runner import Order, check_models
from sonde.batch.limits import Limiter, SharedLimits
from sonde.batch.local import LocalCrew
from sonde.batch.manifest import Manifest
from sonde.batch.plan import Plan, plan_batch
from sonde.batch.workers import Crew
from sonde.core.budget import Budget
from sonde.engines.whole_trace import READING_MAXIMA
from sonde.errors import ConfigError

LOCAL = "local"
RAY = "ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How a batch is run. `on` is local, ray (a cluster that is set up, or one started here) or ray://HOST:PORT."""

    on: str = LOCAL
    limits: SharedLimits = field(default_factory=SharedLimits)
    writeback: bool = True
    retry_failed: bool = False

    def __post_init__(self) -> None:
        if self.on not in (LOCAL, RAY) and not self.on.startswith("ray://"):
            raise ConfigError(f"--on {self.on} is no place for a batch: local, ray, or ray://HOST:PORT")


def run_batch(
    manifest: Manifest,
    folder: BatchFolder,
    settings: Settings,
    options: BatchOptions | None = None,
    *,
    cancel: threading.Event | None = None,
    on_progress: OnProgress | None = None,
) -> BatchOutcome:
    """Run what is not finished yet. Raises ConfigError before anything is spent."""
    chosen = options or BatchOptions()
    with folder.held():
        folder.write_manifest(manifest.items)
        plan = plan_batch(manifest.items, folder, retry_failed=chosen.retry_failed)
        if not plan.errands:
            return BatchOutcome(
                folder=folder,
                results=tuple(plan.finished.values()),
                left=0,
                stopped=None,
                broken=manifest.broken,
                spent_usd=plan.spent_usd,
            )
        crew = open_crew(plan, folder, settings, chosen, cancel)
        outcome = drive(plan, folder, crew, cancel=cancel, on_progress=on_progress, broken=manifest.broken)
        return replace(outcome, spent_usd=plan_batch(manifest.items, folder).spent_usd)


def open_crew(
    plan: Plan, folder: BatchFolder, settings: Settings, options: BatchOptions, cancel: threading.Event | None = None
) -> Crew:
    """The workers of the chosen place; ConfigError when no item could begin with these settings."""
    settings.budget(maxima=_maxima(plan))
    order = Order(settings=_with_cache(settings, folder), folder=folder.path, writeback=options.writeback)
    if options.on == LOCAL:
        check_models(settings)
        return LocalCrew(order, Limiter(options.limits, spent_usd=plan.spent_usd))
    from sonde.batch.cluster import RayCrew  # noqa: PLC0415  # Ray takes seconds to import, and may not be there

    return RayCrew(order, options.limits, options.on, spent_usd=plan.spent_usd, cancel=cancel)


def _maxima(plan: Plan) -> Budget | None:
    """What no item may have more of; an investigation with less refuses by itself. Questions have no maximum."""
    return None if any(errand.item.engine == "ask" for errand in plan.errands) else READING_MAXIMA


def _with_cache(settings: Settings, folder: BatchFolder) -> Settings:
    """Indexes of trace files are kept with the batch where there is no home for them: else every item would build its own."""
    if cache_folder(settings.environ) is not None:
        return settings
    return replace(settings, environ={**settings.environ, "XDG_CACHE_HOME": str(folder.path / "cache")})
