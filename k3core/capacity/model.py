"""What a planner must know of a hybrid model: layers by kind, heads, widths.

One description serves three kinds of linear layers, because a cache sees only two things of
them: a state of ``heads x dk x dv`` numbers and a window of ``W-1`` convolution rows.

=========  ============  =====================  ==========  ===========  =====================
kind       num_heads     num_key_heads          dk          dv           row of the window
=========  ============  =====================  ==========  ===========  =====================
kda        heads         the same               key size    value size   q, k, v of all heads
gdn        value heads   key heads              key size    value size   q, k (key heads), v
mamba2     heads         groups                 state size  head size    x, B and C (groups)
=========  ============  =====================  ==========  ===========  =====================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from k3core.errors import CapacityError, require, require_count, require_type, shown

MAX_SIZE, MAX_HEADS, MAX_LAYERS = 2**31, 2**16, 10_000
_MOST = {"num_heads": MAX_HEADS, "num_kda_layers": MAX_LAYERS}
_COMMON_TPS = (1, 2, 4, 8, 16)
_SIZES = (
    "num_kda_layers", "num_heads", "dk", "dv", "conv_width", "mla_latent_dim", "hidden_size",
    "num_mla_heads", "gate_low_rank_dim", "indexer_pool",
)  # fmt: skip
KIND_NAMES = {"kda": "KDA", "gdn": "GDN value", "mamba2": "Mamba-2"}


@dataclass(frozen=True)
class ModelPreset:
    """Sizes of one hybrid model: linear-attention layers beside attention layers.

    Attributes:
        code: stable name, used in URLs and on the command line.
        title: the model's own name, the same in every language.
        num_kda_layers: layers with a recurrent state of constant size (of any ``kind``).
        mla_layer_ids: 1-based indices of the layers with a cache that grows per token.
        num_heads: state heads of the whole model.
        dk: key size of a head; the state of one head is ``dk x dv``.
        dv: value size of a head.
        conv_width: W of the short convolution; the window holds W-1 rows of its inputs.
        mla_latent_dim: numbers cached per token and attention layer by the whole model: the MLA
            latent with its rope slot, or keys and values of all KV heads.
        mla_dtype: default format of that cache.
        hidden_size: width of the residual stream.
        num_mla_heads: query heads of an attention layer; the cache does not depend on it.
        gate_low_rank_dim: width of the low-rank input from which the decay gate is projected.
        source: where the sizes are published.
        total_params: parameters of the model, or None where not published.
        active_params: parameters that one token uses, or None where not published.
        max_context_len: longest sequence in tokens, or None where not published.
        note: what the sizes leave out, or an empty string.
        kind: ``kda``, ``gdn`` or ``mamba2``.
        num_key_heads: heads of q and k (GDN) or groups of B and C (Mamba-2); 0: as num_heads.
        num_kv_heads: KV heads of a grouped-query cache, which ranks share; 0: an MLA latent,
            which every rank keeps whole.
        other_layer_ids: 1-based indices of layers that cache nothing (MoE or MLP of their own).
        indexer_dim: numbers of a key that a sparse-attention indexer keeps per attention layer; 0
            without an indexer.
        indexer_pool: tokens that share one such key.

    Raises:
        CapacityError: a size is no whole number of at least 1, or an index is out of range or
            named twice.
    """

    code: str
    title: str
    num_kda_layers: int
    mla_layer_ids: tuple[int, ...]
    num_heads: int
    dk: int
    dv: int
    conv_width: int
    mla_latent_dim: int
    mla_dtype: str
    hidden_size: int
    num_mla_heads: int
    gate_low_rank_dim: int
    source: str
    total_params: float | None = None
    active_params: float | None = None
    max_context_len: int | None = None
    note: str = ""
    kind: str = "kda"
    num_key_heads: int = 0
    num_kv_heads: int = 0
    other_layer_ids: tuple[int, ...] = ()
    indexer_dim: int = 0
    indexer_pool: int = 1

    def __post_init__(self) -> None:
        for name in _SIZES:
            most = _MOST.get(name, MAX_SIZE)
            require_count(name, getattr(self, name), 1, most, CapacityError)
        for name in ("num_key_heads", "num_kv_heads", "indexer_dim"):
            require_count(name, getattr(self, name), 0, MAX_SIZE, CapacityError)
        require(
            isinstance(self.kind, str) and self.kind in KIND_NAMES,
            f"kind={shown(self.kind)} is unknown; allowed: {', '.join(KIND_NAMES)}",
            CapacityError,
        )
        for name in ("mla_layer_ids", "other_layer_ids"):
            require_type(name, getattr(self, name), tuple, CapacityError)
        ids = self.mla_layer_ids + self.other_layer_ids
        for index in ids:
            require_count(
                "each of mla_layer_ids and other_layer_ids",
                index,
                1,
                self.num_layers,
                CapacityError,
            )
        require(
            len(set(ids)) == len(ids),
            f"mla_layer_ids={self.mla_layer_ids} and other_layer_ids={self.other_layer_ids} name "
            "an index twice",
            CapacityError,
        )

    @property
    def num_mla_layers(self) -> int:
        return len(self.mla_layer_ids)

    @property
    def num_layers(self) -> int:
        return self.num_kda_layers + len(self.mla_layer_ids) + len(self.other_layer_ids)

    @property
    def kda_layer_ids(self) -> tuple[int, ...]:
        """1-based indices of the layers with a state: all that are of no other kind."""
        rest = set(self.mla_layer_ids) | set(self.other_layer_ids)
        return tuple(i for i in range(1, self.num_layers + 1) if i not in rest)

    @property
    def key_heads(self) -> int:
        return self.num_key_heads or self.num_heads

    @property
    def is_mla(self) -> bool:
        """Whether the growing cache is a latent that every rank keeps whole."""
        return self.num_kv_heads == 0

    @cached_property
    def all_tps(self) -> tuple[int, ...]:
        """Every tensor-parallel degree that divides the heads."""
        return tuple(d for d in range(1, self.num_heads + 1) if self._allows(d))

    @cached_property
    def valid_tps(self) -> tuple[int, ...]:
        """Tensor-parallel degrees in common use that divide the heads."""
        return tuple(tp for tp in _COMMON_TPS if tp <= self.num_heads and self._allows(tp))

    @property
    def default_tp(self) -> int:
        """Eight ranks where the heads allow it, as Kimi K3 is served."""
        return 8 if 8 in self.valid_tps else max(self.valid_tps)

    def _allows(self, tp: int) -> bool:
        if isinstance(tp, bool) or not isinstance(tp, int) or tp < 1 or self.num_heads % tp:
            return False
        return self.key_heads % tp == 0 or tp % self.key_heads == 0

    def heads_per_rank(self, tp: int) -> int:
        """State heads on one rank.

        Raises:
            CapacityError: ``tp`` does not divide the heads; the message lists the degrees that do.
        """
        if not self._allows(tp):
            raise CapacityError(
                f"tp={shown(tp)} does not divide the {self.num_heads} {KIND_NAMES[self.kind]} "
                f"heads of {self.code}; use one of {', '.join(map(str, self.all_tps))}"
            )
        return self.num_heads // tp

    def key_heads_per_rank(self, tp: int) -> int:
        """Key heads (or groups) on one rank; a rank keeps one when there are fewer than ranks."""
        self.heads_per_rank(tp)
        return max(self.key_heads // tp, 1)

    def cache_dim_per_rank(self, tp: int) -> int:
        """Numbers that one token leaves in one attention layer on one rank."""
        if self.is_mla:
            return self.mla_latent_dim
        per_head = self.mla_latent_dim // self.num_kv_heads
        return per_head * -(-self.num_kv_heads // tp)
