"""The command line of the planner: keys, defaults, refusals."""

import json

import pytest

from k3core.__main__ import main
from k3core.capacity.presets import MODELS
from k3core.capacity.schemes import SCHEMES

ISSUE = [
    "capacity", "--model", "kimi-k3", "--tp", "8", "--context", "131072", "--drafts", "7",
    "--rollback", "raw-inputs", "--budget-gib", "46.48", "--json",
]  # fmt: skip


def run_json(capsys, *arguments):
    assert main(list(arguments)) == 0
    return json.loads(capsys.readouterr().out)


def test_command_prints_the_numbers_of_a_deployment_per_rank(capsys):
    values = run_json(capsys, *ISSUE)
    assert values["state_bytes_per_layer"] == 786_432
    assert values["conv_bytes_per_layer"] == 27_648
    assert values["state_bytes_per_request"] == 56_171_520
    assert values["mla_bytes_per_token"] == 13_824
    assert values["break_even_tokens"] == 4_064
    assert values["rollback_buffer_bytes_per_request"] == 6_809_472
    assert values["rollback_draft_rows_bytes_per_request"] == 69 * 7 * 4_608 * 2
    assert values["rollback_bytes_per_request"] == 6_809_472 + 4_451_328
    assert (values["block_tokens"], values["blocks_per_request"]) == (1536, 86 + 6)
    assert values["num_blocks"] == 2350
    assert values["max_concurrency"] == pytest.approx(2350 / 92, abs=1e-4)
    assert values["per"] == "rank"
    assert values["transfer_bytes_per_request"] == 8 * 56_171_520 + 131_072 * 13_824
    assert values["context_parallel_bytes_per_layer"] == 1_572_864
    assert values["reusable_prefix_tokens"] == (2350 - 25 * 92) // 4 * 1536


