"""How many requests a minute an address may make."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from typing import Callable, Tuple

from fairseq_tg.serve.refusals import Refusal

#: Addresses remembered at once: an attacker with many does not fill the memory
MOST_ADDRESSES = 20_000


class Rates:
    """A bucket of a minute's requests for each address, which fills again all the time."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute, self._clock = per_minute, clock
        self._buckets: OrderedDict[str, Tuple[float, float]] = OrderedDict()  # what is left, and when that was

    def check(self, address: str) -> None:
        """Count a request, or refuse it with when to come back."""
        if not self.per_minute:
            return
        network, now, refill = _network(address), self._clock(), self.per_minute / 60
        left, since = self._buckets.pop(network, (float(self.per_minute), now))
        left = min(self.per_minute, left + (now - since) * refill)
        enough = left >= 1
        self._buckets[network] = (left - enough, now)
        if len(self._buckets) > MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        if not enough:
            wait = max(1, math.ceil((1 - left) / refill))
            raise Refusal(429, f"Slowdown: {self.per_minute} per 1 minute", {"Retry-After": str(wait)})


def _network(address: str) -> str:
    """An IPv4 address; of IPv6 the 64 bits that one customer has."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address
