"""Page 4: what a second prompt finds of the first one, and what it has to compute again."""

from typing import Any

from k3core import ui
from k3core.figures import prefix_cache as figures
from k3core.studies import prefix_cache as studies
from k3core.units import bytes_text, count_text, percent_text

BLOCKS = (128, 256, 512, 1024, 1536, 2048)
CASES: dict[str, dict[str, Any]] = {  # what each preset sets; the rest is as in "one_short"
    "one_short": {},
    "healthy": {"missing": "none"},
    "no_checkpoint": {"policy": "none", "missing": "none"},
    "last_token": {"prompt": 4096, "shared": 4096, "missing": "none"},
    "not_ready": {"ready": False, "missing": "none"},
    "fork": {"tail": 900, "policy": "last", "missing": "none"},
}


def preset(name: str, usual: Any) -> Any:
    """Default of a control: what the chosen case sets, else ``usual``."""
    return lambda values: CASES[values["prefix_case"]].get(name, usual)


def kept(values: Any) -> tuple[int, ...]:
    """Boundaries at which the first prompt keeps checkpoints, (0,) when nowhere."""
    return studies.kept_boundaries(
        values["prefix_policy"],
        values["prefix_every"],
        values["prefix_shared"] + values["prefix_tail"],
        values["prefix_block"],
    ) or (0,)


def deepest_shared(values: Any) -> int:
    """The last kept boundary on the shared path: where a missing group hurts most."""
    return max((at for at in kept(values) if at <= values["prefix_shared"]), default=0)


def num(value: float) -> str:
    """A number for a formula; the braces keep the separator from growing a space."""
    return f"{value:,}".replace(",", "{,}")


def power(value: float) -> str:
    """A large number for a formula in scientific form."""
    mantissa, exponent = f"{value:.3e}".split("e")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}"


CONTROLS = (
    ui.Slider("prefix_prompt", preset("prompt", 5200), "prompts", low=64, high=16_384),
    ui.Slider(
        "prefix_shared",
        preset("shared", 4300),
        "prompts",
        low=0,
        high=lambda values: values["prefix_prompt"],
    ),
    ui.Slider("prefix_tail", preset("tail", 0), "prompts", low=0, high=4096),
    ui.Toggle("prefix_ready", preset("ready", True), "prompts"),
    ui.Steps("prefix_block", 512, "cache", options=BLOCKS),
    ui.Slider("prefix_groups", 3, "cache", low=1, high=6),
    ui.Choice(
        "prefix_policy",
        preset("policy", "every"),
        "checkpoints",
        options=studies.POLICIES,
        style="segments",
    ),
    ui.Slider(
        "prefix_every",
        2,
        "checkpoints",
        low=1,
        high=8,
        shown=lambda values: values["prefix_policy"] == "every",
    ),
    ui.Choice(
        "prefix_missing",
        preset("missing", "1"),
        "checkpoints",
        options=lambda values: ("none", *map(str, range(values["prefix_groups"])), "all"),
        shown=lambda values: values["prefix_policy"] != "none",
    ),
    ui.Steps(
        "prefix_missing_at",
        deepest_shared,
        "checkpoints",
        options=kept,
        shown=lambda values: (
            values["prefix_missing"] != "none" and values["prefix_policy"] != "none"
        ),
    ),
    ui.Choice("prefix_cost_model", "kimi-k3", "cost", options=studies.COST_MODELS),
    ui.Steps(
        "prefix_cost_len",
        400_000,
        "cost",
        options=(4_000, 16_000, 32_000, 64_000, 128_000, 200_000, 400_000, 1_000_000),
    ),
    ui.Steps("prefix_cost_new", 4_000, "cost", options=(1, 100, 1_000, 4_000, 16_000, 64_000)),
    ui.SEED,
)
NUM_FILLED = 10  # the first controls, those that a case fills

