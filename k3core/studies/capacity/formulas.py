"""The chain of formulas with the current numbers, as LaTeX: symbols and numbers, no words."""

from __future__ import annotations

from k3core.capacity.block_pool import BlockPool
from k3core.capacity.planner import CapacityPlan
from k3core.capacity.rollback import RollbackCost
from k3core.dtypes import dtype_bytes


def num(value: float, digits: int = 0) -> str:
    """A number for a formula; the braces keep the separator from growing a space."""
    return f"{value:,.{digits}f}".replace(",", "{,}")


def rollback_formula(cost: RollbackCost) -> str:
    """Bytes that the chosen scheme adds to a request."""
    memory = cost.memory
    if cost.scheme.record:
        return (
            rf"R = {memory.model.num_kda_layers} \cdot {cost.num_rows} \cdot "
            rf"{num(cost.record_bytes_per_token_layer)} + {num(cost.conv_draft_bytes)}"
            rf" = {num(cost.extra_bytes)}\ \text{{B}}"
        )
    live = cost.scheme.slots_hold_live
    return (
        rf"R = {cost.num_slots} \cdot {num(cost.slot_bytes)}"
        + ("" if live else rf" + {num(cost.conv_draft_bytes)}")
        + (rf" - {num(memory.state_bytes_per_request)}" if live else "")
        + rf" = {num(cost.extra_bytes)}\ \text{{B}}"
    )


def chain(planned: CapacityPlan) -> list[str]:
    """From heads per rank to requests; one aligned LaTeX block per symbol."""
    steps = _memory_steps(planned)
    if isinstance(planned.pool, BlockPool):
        steps += _block_steps(planned, planned.pool)
    else:
        steps += _split_steps(planned)
    lines = []
    for symbol, *parts in steps:
        body = r" \\ ".join(f"&= {part}" for part in parts)
        lines.append(rf"\begin{{aligned}} {symbol} {body} \end{{aligned}}")
    return lines


def _memory_steps(planned: CapacityPlan) -> list[tuple[str, ...]]:
    memory, model = planned.memory, planned.model
    cache = model.cache_dim_per_rank(memory.tp)
    return [
        (r"h", rf"\tfrac{{{model.num_heads}}}{{{memory.tp}}} = {memory.num_heads}"),
        (
            r"s",
            r"h\,d_k\,d_v\,b",
            rf"{memory.num_heads} \cdot {model.dk} \cdot {model.dv} \cdot "
            rf"{dtype_bytes(memory.state_dtype)} = {num(memory.state_bytes_per_layer)}\ \text{{B}}",
        ),
        (
            r"c",
            r"(W - 1)\,(2 h_k d_k + h d_v)\,b",
            rf"{memory.conv_rows} \cdot {num(memory.conv_channels)} \cdot "
            rf"{dtype_bytes(memory.conv_dtype)} = {num(memory.conv_bytes_per_layer)}\ \text{{B}}",
        ),
        (
            r"M",
            rf"{model.num_kda_layers}\,(s + c)",
            rf"{num(memory.state_bytes_per_request)}\ \text{{B}}",
        ),
        (
            r"m",
            rf"{model.num_mla_layers} \cdot {cache} \cdot {dtype_bytes(memory.mla_dtype)}",
            rf"{num(memory.mla_bytes_per_token)}\ \text{{B}}",
        ),
        (r"L^*", rf"M / m = {num(memory.break_even_len, 1)}"),
    ]


def _split_steps(planned: CapacityPlan) -> list[tuple[str, ...]]:
    pool, deployment, mean = planned.pool, planned.deployment, planned.mean_tokens
    if isinstance(pool, BlockPool):
        return []
    ratio = deployment.state_pool_ratio
    share = f"{ratio:.2g} / {1 + ratio:.2g}"
    drafter = planned.memory.drafter_bytes_per_token
    per_token = f"(m + {num(drafter)})" if drafter else "m"
    cap = f", {num(deployment.max_running)}" if deployment.max_running else ""
    return [
        (
            r"N_s",
            rf"\left\lfloor {num(deployment.budget_gib, 1)}\ \text{{GiB}} \cdot {share} \,/\, "
            rf"({pool.slots_per_request} M + R) \right\rfloor",
            rf"\left\lfloor \tfrac{{{num(pool.state_pool_bytes)}}}"
            rf"{{{num(pool.constant_bytes_per_request)}}} \right\rfloor = {num(pool.state_roof)}",
        ),
        (
            r"T_m",
            rf"\left\lfloor {num(deployment.budget_gib, 1)}\ \text{{GiB}} \cdot "
            rf"1 / {1 + ratio:.2g} \,/\, {per_token} \right\rfloor",
            rf"\left\lfloor \tfrac{{{num(pool.mla_pool_bytes)}}}"
            rf"{{{num(planned.memory.cache_bytes_per_token)}}} \right\rfloor = "
            rf"{num(pool.mla_pool_tokens)}",
        ),
        (
            r"N_m",
            rf"T_m / L = \tfrac{{{num(pool.mla_pool_tokens)}}}{{{num(mean)}}} = "
            rf"{num(pool.mla_roof(mean), 1)}",
        ),
        (
            r"N",
            rf"\min(N_s, \lfloor N_m \rfloor{cap}) = {num(planned.max_requests)}",
        ),
    ]


def _block_steps(planned: CapacityPlan, pool: BlockPool) -> list[tuple[str, ...]]:
    mean = planned.mean_tokens
    each = pool.blocks_per_request(mean)
    request = rf"n \cdot {num(pool.block_bytes)}"
    if pool.cost.beside_bytes:
        request += f" + {num(pool.cost.beside_bytes)}"
    row = planned.memory.mla_bytes_per_token_layer
    count = pool.groups.attention_groups
    groups = rf"{count} \cdot " if count > 1 else ""
    found = rf"\left\lfloor \tfrac{{{num(pool.budget_bytes)}}}{{{request}}} \right\rfloor"
    if pool.max_running:
        found = rf"\min({found}, {num(pool.max_running)})"
    return [
        (
            r"B",
            rf"{pool.quantum} \left\lceil \tfrac{{{num(pool.page_need_bytes)}}}"
            rf"{{{pool.quantum} \cdot {num(row)}}} \right\rceil",
            num(pool.block_tokens),
        ),
        (
            r"n",
            rf"{groups}\lceil L / B \rceil + "
            rf"{pool.num_kda_groups} \cdot {pool.state_blocks_per_group}",
            num(each),
        ),
        (
            r"N",
            rf"{found} = {num(planned.max_requests)}",
        ),
    ]
