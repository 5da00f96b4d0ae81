"""What must hold for the project as a whole: pins, import directions, the README's commands."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PIN = re.compile(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*")


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def requirement_lines(name: str) -> list[str]:
    lines = (ROOT / name).read_text().splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def test_runtime_requirements_are_pinned_and_name_no_index():
    assert [line for line in requirement_lines("requirements.txt") if not PIN.fullmatch(line)] == []


def test_dev_requirements_are_the_runtime_ones_and_pinned_tools():
    first, *rest = requirement_lines("requirements-dev.txt")
    assert first == "-r requirements.txt"
    assert [line for line in rest if not PIN.fullmatch(line)] == []


def test_this_environment_runs_the_pinned_versions():
    from importlib.metadata import version

    _, *tools = requirement_lines("requirements-dev.txt")
    for line in requirement_lines("requirements.txt") + tools:
        name, pinned = line.split("==")
        assert version(name).partition("+")[0] == pinned, name


@pytest.mark.parametrize("module", ["k3core", "k3core.errors", "k3core.dtypes", "k3core.i18n"])
def test_light_modules_load_neither_torch_nor_streamlit(module):
    code = (
        f"import sys, {module}; "
        "print([m for m in ('torch', 'streamlit', 'altair', 'pandas') if m in sys.modules])"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_import_directions_hold():
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_library_code_has_no_assert_statement():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "k3core").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert found == []


def test_readme_gives_one_command_to_run_and_one_to_test():
    commands = re.findall(r"```bash\n(python3 -m venv .+)\n```", (ROOT / "README.md").read_text())
    assert [command.rsplit(" && ", 1)[1] for command in commands] == [
        ".venv/bin/streamlit run Home.py",
        ".venv/bin/python -m pytest -n auto",
    ]
    files = [re.search(r"install -r (\S+)", command).group(1) for command in commands]
    assert files == ["requirements.txt", "requirements-dev.txt"]


def test_ci_ends_with_the_test_command_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text()
    assert '"$bin/python" -m pytest -n auto\n' in script
    assert "install --quiet --disable-pip-version-check -r requirements-dev.txt" in script


def test_every_repository_path_that_the_readme_names_exists():
    text = (ROOT / "README.md").read_text()
    linked = re.findall(r"\]\(((?!https?:)[^)#\s]+)\)", text)
    coded = re.findall(r"`((?:k3core|tests|pages|docs)/[\w./]*)`", text)
    assert [path for path in linked + coded if not (ROOT / path).exists()] == []


def test_every_test_that_the_readme_names_exists():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "README.md").read_text()))
    defined = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    for path in (ROOT / "tests").rglob("test_*.py"):
        defined |= set(re.findall(r"^\s*def (test_\w+)", path.read_text(), re.MULTILINE))
    assert named - defined == set()


def test_streamlit_configuration_hides_its_own_navigation_and_sends_no_statistics():
    config = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())
    assert config["client"]["showSidebarNavigation"] is False
    assert config["browser"]["gatherUsageStats"] is False
    assert set(config["theme"]) == {"light", "dark"}


@pytest.mark.parametrize(("ci", "expected"), [("0", 0), ("1", 1)])
def test_a_skipped_test_fails_the_run_only_in_ci(tmp_path, ci, expected):
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_one.py").write_text(
        "import pytest\n\ndef test_one():\n    pytest.skip('no browser here')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "K3_CI": ci, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == expected, done.stdout + done.stderr
    assert expected == 0 or "no browser here" in done.stdout
