"""The stack: against a naive forward pass, and its decode windows bit for bit."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from k3core.errors import K3Error
from k3core.kda import KDAState
from k3core.model import HybridModel, KDALayer, MLALayer, ModelConfig

SMALL = ModelConfig(
    num_layers=4, hidden_size=24, num_heads=2, dk=6, dv=10, gate_rank=5, kv_latent=12,
    rope_width=4, nope_width=7, value_width=9, mlp_size=32, vocab_size=61, dtype="float64",
)  # fmt: skip


class TensorMemory:
    """The memory of one request in plain tensors."""

    def __init__(self, config: ModelConfig) -> None:
        self.states = {layer: config.zero_state() for layer in config.kda_layers}
        empty = torch.zeros(0, config.mla_row_width, dtype=self.states[0].recurrent.dtype)
        self.rows = dict.fromkeys(config.mla_layers, empty)

    def load_kda(self, layer: int) -> KDAState:
        return self.states[layer]

    def store_kda(self, layer: int, state: KDAState) -> None:
        self.states[layer] = state

    def append_mla(self, layer: int, rows: Tensor) -> None:
        self.rows[layer] = torch.cat([self.rows[layer], rows])

    def read_mla(self, layer: int) -> Tensor:
        return self.rows[layer]

    def cut_mla(self, layer: int, num_tokens: int) -> None:
        self.rows[layer] = self.rows[layer][:num_tokens].clone()

    def equals(self, other: TensorMemory) -> bool:
        states = all(
            torch.equal(mine, theirs)
            for layer in self.states
            for mine, theirs in zip(self.states[layer], other.states[layer], strict=True)
        )
        return states and all(torch.equal(self.rows[i], other.rows[i]) for i in self.rows)


def random_tokens(count: int, vocab_size: int = SMALL.vocab_size, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (count,), generator=generator).tolist()


def norm(x: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


def naive_kda(layer: KDALayer, x: Tensor) -> Tensor:
    """The layer over a whole sequence, one token and one head at a time."""
    c = layer.config
    raw, low, b, out_gate = (x @ layer.w_in.T).split(layer.sizes, dim=-1)
    padded = torch.cat([raw.new_zeros(c.conv_width - 1, c.conv_channels), raw])
    outputs = []
    states = [raw.new_zeros(c.dk, c.dv) for _ in range(c.num_heads)]
    for t in range(len(x)):
        y = (padded[t : t + c.conv_width] * layer.conv_weight.T).sum(0)
        y = y / (1 + torch.exp(-y))
        f = (layer.w_gate @ low[t]).view(c.num_heads, c.dk)
        row = []
        for h in range(c.num_heads):
            q = y[h * c.dk : (h + 1) * c.dk]
            k = y[(c.num_heads + h) * c.dk :][: c.dk]
            v = y[2 * c.num_heads * c.dk + h * c.dv :][: c.dv]
            q = q / (q @ q + 1e-6).sqrt() / c.dk**0.5
            k = k / (k @ k + 1e-6).sqrt()
            slope = layer.a_log[h].exp()
            g = c.lower_bound / (1 + torch.exp(-slope * (f[h] + layer.dt_bias[h])))
            beta = 1 / (1 + torch.exp(-b[t, h]))
            decayed = g.exp()[:, None] * states[h]
            states[h] = decayed + torch.outer(k, beta * (v - decayed.T @ k))
            gate = 1 / (1 + torch.exp(-out_gate[t, h * c.dv : (h + 1) * c.dv]))
            row.append(norm(states[h].T @ q) * gate)
        outputs.append(layer.w_out @ torch.cat(row))
    return torch.stack(outputs)


def naive_mla(layer: MLALayer, x: Tensor) -> Tensor:
    """The layer with keys and values spelt out per head."""
    c = layer.config
    latent, slot = (x @ layer.w_kv.T).split([c.kv_latent, c.rope_width], dim=-1)
    latent = norm(latent)
    q = (x @ layer.w_q.T).view(len(x), c.num_heads, -1)
    outputs = []
    for t in range(len(x)):
        row = []
        for h in range(c.num_heads):
            keys = torch.cat([latent @ layer.w_key[h].T, slot], dim=-1)
            values = latent @ layer.w_value[h]
            scores = keys[: t + 1] @ q[t, h] * layer.scale
            row.append(torch.softmax(scores, 0) @ values[: t + 1])
        gate = torch.sigmoid(layer.w_out_gate @ x[t])
        outputs.append(layer.w_out @ (torch.cat(row) * gate))
    return torch.stack(outputs)


def naive_logits(model: HybridModel, tokens: list[int]) -> Tensor:
    x = model.embedding[tokens]
    for block in model.blocks:
        mixer = block.mixer
        normed = norm(x)
        x = x + (naive_kda if isinstance(mixer, KDALayer) else naive_mla)(mixer, normed)
        gate, up = (norm(x) @ block.mlp.w_in.T).chunk(2, dim=-1)
        x = x + (gate * torch.sigmoid(gate) * up) @ block.mlp.w_out.T
    return norm(x) @ model.w_head.T


SMALL_MODEL = HybridModel(SMALL)


@pytest.fixture
def model() -> HybridModel:
    return SMALL_MODEL


def test_prefill_and_decode_agree_with_a_naive_forward_pass(model: HybridModel) -> None:
    tokens = random_tokens(90)
    expected = naive_logits(model, tokens)
    memory = TensorMemory(SMALL)
    assert (model.prefill(tokens[:70], memory) - expected[69]).abs().max() < 1e-10
    window = model.verify(tokens[70:], memory)
    assert (window.logits - expected[70:]).abs().max() < 1e-10


@settings(max_examples=20)
@given(cuts=st.sets(st.integers(1, 89), max_size=5))
def test_prefill_in_chunks_agrees_with_prefill_at_once(cuts: set[int]) -> None:
    model = SMALL_MODEL
    tokens = random_tokens(90)
    whole, split = TensorMemory(SMALL), TensorMemory(SMALL)
    expected = model.prefill(tokens, whole)
    edges = [0, *sorted(cuts), 90]
    for start, end in pairwise(edges):
        logits = model.prefill(tokens[start:end], split)
    assert (logits - expected).abs().max() < 1e-11
    for layer in SMALL.kda_layers:
        for mine, theirs in zip(split.states[layer], whole.states[layer], strict=True):
            assert (mine - theirs).abs().max() < 1e-11


ODD = ModelConfig(
    num_layers=8, hidden_size=13, num_heads=3, dk=5, dv=7, conv_width=3, gate_rank=3, kv_latent=11,
    rope_width=3, nope_width=5, value_width=7, mlp_size=17, vocab_size=61,
)  # fmt: skip
TOY = ModelConfig(vocab_size=61)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [SMALL, ODD, TOY], ids=["small", "odd", "toy"])
@pytest.mark.parametrize("window_len", [1, 2, 5, 8])
def test_window_rows_equal_single_steps_bit_for_bit(
    dtype: str, sizes: ModelConfig, window_len: int
) -> None:
    config = dataclasses.replace(sizes, dtype=dtype)
    model = HybridModel(config)
    prompt, tokens = random_tokens(33), random_tokens(window_len, seed=1)
    one, many = TensorMemory(config), TensorMemory(config)
    model.prefill(prompt, one)
    model.prefill(prompt, many)
    window = model.verify(tokens, many)
    for t, token in enumerate(tokens):
        step = model.verify([token], one)
        model.commit(step, 1, one)
        assert torch.equal(step.logits[0], window.logits[t])


def test_verify_leaves_the_committed_states_alone(model: HybridModel) -> None:
    memory = TensorMemory(SMALL)
    model.prefill(random_tokens(20), memory)
    before = {layer: [x.clone() for x in state] for layer, state in memory.states.items()}
    model.verify(random_tokens(6, seed=1), memory)
    for layer, state in memory.states.items():
        assert all(torch.equal(x, y) for x, y in zip(state, before[layer], strict=True))


@settings(max_examples=20)
@given(num_accepted=st.integers(1, 7), prompt_len=st.integers(1, 20))
def test_commit_leaves_what_plain_decoding_of_the_kept_tokens_leaves(
    num_accepted: int, prompt_len: int
) -> None:
    model = SMALL_MODEL
    prompt, tokens = random_tokens(prompt_len), random_tokens(7, seed=1)
    plain, speculative = TensorMemory(SMALL), TensorMemory(SMALL)
    model.prefill(prompt, plain)
    model.prefill(prompt, speculative)
    for token in tokens[:num_accepted]:
        model.commit(model.verify([token], plain), 1, plain)
    model.commit(model.verify(tokens, speculative), num_accepted, speculative)
    assert speculative.equals(plain)


@pytest.mark.parametrize("num_accepted", [0, -1, 4])
def test_commit_outside_the_window_raises_and_changes_nothing(
    model: HybridModel, num_accepted: int
) -> None:
    memory, untouched = TensorMemory(SMALL), TensorMemory(SMALL)
    for each in (memory, untouched):
        model.prefill(random_tokens(5), each)
        window = model.verify([1, 2, 3], each)
    with pytest.raises(K3Error, match=f"num_accepted={num_accepted}"):
        model.commit(window, num_accepted, memory)
    assert memory.equals(untouched)


def test_a_later_window_token_never_changes_earlier_logits(model: HybridModel) -> None:
    prompt = random_tokens(20)
    logits = []
    for last in (3, 4):
        memory = TensorMemory(SMALL)
        model.prefill(prompt, memory)
        logits.append(model.verify([1, 2, last], memory).logits)
    assert torch.equal(logits[0][:2], logits[1][:2])
    assert not torch.equal(logits[0][2], logits[1][2])


def test_the_convolution_window_matters_to_the_next_tokens(model: HybridModel) -> None:
    kept, dropped = TensorMemory(SMALL), TensorMemory(SMALL)
    for memory in (kept, dropped):
        model.prefill(random_tokens(20), memory)
    for layer, state in dropped.states.items():
        dropped.states[layer] = KDAState(state.recurrent, torch.zeros_like(state.conv_window))
    difference = model.verify([1], kept).logits - model.verify([1], dropped).logits
    assert difference.abs().max() > 1e-3


def test_layers_are_three_kda_to_one_mla() -> None:
    config = ModelConfig(num_layers=8)
    assert config.mla_layers == (3, 7)
    assert config.kda_layers == (0, 1, 2, 4, 5, 6)
    assert config.kda_groups == ((0, 4), (1, 5), (2, 6))


def test_another_ratio_of_layers_keeps_one_group_per_place_in_the_period() -> None:
    config = ModelConfig(num_layers=6, kda_per_mla=2)
    assert config.mla_layers == (2, 5)
    assert config.kda_layers == (0, 1, 3, 4)
    assert config.kda_groups == ((0, 3), (1, 4))


def test_byte_properties_are_the_bytes_of_real_tensors() -> None:
    for dtype in ("float32", "float64"):
        config = dataclasses.replace(SMALL, dtype=dtype)
        state = config.zero_state()
        assert config.recurrent_bytes == state.recurrent.nbytes
        assert config.window_bytes == state.conv_window.nbytes
        memory = TensorMemory(config)
        HybridModel(config).prefill([1, 2, 3], memory)
        assert config.mla_row_bytes * 3 == memory.rows[3].nbytes


def test_parameters_are_counted_from_real_tensors(model: HybridModel) -> None:
    tensors = {id(model.embedding): model.embedding, id(model.w_head): model.w_head}
    for owner in (model, *(part for block in model.blocks for part in (block.mixer, block.mlp))):
        tensors.update({id(x): x for x in vars(owner).values() if isinstance(x, Tensor)})
    for block in model.blocks:
        tensors.update({id(x): x for x in (block.mixer_norm, block.mlp_norm)})
    assert model.num_parameters == sum(x.numel() for x in tensors.values())


def test_a_tied_head_shares_the_embedding() -> None:
    tied = HybridModel(dataclasses.replace(SMALL, tied_head=True))
    assert tied.w_head is tied.embedding
    untied = HybridModel(SMALL)
    assert untied.num_parameters - tied.num_parameters == SMALL.vocab_size * SMALL.hidden_size


def test_weights_follow_the_seed(model: HybridModel) -> None:
    assert torch.equal(HybridModel(SMALL).w_head, model.w_head)
    other = HybridModel(dataclasses.replace(SMALL, seed=1))
    assert not torch.equal(other.w_head, model.w_head)


@settings(max_examples=50)
@given(first=st.integers(1, 200), second=st.integers(1, 200))
def test_operations_of_a_split_prefill_add_up(first: int, second: int) -> None:
    model = SMALL_MODEL
    head = 2 * model.w_head.numel()
    whole = model.flops(first + second)
    assert whole == model.flops(first) + model.flops(second, first) - head


def test_operations_grow_with_the_text_only_in_mla(model: HybridModel) -> None:
    kda, mla = model.blocks[0].mixer, model.blocks[3].mixer
    assert kda.flops(4, 0) == kda.flops(4, 10_000)
    per_pair = 2 * SMALL.num_heads * (SMALL.mla_row_width + SMALL.kv_latent)
    assert mla.flops(4, 10_000) - mla.flops(4, 0) == 4 * 10_000 * per_pair


@pytest.mark.parametrize("tokens", [[], [-1], [3, SMALL.vocab_size]])
def test_bad_tokens_raise_before_anything_is_written(model: HybridModel, tokens: list[int]) -> None:
    memory = TensorMemory(SMALL)
    for run in (model.prefill, model.verify):
        with pytest.raises(K3Error, match="tokens"):
            run(tokens, memory)
    assert memory.equals(TensorMemory(SMALL))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_layers", 6), ("num_layers", 0), ("kda_per_mla", 0), ("hidden_size", -1), ("dk", 0),
        ("conv_width", 1), ("lower_bound", 0.0), ("dtype", "float16"), ("vocab_size", 2.5),
    ],
)  # fmt: skip
def test_bad_sizes_raise_and_name_the_field(field: str, value: object) -> None:
    with pytest.raises(K3Error, match=field):
        dataclasses.replace(SMALL, **{field: value})
