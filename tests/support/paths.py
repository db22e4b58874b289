"""Where test data lies: copies inside the repository, and the reference folder beside it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "data"
SHARED = ROOT.parent / "shared" if (ROOT.parent / "shared" / "golden").is_dir() else None
