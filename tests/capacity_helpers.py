"""Models, deployments and sizes that several tests of the planner draw from."""

import torch
from hypothesis import strategies as st

from k3core.capacity.memory import RequestMemory
from k3core.capacity.planner import Deployment
from k3core.capacity.presets import MODELS, PRESETS, ModelPreset
from k3core.capacity.profiles import PROFILES
from k3core.capacity.schemes import SCHEMES

K3 = PRESETS["kimi-k3"]
LINEAR = PRESETS["kimi-linear-48b"]
GLM = PRESETS["glm-5.3-flash"]
TOY = PRESETS["toy"]
K3_TP8 = RequestMemory(K3)
KIB, MIB = 2**10, 2**20

memories = st.builds(
    RequestMemory,
    model=st.sampled_from(list(PRESETS.values())),
    tp=st.sampled_from([1, 2, 4, 8, 16]),
    state_dtype=st.sampled_from(["float32", "bfloat16"]),
    conv_dtype=st.sampled_from(["float32", "bfloat16"]),
    mla_dtype=st.sampled_from(["float8", "bfloat16"]),
    draft_len=st.integers(0, 15),
)

deployments = st.builds(
    Deployment,
    model=st.sampled_from(list(MODELS)),
    tp=st.sampled_from([0, 1, 2, 4]),
    context=st.sampled_from([65_536, 131_072, 1_048_576]),
    mean_tokens=st.integers(0, 1_000_000),
    drafts=st.integers(0, 15),
    rollback=st.sampled_from(list(SCHEMES)),
    budget_gib=st.floats(0.5, 500),
    state_dtype=st.sampled_from(["float32", "bfloat16"]),
    mla_dtype=st.sampled_from(["", "float8", "bfloat16"]),
    drafter_layers=st.integers(0, 5),
    pool_rule=st.sampled_from(list(PROFILES)),
    quantum=st.sampled_from([16, 64, 128, 512]),
    max_running=st.sampled_from([0, 1, 64]),
)


def model(**changes) -> ModelPreset:
    sizes = {
        "code": "m",
        "title": "M",
        "num_kda_layers": 3,
        "mla_layer_ids": (4,),
        "num_heads": 4,
        "dk": 8,
        "dv": 16,
        "conv_width": 4,
        "mla_latent_dim": 32,
        "mla_dtype": "bfloat16",
        "hidden_size": 64,
        "num_mla_heads": 4,
        "gate_low_rank_dim": 8,
        "source": "a test",
    }
    return ModelPreset(**(sizes | changes))


def num_bytes(shape: tuple[int, ...], dtype: str) -> int:
    name = {"float8": "float8_e4m3fn"}.get(dtype, dtype)
    return torch.empty(shape, dtype=getattr(torch, name)).nbytes
