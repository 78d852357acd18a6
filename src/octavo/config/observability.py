"""What is asked about logs."""

from __future__ import annotations

from typing import Annotated

import msgspec

from octavo.config.option import Doc


class ObservabilityAsked(msgspec.Struct, frozen=True, kw_only=True):
    disable_log_stats: Annotated[
        bool, Doc("No line of statistics every ten seconds while there is work.", flag_only=True)
    ] = False
    enable_log_requests: Annotated[
        bool, Doc("Log the parameters of each request when it comes, beside the line at its end.")
    ] = False
