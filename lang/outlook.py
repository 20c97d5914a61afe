"""What is known of a run beyond the request that it is about to send: its plan, and what earlier runs have shown.

Knows nothing of where either comes from. All of it is a hint: right or wrong, the answers are the same.
"""

from __future__ import annotations

from ..types import Ahead
from .journal import Journal, Step


class Outlook:
    """Of one run. This one knows nothing."""

    def ahead(self, step: Step) -> Ahead:
        """For the request that was last asked for the step."""
        return Ahead()

    def ended(self, journal: Journal) -> None:
        """The run has ended well; called on the language's loop."""
