"""Plots as inline SVG, drawn from numbers alone: no library, no script, nothing to fetch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from sonde.bench.metrics import Spread

WIDTH, ROW, LABEL, HEIGHT = 640, 28, 150, 300
LEFT, BOTTOM, TOP = 60, 40, 20
COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#787774")
Point = tuple[float, float]


def colour(number: int) -> str:
    """The colour of a series by its number, the same in every plot."""
    return COLOURS[number % len(COLOURS)]


def bars(values: Mapping[str, Spread]) -> str:
    """One horizontal bar from 0 to 1 for each name, with a whisker of one standard deviation."""
    scale = WIDTH - LABEL - 70
    drawn = ""
    for number, (name, value) in enumerate(values.items()):
        top, middle = number * ROW + 6, number * ROW + 6 + (ROW - 10) / 2
        length = max(0.0, min(value.mean, 1.0)) * scale
        low, high = (max(0.0, min(value.mean + side * value.deviation, 1.0)) * scale for side in (-1, 1))
        drawn += f'<text x="{LABEL - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(name)}</text>'
        drawn += f'<rect x="{LABEL}" y="{top}" width="{length:.1f}" height="{ROW - 10}" fill="{colour(number)}"/>'
        if value.deviation:
            ends = f'x1="{LABEL + low:.1f}" x2="{LABEL + high:.1f}"'
            drawn += f'<line {ends} y1="{middle:.1f}" y2="{middle:.1f}" stroke="#333"/>'
        drawn += f'<text x="{LABEL + max(length, high) + 6:.1f}" y="{middle + 4:.1f}">{escape(str(value))}</text>'
    return _svg(ROW * max(len(values), 1) + 8, drawn)


def lines(series: Mapping[str, Sequence[Point]], across: str, up: str) -> str:
    """A line for each name over a logarithmic axis; the other axis is 0 to 1."""
    everything = [x for points in series.values() for x, _ in points]
    if not everything:
        return ""
    low, high = min(everything), max(everything)
    room = WIDTH - LEFT - 60
    span = math.log(high / low) if high > low > 0 else 0.0

    def place(x: float) -> float:
        return LEFT + (room * math.log(x / low) / span if span else room / 2)

    drawn = [_axes(across, up)]
    for x in sorted(set(everything)):
        size, letter = (1e6, "M") if x >= 1e6 else (1e3, "k") if x >= 1e3 else (1, "")
        drawn.append(_tick(place(x), f"{x / size:.3g}{letter}" if letter else f"{x:g}"))
    for number, (name, points) in enumerate(series.items()):
        at = [(place(x), _height(y)) for x, y in sorted(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        legend = HEIGHT + 20 * number + 12
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour(number)}" stroke-width="2"/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour(number)}"/>' for x, y in at]
        drawn.append(f'<rect x="{LEFT}" y="{legend - 10}" width="12" height="12" fill="{colour(number)}"/>')
        drawn.append(f'<text x="{LEFT + 18}" y="{legend}">{escape(name)}</text>')
    return _svg(HEIGHT + 20 * len(series), "".join(drawn))


def dots(points: Mapping[str, Point], across: str, up: str) -> str:
    """One dot for each name; the axis across starts at zero, the other is 0 to 1."""
    if not points:
        return ""
    most = max(x for x, _ in points.values()) or 1.0

    def place(x: float) -> float:
        return LEFT + x / most * (WIDTH - LEFT - 130)

    drawn = [_axes(across, up), _tick(place(0), "0"), _tick(place(most), f"{most:.4g}")]
    for number, (name, (x, y)) in enumerate(points.items()):
        drawn.append(f'<circle cx="{place(x):.1f}" cy="{_height(y):.1f}" r="6" fill="{colour(number)}"/>')
        drawn.append(f'<text x="{place(x) + 9:.1f}" y="{_height(y) + 4:.1f}">{escape(name)}</text>')
    return _svg(HEIGHT, "".join(drawn))


def _height(value: float) -> float:
    return TOP + (1 - max(0.0, min(value, 1.0))) * (HEIGHT - TOP - BOTTOM)


def _axes(across: str, up: str) -> str:
    floor = _height(0)
    grid = "".join(
        f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{_height(y):.1f}" y2="{_height(y):.1f}" stroke="#ddd"/>'
        f'<text x="{LEFT - 8}" y="{_height(y) + 4:.1f}" text-anchor="end">{y:g}</text>'
        for y in (0, 0.25, 0.5, 0.75, 1)
    )
    return (
        f'{grid}<text x="{WIDTH / 2:.0f}" y="{floor + 36:.0f}" text-anchor="middle">{escape(across)}</text>'
        f'<text x="{LEFT - 8}" y="12" text-anchor="end">{escape(up)}</text>'
    )


def _tick(x: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{_height(0) + 18:.0f}" text-anchor="middle">{escape(text)}</text>'


def _svg(height: float, body: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img" font-size="13">{body}</svg>'
