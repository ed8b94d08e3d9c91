"""The entry point: `polydec`, or `python -m polydec`."""

import sys


def main() -> None:
    """Run the command. Ctrl-C while its libraries still load ends it as it does later: exit code 130."""
    try:
        from polydec.cli.main import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
