"""Shared test set-up: one torch thread, a hypothesis profile that never judges by wall clock."""

from hypothesis import HealthCheck, settings

import k3core.studies.single_thread  # noqa: F401

settings.register_profile(
    "lab", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("lab")