def test_command_shows_every_default(capsys):
    inputs = run_json(capsys, "capacity", "--json")["inputs"]
    assert inputs["state_dtype"] == "float32"
    assert inputs["conv_dtype"] == "bfloat16"
    assert inputs["mla_dtype"] == "float8"
    assert (inputs["conv_rows"], inputs["drafter_layers"]) == (3, 0)
    assert (inputs["pool_rule"], inputs["quantum"]) == ("blocks", 128)
    assert main(["capacity"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in inputs)


def test_every_number_says_its_length_and_a_foreign_pool_rule(capsys):
    def scopes(*arguments):
        assert main(["capacity", "--mean-tokens", "8192", *arguments]) == 0
        results = capsys.readouterr().out.split("inputs (defaults")[0]
        rows = (line.split(maxsplit=1) for line in results.splitlines()[1:])
        return dict(rows)

    split = scopes("--pool-rule", "split")
    assert split["blocks_per_request"].endswith("at --context 131,072, were it one pool of blocks")
    assert split["max_concurrency"].endswith("at --context 131,072")
    assert split["max_requests"].endswith("at --mean-tokens 8,192")
    assert split["reusable_prefix_tokens"].endswith("8,192, were it one pool of blocks")
    assert split["num_blocks"].endswith("were it one pool of blocks")
    assert split["roofs"].startswith("state-slots")
    blocks = scopes()
    assert blocks["roofs"].startswith("one-pool")
    assert not any("were it" in text for text in blocks.values())


def test_help_lists_the_rollback_schemes(capsys):
    with pytest.raises(SystemExit):
        main(["capacity", "--help"])
    text = "".join(capsys.readouterr().out.split())
    assert all(scheme in text for scheme in SCHEMES)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_command_takes_every_scheme(scheme, capsys):
    values = run_json(capsys, "capacity", "--rollback", scheme, "--drafts", "7", "--json")
    assert values["rollback_bytes_per_request"] > 0


@pytest.mark.parametrize("model", MODELS)
def test_command_takes_every_model(model, capsys):
    values = run_json(capsys, "capacity", "--model", model, "--json")
    assert values["inputs"]["mla_dtype"] == MODELS[model].mla_dtype
    assert values["state_bytes_per_request"] > 0


def test_every_default_can_be_overridden(capsys):
    values = run_json(
        capsys, "capacity", "--state-dtype", "bfloat16", "--conv-dtype", "float32", "--mla-dtype",
        "bfloat16", "--drafter-layers", "5", "--quantum", "64", "--mean-tokens", "9216", "--tp",
        "16", "--pool-rule", "split", "--slots-per-request", "4", "--max-running", "3", "--json",
    )  # fmt: skip
    assert values["state_bytes_per_layer"] == 6 * 128 * 128 * 2
    assert values["conv_bytes_per_layer"] == 3 * 6 * 384 * 4
    assert values["drafter_bytes_per_token"] == 5 * 1152
    assert values["max_requests"] == 3
    assert values["verdict"] == "engine-cap"


def test_command_reads_a_config_file(tmp_path, capsys):
    from tests.public_configs import KIMI_K3

    path = tmp_path / "config.json"
    path.write_text(json.dumps(KIMI_K3 | {"new_field": 1}))
    assert main(["capacity", "--config", str(path), "--mla-dtype", "float8", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["state_bytes_per_request"] == 56_171_520
    assert "new_field is unknown" in printed.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tp", "5"], "tp=5 does not divide the 96 KDA heads"),
        (["--budget-gib", "0"], "budget_gib=0.0 must be above 0"),
        (["--budget-gib", "nan"], "must be above 0"),
        (["--context", "1000"], "below one block of 1536 tokens"),
        (["--drafts", "-1"], "drafts=-1"),
        (["--rollback", "magic"], "magic"),
        (["--model", "kimi-k9"], "kimi-k9"),
        (["--mla-dtype", "int3"], "mla_dtype='int3' is unknown; allowed: float64"),
        (["--config", "/no/such/file.json"], "no/such/file"),
        (["--tp", "0"], "tp=0"),
        (["--tp", "-8"], "tp=-8"),
        (["--tp", "9" * 30], "does not divide"),
        (["--max-running", "0"], "max_running=0"),
        (["--max-running", "9" * 30], "max_running=9"),
        (["--mean-tokens", "0"], "mean_tokens=0"),
        (["--mean-tokens", "9" * 30], "mean_tokens=9"),
        (["--state-blocks", "0"], "state_blocks=0"),
        (["--context", "0"], "context=0"),
        (["--context", "9" * 30], "context=9"),
        (["--drafts", "9" * 30], "drafts=9"),
        (["--drafter-layers", "-1"], "drafter_layers=-1"),
        (["--drafter-layers", "9" * 30], "drafter_layers=9"),
        (["--drafter-dtype", "nan"], "drafter_dtype='nan'"),
        (["--state-dtype", ""], "state_dtype=''"),
        (["--conv-dtype", "0"], "conv_dtype='0'"),
        (["--budget-gib", "inf"], "budget_gib=inf"),
        (["--budget-gib", "-1"], "budget_gib=-1.0"),
        (["--budget-gib", "1e300"], "budget_gib=1e+300"),
        (["--budget-gib", "1e-300"], "less than one byte"),
        (["--quantum", "0"], "quantum=0"),
        (["--quantum", "9" * 30], "quantum=9"),
        (["--slots-per-request", "0"], "slots_per_request=0"),
        (["--state-pool-ratio", "0"], "state_pool_ratio=0.0"),
        (["--state-pool-ratio", "nan"], "state_pool_ratio=nan"),
        (["--state-pool-ratio", "inf"], "state_pool_ratio=inf"),
        (["--pool-rule", "0"], "pool_rule='0'"),
    ],
)
def test_command_refuses_in_one_line_with_the_remedy(arguments, words, capsys):
    assert main(["capacity", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error


@pytest.mark.parametrize(
    "option",
    ["--tp", "--context", "--mean-tokens", "--drafts", "--drafter-layers", "--quantum",
     "--state-blocks", "--slots-per-request", "--max-running"],
)  # fmt: skip
@pytest.mark.parametrize("text", ["nan", "inf", "1.5", "many", ""])
def test_command_refuses_what_is_no_whole_number_in_one_line(option, text, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["capacity", option, text])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert option in error


def test_drafter_format_and_state_blocks_are_taken(capsys):
    values = run_json(
        capsys, "capacity", "--drafter-layers", "5", "--drafter-dtype", "bfloat16",
        "--state-blocks", "4", "--drafts", "3", "--rollback", "low-rank-inputs", "--json",
    )  # fmt: skip
    assert values["drafter_bytes_per_token"] == 5 * 576 * 2
    assert values["block_bytes"] == 30_081_024
    assert values["state_blocks_per_request"] == 3 * 4
    assert values["inputs"]["drafter_dtype"] == "bfloat16"


def test_indexer_keys_are_printed_beside_the_cache(capsys):
    values = run_json(capsys, "capacity", "--model", "glm-5.3-flash", "--json")
    assert values["indexer_bytes_per_token"] == 363
    assert values["mla_bytes_per_token"] == 11 * 512 * 2


def test_lab_stack_says_what_it_is(capsys):
    assert main(["capacity", "--model", "lab-stack"]) == 0
    text = capsys.readouterr().out
    assert "random weights, not trained" in text
    assert "k3core.model.ModelConfig()" in text


def config_file(tmp_path, **fields):
    from tests.public_configs import GLM_5_3_FLASH

    path = tmp_path / "config.json"
    path.write_text(json.dumps(GLM_5_3_FLASH | fields))
    return str(path)


def test_command_prints_what_the_sizes_of_a_config_leave_out(tmp_path, capsys):
    path = config_file(tmp_path, new_field=1)
    values = run_json(capsys, "capacity", "--config", path, "--json")
    assert any("new_field is unknown" in note for note in values["notes"])
    assert any("multi-token-prediction" in note for note in values["notes"])
    assert any("363 B per token" in note for note in values["notes"])
    assert main(["capacity", "--config", path]) == 0
    assert "363 B per token" in capsys.readouterr().err


def test_unknown_fields_without_end_are_counted(tmp_path, capsys):
    path = config_file(tmp_path, **{f"f{i}": 1 for i in range(20_000)})
    assert main(["capacity", "--config", path]) == 0
    error = capsys.readouterr().err
    assert len(error) < 5_000
    assert "more fields are unknown" in error


def test_a_config_and_a_model_exclude_each_other(tmp_path, capsys):
    path = config_file(tmp_path)
    assert main(["capacity", "--config", path, "--model", "kimi-k3"]) == 2
    assert "--model kimi-k3 and --config exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize("data", ['{"a": 1}'.encode("utf-16"), b"[1]", b"{", b"\xff"])
def test_a_file_that_is_no_config_is_refused_by_its_name(data, tmp_path, capsys):
    path = tmp_path / "model.json"
    path.write_bytes(data)
    assert main(["capacity", "--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert "model.json" in error
    assert error.count("\n") == 1


def test_a_mean_above_the_longest_sequence_is_warned_of(capsys):
    arguments = ["capacity", "--context", "65536", "--mean-tokens", "131072", "--json"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "mean_tokens=131072 is above context=65536" in printed.err
    assert json.loads(printed.out)["notes"]
    assert "notes" not in run_json(capsys, "capacity", "--json")


@pytest.mark.parametrize(
    ("option", "allowed"),
    [("--budget-gib", "a number of GiB above 0"), ("--drafts", "an integer, at least 0"),
     ("--tp", "an integer, at least 1"), ("--state-pool-ratio", "a number above 0")],
)  # fmt: skip
def test_what_is_no_number_is_refused_with_what_is_allowed(option, allowed, capsys):
    with pytest.raises(SystemExit):
        main(["capacity", option, "x"])
    assert f"{option}: 'x' must be {allowed}" in capsys.readouterr().err


def test_the_longest_context_is_one_that_fits_with_its_records(capsys):
    arguments = ["capacity", "--context", "144384", "--budget-gib", "1.9775390625", "--json"]
    values = run_json(capsys, *arguments)
    assert (values["longest_context"], values["max_requests"]) == (142_848, 0)
    arguments[2] = "142848"
    assert run_json(capsys, *arguments)["max_requests"] == 1
