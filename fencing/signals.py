"""Signals about leases and writes, sent with ``send_robust``: a receiver cannot break a write.

``lease_granted``   sender: the class ``Lease``; ``lease``
``lease_lost``      sender: the class ``Lease``; ``lease``, ``reason`` (text)
``write_rejected``  sender: the class ``Lease``; ``lease``, ``error``
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger("fencing")

lease_granted = Signal()
lease_lost = Signal()
write_rejected = Signal()


def announce(signal: Signal, sender: Any, **named: Any) -> None:
    """Send ``signal`` to every receiver and log those that raised, never raising itself."""
    if not signal.receivers:
        return
    for receiver, answer in signal.send_robust(sender=sender, **named):
        if isinstance(answer, Exception):
            logger.error("A receiver of a fencing signal raised: %r", receiver, exc_info=answer)
