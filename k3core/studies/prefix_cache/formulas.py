"""The formulas of page 4 with the numbers of a run, as LaTeX."""

from __future__ import annotations

from k3core.studies.prefix_cache.cliff import CliffStudy
from k3core.studies.prefix_cache.cost import CostStudy
from k3core.studies.prefix_cache.lookup import LookupStudy
from k3core.studies.prefix_cache.policies import PolicyStudy
from k3core.studies.prefix_cache.stairs import StairsStudy
from k3core.units import tex_number as num
from k3core.units import tex_power as power


def hit_formulas(found: LookupStudy) -> list[str]:
    """The last boundary that may be reused, and the hashes of the first two blocks."""
    block = num(found.block_tokens)
    cap = (
        r"\text{cap} = \left\lfloor \tfrac{n - 1}{B} \right\rfloor B = \left\lfloor "
        rf"\tfrac{{{num(found.prompt_len - 1)}}}{{{block}}} \right\rfloor \cdot {block}"
        rf" = {num(found.cap_tokens)}"
    )
    chain = [
        rf"H_{{{row.index + 1}}} = \mathrm{{sha256}}(\text{{{row.parent[:6]}}} \,\|\, "
        rf"t_{{{row.start}..{row.end - 1}}}) = \text{{{row.hash[:6]}…}}"
        for row in found.tables["blocks"].head(2).itertuples(index=False)
    ]
    return [cap, *chain]


def cost_formulas(work: CostStudy) -> list[str]:
    """Operations of a prefill behind a prefix, on a miss and on a hit."""
    asked, reused = num(work.prompt_len), num(work.hit_tokens)
    return [
        r"F(n, r) = (2A + s)(n - r) + a(n^2 - r^2)",
        rf"A = {power(work.active_params)}",
        rf"s = \text{{KDA scan}} = {power(work.scan_flops)}",
        rf"a = L_\text{{MLA}} H (d_{{qk}} + d_v) = {num(round(work.pair_flops))}",
        rf"n = {asked},\quad r_\text{{hit}} = {reused}",
        rf"F_\text{{missed}} = {power(work.missed_flops)}\ \text{{FLOP}}",
        rf"F_\text{{hit}} = {power(work.hit_flops)}\ \text{{FLOP}}",
    ]


def stairs_formulas(steps: StairsStudy) -> list[str]:
    """The rule of the ladder, with the unit of this deployment."""
    return [
        r"\text{hit} = \max\left(0,\ \left(\left\lfloor \tfrac{n - 1}{B} \right\rfloor"
        r" - d\right) B\right)",
        rf"B = {num(steps.match_unit)},\quad d = {steps.dropped_blocks}",
    ]


def policies_formulas(compared: PolicyStudy) -> list[str]:
    """What one checkpoint weighs, and the block."""
    return [
        rf"\text{{one checkpoint}} = {num(compared.checkpoint_bytes)}\ \text{{B}}",
        rf"B = {num(compared.block_tokens)}\ \text{{tokens}}",
    ]


def cliff_formulas(fell: CliffStudy) -> list[str]:
    """The working set beside the pools."""
    return [
        rf"\text{{working set}} = {num(fell.working_set)}\ \text{{pages}}",
        rf"\text{{pools}} = {', '.join(map(num, fell.pools))}",
    ]


HASH_FORMULAS = (
    r"\text{chained: } H_i = \mathrm{sha256}(H_{i-1} \,\|\, t_i)",
    r"\text{independent: } H_i = \mathrm{sha256}(t_i)",
)
