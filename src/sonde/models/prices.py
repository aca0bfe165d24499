"""What a reply cost, from the price list that genai-prices carries in its package. Nothing is fetched."""

from __future__ import annotations

from sonde.models.base import TokenUsage

FREE = frozenset({"command", "local"})  # whatever their names look like


def price(model_name: str, usage: TokenUsage) -> float | None:
    """US dollars, cached tokens at their own price; None when the list does not know the model.

    A name like `openai/gpt-4o-mini`, as gateways spell it, is looked up without its vendor when unknown as a whole.
    """
    from genai_prices import Usage, calc_price  # noqa: PLC0415  # 0.3 s to import, not for `sonde --help`

    tokens = Usage(
        input_tokens=usage.tokens_in,
        cache_read_tokens=min(usage.cached_in, usage.tokens_in),
        output_tokens=usage.tokens_out,
    )
    for name in dict.fromkeys((model_name, model_name.rpartition("/")[2])):
        try:
            return float(calc_price(tokens, name).total_price)
        except LookupError:
            continue
    return None


def dearest(model: str, usage: TokenUsage) -> float | None:
    """What a call of `provider:name` may cost at most; None when nobody knows. The list knows models without their provider."""
    kind, _, name = model.partition(":")
    return None if kind in FREE else price(name or kind, usage)
