"""A small hybrid stack with random weights: three KDA layers to one MLA layer."""

from k3core.model.config import TORCH_DTYPES, ModelConfig
from k3core.model.layers import MLP, KDALayer, MLALayer
from k3core.model.stack import DecodeWindow, HybridModel, LayerMemory

__all__ = [
    "MLP",
    "TORCH_DTYPES",
    "DecodeWindow",
    "HybridModel",
    "KDALayer",
    "LayerMemory",
    "MLALayer",
    "ModelConfig",
]
