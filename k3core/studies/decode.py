"""Studies of speculative rollback: what a step keeps and costs, whether the replay is exact."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd
import torch

from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import PRESETS
from k3core.capacity.rollback import rollback_cost
from k3core.decode import (
    DraftProjections,
    projection_bytes,
    snapshot_bytes,
    snapshot_cost_ratio,
    verify_and_replay,
)
from k3core.errors import require
from k3core.kda import kda_gate, kda_recurrent, normalize_qk
from k3core.studies import single_thread  # noqa: F401
from k3core.studies.oracle import oracle_recurrent
from k3core.units import bytes_text

TOLERANCE = 1e-12
INPUT_SCHEMES = ("raw-inputs", "low-rank-inputs", "fp32-inputs")
SWEEP_SIZES = (4, 8, 16, 32, 64, 128, 256)
SWEEP_DRAFTS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class ToyStep:
    """One verify step on real tensors.

    Attributes:
        committed: (1, H, K, V) state before the step.
        projections: inputs of the ``T`` tokens of the window.
    """

    committed: torch.Tensor
    projections: DraftProjections


def toy_step(heads: int, dk: int, dv: int, window_len: int, seed: int) -> ToyStep:
    """A committed state reached by 32 real steps, then a window of ``window_len`` tokens, fp64.

    Keys are correlated (each is near the one before): random keys hide faults of the recurrence.
    """
    for name, value in {"heads": heads, "dk": dk, "dv": dv, "window_len": window_len}.items():
        require(value >= 1, f"{name}={value} must be at least 1")
    generator = torch.Generator().manual_seed(seed)
    num_tokens = 32 + window_len

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    drift = normal(1, heads, num_tokens, dk) * 0.4
    keys = normal(1, heads, 1, dk) + drift.cumsum(dim=2) / num_tokens**0.5
    q, k = normalize_qk(normal(1, heads, num_tokens, dk), keys)
    v = normal(1, heads, num_tokens, dv)
    g = kda_gate(normal(1, heads, num_tokens, dk) - 3.0)
    beta = torch.sigmoid(normal(1, heads, num_tokens))
    history = slice(0, 32)
    _, committed = kda_recurrent(
        q[:, :, history], k[:, :, history], v[:, :, history], g[:, :, history], beta[:, :, history]
    )
    window = slice(32, num_tokens)
    projections = DraftProjections.from_sequences(
        q[:, :, window], k[:, :, window], v[:, :, window], g[:, :, window], beta[:, :, window]
    )
    return ToyStep(committed, projections)


@dataclass(frozen=True)
class RollbackStudy:
    """What one verify step keeps (production bytes) and what the replay gives (toy tensors).

    Tables:
        window: one row per position and lane; bytes over all KDA (MLA) layers, one rank.
        totals: one row per lane; ``word`` is a code: the scheme of the inputs, work for a replay.
        sizes: bytes of one draft step, all KDA layers and one rank, against dk = dv.
        tensors: measured bytes of the toy tensors of one draft step.
        flow: the replay of this run, step by step.
        scenarios: outputs of a partial, a full and an empty acceptance.
        state: the first head's state before, after rejected drafts, replayed, and the difference.
    """

    tables: dict[str, pd.DataFrame]
    window_len: int
    num_accepted: int
    snapshot_total_bytes: int
    input_total_bytes: int
    mla_total_bytes: int
    bits_different: int
    polluted_error: float
    bytes_per_snapshot: int
    bytes_per_input: int
    state_bytes_per_layer: int
    record_bytes_per_token_layer: int
    num_kda_layers: int
    mla_bytes_per_token: int
    inputs_smaller_from: int
    element_ratio: float

    @property
    def ratio(self) -> float:
        """Snapshot bytes over input bytes of one draft token."""
        return self.bytes_per_snapshot / self.bytes_per_input


def rollback(
    model: str = "kimi-k3",
    tp: int = 8,
    state_dtype: str = "float32",
    mla_dtype: str = "float8",
    input_scheme: str = "raw-inputs",
    draft_len: int = 7,
    accepted: int = 3,
    heads: int = 2,
    dk: int = 16,
    dv: int = 16,
    seed: int = 0,
) -> RollbackStudy:
    """One verify step of ``T = 1 + draft_len`` tokens of which ``accepted`` are kept."""
    window_len = 1 + draft_len
    require(0 <= accepted <= window_len, f"accepted={accepted} must be in 0..{window_len}")
    memory = RequestMemory(PRESETS[model], tp, state_dtype, mla_dtype=mla_dtype)
    cost = rollback_cost(memory, input_scheme, max(draft_len, 1))
    by_size = ((n, *_token_layer_bytes(memory, input_scheme, n)) for n in range(1, 1025))
    layers = memory.model.num_kda_layers
    per_token = {
        "mla_rows": memory.mla_bytes_per_token,
        "snapshots": layers * memory.state_bytes_per_layer,
        "inputs": layers * cost.record_bytes_per_token_layer,
        "replayed": layers * memory.state_bytes_per_layer,
    }

    toy = toy_step(heads, dk, dv, window_len, seed)
    replayed, outputs = verify_and_replay(toy.committed, toy.projections, accepted)
    sequence = toy.projections[:accepted].sequences()
    reference_out, reference = kda_recurrent(*sequence, toy.committed)
    bits = int((replayed != reference).sum() + (outputs != reference_out).sum())
    polluted, _ = verify_and_replay(toy.committed, toy.projections, window_len)
    scale = float(reference.abs().max())

    window = _window_table(window_len, accepted, per_token)
    totals = window.groupby("lane", as_index=False, sort=False)["bytes"].sum()
    totals["text"] = [
        f"{accepted} / {window_len}" if lane == "tokens" else bytes_text(total)
        for lane, total in zip(totals["lane"], totals["bytes"], strict=True)
    ]
    totals["word"] = totals["lane"].map({"inputs": input_scheme, "replayed": "work"}).fillna("")
    return RollbackStudy(
        tables={
            "window": window,
            "totals": totals,
            "sizes": _size_table(memory, input_scheme),
            "tensors": _tensor_table(toy),
            "flow": _flow_table(toy, accepted, bits),
            "scenarios": _scenario_table(toy),
            "state": _state_table(toy.committed, polluted, replayed, reference),
            "formula": pd.DataFrame(
                {
                    "row": ["elements_snapshot", "elements_inputs", "elements_ratio"],
                    "value": [
                        f"{heads} · {dk} · {dv} = {heads * dk * dv:,}",
                        f"{heads} · (3 · {dk} + {dv} + 1) = {heads * (3 * dk + dv + 1):,}",
                        f"{snapshot_cost_ratio(heads, dk, dv):.2f}",
                    ],
                }
            ),
        },
        window_len=window_len,
        num_accepted=accepted,
        snapshot_total_bytes=window_len * per_token["snapshots"],
        input_total_bytes=window_len * per_token["inputs"],
        mla_total_bytes=window_len * per_token["mla_rows"],
        bits_different=bits,
        polluted_error=float((polluted - replayed).abs().max()) / scale if scale else 0.0,
        bytes_per_snapshot=per_token["snapshots"],
        bytes_per_input=per_token["inputs"],
        state_bytes_per_layer=memory.state_bytes_per_layer,
        record_bytes_per_token_layer=cost.record_bytes_per_token_layer,
        num_kda_layers=layers,
        mla_bytes_per_token=per_token["mla_rows"],
        inputs_smaller_from=next(size for size, state, inputs in by_size if state > inputs),
        element_ratio=snapshot_cost_ratio(heads, dk, dv),
    )


def _token_layer_bytes(memory: RequestMemory, input_scheme: str, size: int) -> tuple[int, int]:
    """Bytes of one state and of one token's inputs, one layer, if dk = dv = ``size``."""
    sized = replace(memory, model=replace(memory.model, dk=size, dv=size))
    cost = rollback_cost(sized, input_scheme, 1)
    return sized.state_bytes_per_layer, cost.record_bytes_per_token_layer


