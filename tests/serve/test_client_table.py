"""The table of clients (benchmarks/client_table.py): the openai package against a server of this process, and what it makes of
what scripts say."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
pytest.importorskip("httpx", reason="polydec[serve] is not installed")

from house import served

from project_paths import PROJECT_ROOT

BENCHMARKS = PROJECT_ROOT / "benchmarks"
KEY = "a-key-of-some-length"


@pytest.fixture(scope="module")
def client_table():
    path = BENCHMARKS / "client_table.py"
    if not path.exists():
        pytest.skip("the benchmarks are not here")
    spec = importlib.util.spec_from_file_location("client_table", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "client_table", module)
        patch.syspath_prepend(BENCHMARKS)
        spec.loader.exec_module(module)
        yield module


def test_all_of_the_openai_package_works(lm, client_table):
    pytest.importorskip("openai", reason="openai is not installed")
    pytest.importorskip("llguidance", reason="polydec[grammar] is not installed")
    client = client_table.CLIENTS[0]
    with served({"tiny": lambda: lm}, keys=(KEY,)) as house:
        checks = client_table.run_script(
            client, Path(sys.executable), house.url, KEY, "tiny", seconds=120
        )
    assert [(check.column, check.outcome) for check in checks] == [
        (column, "yes") for column in client_table.COLUMNS
    ], checks


def test_each_client_has_a_script_that_checks_every_column(client_table):
    scripts = {path.name for path in client_table.SCRIPTS.glob("try_*.py")}
    assert scripts == {client.script.name for client in client_table.CLIENTS}
    for client in client_table.CLIENTS:
        tree = ast.parse(client.script.read_text("utf-8"))
        (run,) = (
            node.value
            for node in tree.body
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
            if getattr(node.value.func, "id", "") == "run_checks"
        )
        assert ast.unparse(run.args[1]) == "globals()", client.name
        checked = [
            node.name.removeprefix("check_")
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
        ]
        assert tuple(checked) == client_table.COLUMNS, client.name


def test_a_table_tells_what_scripts_said(client_table, tmp_path):
    said = 'noise\nCHECK {"version": "1.2.3", "column": "chat", "outcome": "no", "note": "E: x"}\n'
    checks = client_table.read_checks("openai", said)
    checks += [
        client_table.ClientCheck("openai", "1.2.3", column, "absent", "")
        for column in client_table.COLUMNS[1:]
    ]
    table = client_table.format_table(checks)
    assert "| openai | 1.2.3 | **no** | - |" in table and "- openai: chat: E: x." in table
    page = tmp_path / "page.md"
    page.write_text(f"before\n{client_table.BEGIN}\nold\n{client_table.END}\nbehind\n", "utf-8")
    client_table.write_table(page, table)
    client_table.write_table(page, table)
    text = page.read_text("utf-8")
    assert text.startswith("before\n") and text.endswith("\nbehind\n") and "old" not in text
    assert text.count("| openai |") == 1


def test_the_page_has_a_row_for_each_client(client_table):
    page = PROJECT_ROOT / "lab" / "reports" / "clients-measured.md"
    rows = page.read_text("utf-8").split(client_table.BEGIN)[1].split(client_table.END)[0]
    assert "**no**" not in rows
    for client in client_table.CLIENTS:
        assert f"\n| {client.name} | " in rows
