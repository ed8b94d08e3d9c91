"""Where the project's files stand, whatever folder a test is in."""

import os
from pathlib import Path

TESTS_FOLDER = Path(__file__).parent
PROJECT_ROOT = TESTS_FOLDER.parent

# Texts that do not travel along: tests that read them are skipped where nothing names them.
DATA_FOLDER = Path(os.environ.get("POLYDEC_DATA") or "POLYDEC_DATA is not set")