def _window_table(window_len: int, accepted: int, per_token: dict[str, int]) -> pd.DataFrame:
    rows = []
    for position in range(window_len):
        kept = position < accepted
        last = position == accepted - 1
        rows.append((position, "tokens", 0, "kept" if kept else "rejected"))
        rows.append((position, "mla_rows", per_token["mla_rows"], "kept" if kept else "dropped"))
        rows.append((position, "snapshots", per_token["snapshots"], "kept" if last else "dropped"))
        rows.append((position, "inputs", per_token["inputs"], "kept" if kept else "dropped"))
        if kept:
            rows.append((position, "replayed", per_token["replayed"], "kept" if last else "passed"))
    return pd.DataFrame(rows, columns=["position", "lane", "bytes", "status"])


def _size_table(memory: RequestMemory, input_scheme: str) -> pd.DataFrame:
    """Bytes of one draft token at other head sizes, same heads, layers and formats."""
    rows = []
    for size in SWEEP_SIZES:
        snapshot, inputs = _token_layer_bytes(memory, input_scheme, size)
        rows += [(size, "snapshots", snapshot), (size, "inputs", inputs)]
    table = pd.DataFrame(rows, columns=["dk", "kind", "bytes"])
    return table.assign(bytes=table["bytes"] * memory.model.num_kda_layers)


