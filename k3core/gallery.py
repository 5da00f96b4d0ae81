"""The registry of the 14 figures: which study feeds which figure, and how to draw one to a file.

Pages, ``python -m k3core export`` and the tests all read it. Studies and figures are imported when
a figure is drawn, so listing the gallery loads neither torch nor altair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from k3core.errors import require
from k3core.i18n import languages

PNG_SCALE = 2.0


class GalleryFigure(NamedTuple):
    """One figure of the gallery.

    Attributes:
        name: the figure's function, as the source text names it.
        subsystem: module of ``k3core.studies`` and of ``k3core.figures``, and catalogue.
        study: function of the study module; all its parameters have defaults.
        params: default parameters other than the study's own.
    """

    name: str
    subsystem: str
    study: str
    params: Mapping[str, Any] = {}

    def run(self, **params: Any) -> Any:
        """Run the study; ``params`` go on top of the default ones."""
        study: Callable[..., Any] = getattr(
            import_module(f"k3core.studies.{self.subsystem}"), self.study
        )
        return study(**{**self.params, **params})

    def panels(self, result: Any) -> dict[str, Any]:
        """The named charts of a study's result."""
        figure: Callable[..., dict[str, Any]] = getattr(
            import_module(f"k3core.figures.{self.subsystem}"), self.name
        )
        return figure(result.tables)


GALLERY: dict[str, GalleryFigure] = {
    figure.name: figure
    for figure in (
        GalleryFigure("fig_replay_principle", "decode", "rollback"),
        GalleryFigure("fig_snapshot_cost", "decode", "snapshot_cost"),
        GalleryFigure("fig_replay_consistency", "decode", "consistency"),
        GalleryFigure("fig_replayssm", "replayssm", "rings"),
        GalleryFigure("fig_page_pool", "paged_cache", "lengths"),
        GalleryFigure("fig_mla_paging", "paged_cache", "paging"),
        GalleryFigure("fig_kda_store", "paged_cache", "store"),
        GalleryFigure("fig_prefix_hit", "prefix_cache", "lookup"),
        GalleryFigure("fig_prefix_miss", "prefix_cache", "misses"),
        GalleryFigure("fig_engine_before_after", "engine", "before_after"),
        GalleryFigure("fig_fleet_hash_ring", "fleet", "hash_ring"),
        GalleryFigure("fig_fleet_minimal_perturbation", "fleet", "minimal_perturbation"),
        GalleryFigure("fig_fleet_budget", "fleet", "admission"),
        GalleryFigure("fig_fleet_simulation", "fleet", "simulation"),
    )
}


def figure_spec(name: str, lang: str = "en") -> dict[str, Any]:
    """Vega-Lite specification of one figure with its default parameters, data included.

    Args:
        name: a key of ``GALLERY``.
        lang: language of its words.

    Raises:
        K3Error: the gallery has no such figure, or the language has no texts.
    """
    _check(name, lang)
    from k3core.figures.sheet import sheet

    figure = GALLERY[name]
    panels = figure.panels(figure.run())
    return sheet(panels, f"common.figure.{name}", figure.subsystem, lang)


def export(out_dir: Path, lang: str = "en", names: tuple[str, ...] = ()) -> list[Path]:
    """Draw figures as PNG and SVG, without a browser.

    Args:
        out_dir: directory to write to; made when missing.
        lang: language of the words.
        names: figures to draw; all of them when empty.

    Returns:
        The written files, two per figure.

    Raises:
        K3Error: an unknown figure or language; nothing is written.
    """
    names = names or tuple(GALLERY)
    for name in names:
        _check(name, lang)
    import vl_convert

    out_dir.mkdir(parents=True, exist_ok=True)
    written = []
    for name in names:
        spec = figure_spec(name, lang)
        png, svg = out_dir / f"{name}.png", out_dir / f"{name}.svg"
        png.write_bytes(vl_convert.vegalite_to_png(spec, scale=PNG_SCALE))
        svg.write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")
        written += [png, svg]
    return written


def _check(name: str, lang: str) -> None:
    require(name in GALLERY, f"name={name!r} is no figure; allowed: {', '.join(GALLERY)}")
    require(lang in languages(), f"lang={lang!r} is unknown; allowed: {', '.join(languages())}")
