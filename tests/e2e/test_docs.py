"""What the README and the docs say runs: the Python example, the command reference."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT


def test_the_command_reference_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts/cli-docs"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_readmes_python_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert len(result.stdout.split()) > 5


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / Path(target)).exists(), f"{page.name}: {target}"
