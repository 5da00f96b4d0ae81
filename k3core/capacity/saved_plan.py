"""A plan that was downloaded as JSON, read back into its inputs."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from k3core.capacity.config_json import load_json
from k3core.capacity.configs import parse_config
from k3core.capacity.planner import CapacityPlan, Deployment, plan
from k3core.errors import CapacityError, require, require_type

CUSTOM = "custom"


@dataclass(frozen=True)
class SavedPlan:
    """Inputs of a saved plan.

    Attributes:
        deployment: what to plan again.
        model: name of the model.
        config: text of the reader's own ``config.json``, or an empty string.
    """

    deployment: Deployment
    model: str
    config: str = ""


def save_plan(planned: CapacityPlan, config: str = "") -> str:
    """A plan as JSON; ``config`` is the text of the reader's own model, which travels along."""
    require_type("planned", planned, CapacityPlan, CapacityError)
    require_type("config", config, str, CapacityError)
    values: dict[str, Any] = planned.as_dict()
    if config:
        values["config"] = json.loads(config)
    return json.dumps(values, indent=2)


def is_saved_plan(text: str) -> bool:
    """Whether a text looks like a saved plan rather than a model's ``config.json``."""
    return isinstance(text, str) and text.lstrip().startswith("{") and '"engine_rule"' in text


def load_plan(text: str) -> SavedPlan:
    """The inputs of a saved plan, checked by planning them again.

    Raises:
        K3Error: no saved plan, an input is missing or impossible, or the model's own file
            is not there or no known hybrid.
    """
    require_type("text", text, str, CapacityError)
    saved = load_json(text, "the saved plan", CapacityError)
    saved = saved if isinstance(saved, dict) else {}
    inputs = require_type("inputs", saved.get("inputs"), dict, CapacityError)
    names = [field.name for field in fields(Deployment) if field.name != "preset"]
    known = {name: inputs[name] for name in names if name in inputs}
    require("model" in known, "the saved plan names no model", CapacityError)
    preset, config = None, ""
    if known["model"] == CUSTOM:
        require(
            isinstance(saved.get("config"), dict),
            "the saved plan is of a model of its own but holds no config",
            CapacityError,
        )
        config = json.dumps(saved["config"])
        preset = parse_config(config).preset
    planned = plan(Deployment(**known, preset=preset))
    return SavedPlan(planned.deployment, planned.model.title, config)