page = ui.frame("prefix_cache")
page.preset("prefix_case", tuple(CASES), CONTROLS[:NUM_FILLED])
v = page.controls(*CONTROLS)
params: dict[str, Any] = {
    "prompt_len": v.prefix_prompt,
    "shared_len": v.prefix_shared,
    "first_tail": v.prefix_tail,
    "block_tokens": v.prefix_block,
    "num_groups": v.prefix_groups,
    "policy": v.prefix_policy,
    "every_blocks": v.prefix_every,
    "missing_group": v.prefix_missing if v.prefix_policy != "none" else "none",
    "missing_boundary": v.prefix_missing_at,
    "ready": v.prefix_ready,
    "seed": v.seed,
}
found = page.study(studies.lookup, **params)
reason = page.t(
    f"reason.{found.reason or 'nothing'}",
    groups=", ".join(map(str, found.gap_groups)),
    at=count_text(found.gap_tokens),
)
page.metrics(
    ui.Metric(
        "reused",
        page.t("unit.tokens", count=count_text(found.matched_tokens)),
        "live",
        page.t("unit.of_prompt", share=percent_text(found.matched_tokens / found.prompt_len)),
    ),
    ui.Metric(
        "lost",
        page.t("unit.tokens", count=count_text(found.lost_tokens)),
        "live",
        reason,
    ),
    ui.Metric(
        "computed",
        page.t("unit.tokens", count=count_text(found.computed_tokens)),
        "live",
        page.t("unit.cap", cap=count_text(found.cap_tokens)),
    ),
    ui.Metric(
        "kept",
        bytes_text(found.kept_bytes),
        "derived",
        page.t("unit.states", states=found.num_states, boundaries=len(found.kept_boundaries)),
    ),
)
page.main(figures.main_picture(found.tables), found.tables["blocks"])

first = found.tables["blocks"].head(2)
chain = [
    rf"H_{{{row.index + 1}}} = \mathrm{{sha256}}(\text{{{row.parent}}} \,\|\, "
    rf"t_{{{row.start}..{row.end - 1}}}) = \text{{{row.hash}…}}"
    for row in first.itertuples(index=False)
]
page.section(
    "hit",
    figures.fig_prefix_hit(found.tables),
    formula=[
        rf"\text{{cap}} = \left\lfloor \tfrac{{n - 1}}{{B}} \right\rfloor B = \left\lfloor "
        rf"\tfrac{{{num(v.prefix_prompt - 1)}}}{{{num(v.prefix_block)}}} \right\rfloor "
        rf"\cdot {num(v.prefix_block)} = {num(found.cap_tokens)}",
        *chain,
    ],
    tables={"account": found.tables["account"], "checkpoints": found.tables["checkpoints"]},
    mla=count_text(found.mla_tokens),
    usable=count_text(found.matched_tokens),
    reason=reason,
)
missed = page.study(
    studies.misses,
    prompt_len=v.prefix_prompt,
    shared_len=v.prefix_shared,
    block_tokens=v.prefix_block,
    num_groups=v.prefix_groups,
    seed=v.seed,
)
page.section(
    "miss",
    figures.fig_prefix_miss(missed.tables),
    tables={"verdicts": missed.tables["verdicts"]},
    mla=count_text(missed.mla_tokens),
    partial=count_text(missed.partial_tokens),
)
hashed = page.study(studies.hash_schemes, block_tokens=v.prefix_block, seed=v.seed)
page.section(
    "hashes",
    figures.hash_pictures(hashed.tables),
    formula=[
        r"\text{chained: } H_i = \mathrm{sha256}(H_{i-1} \,\|\, t_i) \qquad "
        r"\text{independent: } H_i = \mathrm{sha256}(t_i)"
    ],
    tables=hashed.tables,
    false=count_text(hashed.false_tokens),
    block=hashed.block_tokens,
    true=count_text(hashed.true_tokens),
    error=percent_text(hashed.state_error, 0),
)
steps = page.study(studies.ladder, **params)
page.section(
    "ladder",
    figures.ladder_picture(steps.tables),
    columns=1,
    tables=steps.tables,
    finding=page.t(
        "ladder.flat" if steps.num_below else "ladder.full",
        below=steps.num_below,
        lookups=steps.num_lookups,
    ),
)

work = page.study(
    studies.cost,
    model=v.prefix_cost_model,
    prefix_len=v.prefix_cost_len,
    new_len=v.prefix_cost_new,
    block_tokens=v.prefix_block,
)
page.section(
    "cost",
    figures.cost_pictures(work.tables),
    formula=[
        r"F(n, r) = (2A + s)(n - r) + a\,(n^2 - r^2)",
        rf"A = {power(work.active_params)},\quad s = \text{{KDA scan}} = {power(work.scan_flops)},"
        rf"\quad a = L_\text{{MLA}} H (d_{{qk}} + d_v) = {num(round(work.pair_flops))}",
        rf"F({num(work.prompt_len)},\, 0) = {power(work.missed_flops)}\ \text{{FLOP}}",
        rf"F({num(work.prompt_len)},\, {num(work.hit_tokens)}) = {power(work.hit_flops)}"
        r"\ \text{FLOP}",
    ],
    tables=work.tables,
    ratio=f"{work.ratio:,.1f}",
    prefix=count_text(v.prefix_cost_len),
    new=count_text(v.prefix_cost_new),
    recomputed=count_text(work.prompt_len),
    computed=count_text(work.prompt_len - work.hit_tokens),
    kept=bytes_text(work.kept_bytes),
    model=page.t(f"option.{v.prefix_cost_model}"),
)
page.words()
