"""Where the project's files stand, whatever folder a test is in."""

from pathlib import Path

TESTS_FOLDER = Path(__file__).parent
PROJECT_ROOT = TESTS_FOLDER.parent
