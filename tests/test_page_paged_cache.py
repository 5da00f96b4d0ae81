"""The page pool's page in the app: both scenes draw, every control acts, bad links are noted."""

import pytest

from tests.page_helpers import page_opener

open_page = page_opener("pages/3_Page_Pool.py")
CONTROLS = {
    "sizes": {
        "tp": ("1", "16"),
        "pool_heads": ("1", "16"),
        "pool_dk": ("16",),
        "pool_requests": ("1", "8"),
        "pool_seq_len": ("512", "16384"),
        "pool_kda_layers": ("1", "6"),
        "pool_tokens_per_page": ("128", "1536"),
        "pool_keep": ("dropped",),
        "pool_scrub": ("0",),
        "pool_step": ("0", "20"),
        "pool_append": ("1", "4096"),
        "pool_to_tp": ("1", "16"),
    },
    "life": {
        "pool_step": ("0", "20"),
        "pool_keep": ("dropped",),
        "frag_burst": ("1", "12"),
        "frag_ids": ("3",),
        "fork_tokens": ("1", "6000"),
        "mla_dtype": ("bfloat16",),
    },
}
CHARTS = {"sizes": 11, "life": 8}


def shown(app):
    """Everything on the page that holds a number, charts included."""
    assert not app.exception
    assert not app.error
    metrics = [(m.label, m.value, m.delta) for m in app.metric]
    words = [m.value for kind in (app.markdown, app.subheader, app.caption) for m in kind]
    charts = [chart.proto.spec + str(chart.proto.datasets) for chart in app.get("vega_lite_chart")]
    return metrics, words, charts


@pytest.fixture(scope="module")
def usual():
    return {scene: shown(open_page(pool_scene=scene)) for scene in CONTROLS}


@pytest.mark.parametrize("scene", CONTROLS)
def test_each_scene_draws_all_its_pictures_in_words(usual, scene):
    metrics, words, charts = usual[scene]
    assert [value for _, value, _ in metrics] == ["9 pages", "7 pages", "23 pages", "0 B"]
    assert len(charts) == CHARTS[scene]
    assert not [text for text in words if "⟦" in text]


@pytest.mark.parametrize(
    ("scene", "key", "raw"),
    [(s, k, raw) for s, keys in CONTROLS.items() for k, ends in keys.items() for raw in ends],
)
def test_each_control_at_its_ends_changes_the_page(usual, scene, key, raw):
    app = open_page(pool_scene=scene, **{key: raw})
    assert not app.warning
    assert shown(app) != usual[scene]


LARGEST = {
    "tp": "1", "state_dtype": "float64", "pool_heads": "128", "pool_requests": "8",
    "pool_seq_len": "16384", "pool_kda_layers": "6", "pool_tokens_per_page": "1536",
}  # fmt: skip


@pytest.mark.parametrize("scene", CONTROLS)
def test_the_largest_values_go_together(scene):
    largest = {"float8": "256", "float32": "64"}  # the most pages of a pool that the buffer holds
    for mla_dtype, pages in largest.items():
        app = open_page(pool_scene=scene, mla_dtype=mla_dtype, pool_pages=pages, **LARGEST)
        assert not app.warning
        shown(app)
        assert app.select_slider(key="pool_pages").options[-1] == pages


@pytest.mark.parametrize(("key", "raw"), [("pool_scene", "x"), ("pool_step", "999")])
def test_a_bad_link_falls_back_with_a_note(usual, key, raw):
    app = open_page(**{key: raw})
    assert raw in app.warning[0].value
    assert shown(app)[0] == usual["sizes"][0]


def test_with_scrubbing_off_the_first_screen_says_what_the_next_owner_gets_wrong():
    app = open_page(pool_scene="life", pool_scrub="0")
    assert not app.exception
    wrong = app.metric[3].delta.removesuffix(" outputs wrong")
    assert wrong.count(" of ") == 1
    assert not wrong.startswith("0 ")
    assert any(f"{wrong} attention outputs wrong" in caption.value for caption in app.caption)
    assert wrong in app.subheader[0].value
