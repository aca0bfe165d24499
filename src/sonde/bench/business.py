"""The little businesses that seeded traces are about: a question, true facts, ordinary tool calls and a good answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Call = tuple[str, dict[str, Any], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One business."""

    agent: str
    thing: str
    question: str
    answer: str
    facts: tuple[str, ...]
    calls: tuple[Call, ...]


TOPICS = (
    Topic(
        agent="orders_agent",
        thing="order",
        question="Where is order 4711 and can I still change the address?",
        answer="Order 4711 left the warehouse on Monday; the address can be changed until the parcel reaches the depot.",
        facts=(
            "Addresses can be changed until a parcel has reached the depot.",
            "Parcels leave the warehouse at six in the evening.",
            "A change of address costs nothing within the same country.",
        ),
        calls=(
            ("order_status", {"order": 4711}, {"state": "shipped", "day": "Monday"}),
            ("parcel_position", {"parcel": "P-81"}, {"city": "Graz", "distance_km": 84}),
            ("address_rules", {"country": "AT"}, {"change_allowed": True, "fee": 0}),
        ),
    ),
    Topic(
        agent="travel_agent",
        thing="booking",
        question="What does it cost to move my flight to Lisbon by one day?",
        answer="Moving the flight to the next day costs 45 euros, and the fare difference is zero.",
        facts=(
            "Economy bookings can be moved once for 45 euros.",
            "The fare difference is due as well when the new flight is dearer.",
            "Changes are possible until two hours before departure.",
        ),
        calls=(
            ("booking", {"reference": "XK2P9"}, {"fare_class": "economy", "changes_used": 0}),
            ("fare_quote", {"to": "LIS", "day": "+1"}, {"fare": 129, "difference": 0}),
            ("seat_map", {"flight": "TP561"}, {"free_seats": 31}),
        ),
    ),
    Topic(
        agent="ledger_agent",
        thing="invoice",
        question="Which invoices of March are unpaid and what do they sum up to?",
        answer="Two invoices of March are unpaid, together 1,870 euros.",
        facts=(
            "Invoices are due thirty days after their date.",
            "An invoice counts as paid when the full amount has arrived.",
            "Reminders go out on the first working day of a month.",
        ),
        calls=(
            ("open_invoices", {"month": "2026-03"}, {"count": 2, "total": 1870}),
            ("payment_search", {"invoice": "R-204"}, {"paid": 0}),
            ("exchange", {"from": "USD", "to": "EUR"}, {"rate": 0.92}),
        ),
    ),
    Topic(
        agent="garden_agent",
        thing="plant",
        question="When do I cut back lavender, and how far?",
        answer="Cut lavender back by a third in late August, never into the old wood.",
        facts=(
            "Lavender is cut back by a third after flowering.",
            "Cuts into old wood do not sprout again.",
            "A second light cut in spring keeps the shape.",
        ),
        calls=(
            ("plant_card", {"plant": "lavender"}, {"flowering_ends": "August", "hardy": True}),
            ("weather", {"place": "Bonn"}, {"frost_days": 0}),
            ("calendar", {"month": 8}, {"weeks": 5}),
        ),
    ),
)