def _tensor_table(toy: ToyStep) -> pd.DataFrame:
    one = toy.projections[:1]
    rows = [("state", "snapshots", toy.committed.nbytes)]
    rows += [(name, "inputs", tensor.nbytes) for name, tensor in one.tensors().items()]
    return pd.DataFrame(rows, columns=["tensor", "kind", "bytes"])


def _flow_table(toy: ToyStep, accepted: int, bits: int) -> pd.DataFrame:
    shape = " × ".join(str(size) for size in toy.committed.shape)
    rows = [
        ("committed", f"S ({shape}), {bytes_text(toy.committed.nbytes)}", "kda"),
        ("window", f"T = {len(toy.projections)}, {bytes_text(toy.projections.nbytes)}", "inputs"),
        ("prefix", f"[:{accepted}], {bytes_text(toy.projections[:accepted].nbytes)}", "inputs"),
        ("steps", f"kda_step × {accepted}", "kda"),
        ("compare", f"{bits:,}", "accepted" if bits == 0 else "rejected"),
    ]
    table = pd.DataFrame(rows, columns=["box", "number", "kind"])
    table["step"] = range(len(table))
    return table


def _scenario_table(toy: ToyStep) -> pd.DataFrame:
    window_len = len(toy.projections)
    rows = []
    for scenario, accepted in (("all", window_len), ("partial", window_len // 2), ("none", 0)):
        _, outputs = verify_and_replay(toy.committed, toy.projections, accepted)
        rows.append((scenario, accepted, outputs.shape[2]))
    return pd.DataFrame(rows, columns=["scenario", "accepted", "output_steps"])


def _state_table(
    committed: torch.Tensor, polluted: torch.Tensor, replayed: torch.Tensor, reference: torch.Tensor
) -> pd.DataFrame:
    """Entries of the first head, at most 24 rows and columns, as tidy rows."""
    frames = []
    pictures = {
        "committed": committed,
        "polluted": polluted,
        "replayed": replayed,
        "difference": replayed - reference,
    }
    for picture, state in pictures.items():
        matrix = state[0, 0, :24, :24]
        frame = pd.DataFrame(matrix.numpy()).stack().rename("value").reset_index()
        frame.columns = pd.Index(["row", "column", "value"])
        frames.append(frame.assign(picture=picture))
    return pd.concat(frames, ignore_index=True)


@dataclass(frozen=True)
class CostStudy:
    """Snapshot against inputs over head sizes and draft lengths.

    Tables:
        by_draft: ratio of elements and bytes of both schemes against the draft length.
        by_dk: ratio against dk at a fixed dv, with the line where a snapshot is cheaper.
    """

    tables: dict[str, pd.DataFrame]
    ratio: float
    byte_ratio: float
    heads: int
    dk: int
    dv: int


def snapshot_cost(
    heads: int = 2,
    dk: int = 16,
    dv: int = 16,
    sweep_dv: int = 32,
    state_dtype: str = "float32",
    input_dtype: str = "bfloat16",
) -> CostStudy:
    """Cost of a snapshot over the cost of its inputs (q, k, v, g, beta) in elements and bytes.

    ``ratio`` counts elements: it equals the ratio of bytes when both share a format.
    ``byte_ratio`` keeps the state in ``state_dtype`` and every input in ``input_dtype``.
    """
    ratio = snapshot_cost_ratio(heads, dk, dv)

    def both(draft_len: int, key_size: int, value_size: int) -> tuple[int, int]:
        return (
            snapshot_bytes(heads, key_size, value_size, draft_len, state_dtype),
            projection_bytes(
                heads, key_size, value_size, draft_len, input_dtype, input_dtype, input_dtype
            ),
        )

    by_draft = pd.DataFrame(
        [
            (n, snapshot_cost_ratio(heads, dk, dv, n), *both(n, dk, dv))
            for n in range(1, max(SWEEP_DRAFTS) + 1)
        ],
        columns=["draft_len", "ratio", "snapshots", "inputs"],
    )
    by_draft["byte_ratio"] = by_draft["snapshots"] / by_draft["inputs"]
    by_draft["gap"] = by_draft["snapshots"] - by_draft["inputs"]
    by_dk = pd.DataFrame(
        [(size, snapshot_cost_ratio(heads, size, sweep_dv)) for size in (1, 2, *SWEEP_SIZES)],
        columns=["dk", "ratio"],
    )
    by_dk["cheaper"] = ["inputs" if r > 1 else "snapshots" for r in by_dk["ratio"]]
    snapshots, inputs = both(1, dk, dv)
    return CostStudy(
        {"by_draft": by_draft, "by_dk": by_dk}, ratio, snapshots / inputs, heads, dk, dv
    )


@dataclass(frozen=True)
class ConsistencyStudy:
    """The replay against the full recurrence and against an independent oracle, for every n.

    Tables:
        by_accepted: one row per n = 0..T with the largest differences.
        scenarios: the source text's three cases with their verdict.
    """

    tables: dict[str, pd.DataFrame]
    num_pass: int
    num_cases: int
    worst_oracle_error: float


def consistency(
    draft_len: int = 7, heads: int = 2, dk: int = 16, dv: int = 16, seed: int = 0
) -> ConsistencyStudy:
    """Replay 0..T tokens and compare outputs and state, bit for bit and with the oracle."""
    window_len = 1 + draft_len
    toy = toy_step(heads, dk, dv, window_len, seed)
    before = toy.committed.clone()
    rows = []
    for accepted in range(window_len + 1):
        state, outputs = verify_and_replay(toy.committed, toy.projections, accepted)
        sequence = toy.projections[:accepted].sequences()
        expected_out, expected = kda_recurrent(*sequence, toy.committed)
        q, k, v, g, beta = (x.numpy() for x in sequence)
        oracle_out, oracle = oracle_recurrent(q, k, v, g, beta, toy.committed.numpy())
        bits = int((state != expected).sum() + (outputs != expected_out).sum())
        errors = [float((state - torch.from_numpy(oracle)).abs().max())]
        if accepted:
            errors.append(float((outputs - torch.from_numpy(oracle_out)).abs().max()))
        rows.append(
            (
                accepted,
                outputs.shape[2],
                bits,
                float((state - expected).abs().max()),
                max(errors),
                bool((toy.committed == before).all()),
            )
        )
    table = pd.DataFrame(
        rows,
        columns=[
            "accepted",
            "output_steps",
            "elements_different",
            "state_error",
            "oracle_error",
            "input_untouched",
        ],
    )
    passed = (
        (table["elements_different"] == 0)
        & (table["oracle_error"] <= TOLERANCE)
        & table["input_untouched"]
        & (table["output_steps"] == table["accepted"])
    )
    table["verdict"] = passed.map({True: "pass", False: "fail"})
    cases = {"none": 0, "partial": window_len // 2, "all": window_len}
    scenarios = table.set_index("accepted").loc[list(cases.values())].reset_index()
    scenarios.insert(0, "scenario", list(cases))
    return ConsistencyStudy(
        {"by_accepted": table, "scenarios": scenarios},
        int(passed.sum()),
        len(table),
        float(table["oracle_error"].max()),
    )
