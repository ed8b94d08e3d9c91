"""Lines of code by room: to look at, not to keep to."""

from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "polydec"


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").split("\n")) - 1


def rooms() -> dict[str, tuple[int, int, int]]:
    """Of each folder: files, lines, the longest file."""
    out: dict[str, tuple[int, int, int]] = {}
    for folder in [
        ROOT,
        *sorted(p for p in ROOT.iterdir() if p.is_dir() and p.name not in ("__pycache__", "zoo")),
    ]:
        files = sorted(folder.glob("*.py") if folder == ROOT else folder.rglob("*.py"))
        sizes = [lines(f) for f in files]
        if sizes:
            out["." if folder == ROOT else folder.name] = (len(files), sum(sizes), max(sizes))
    return out


if __name__ == "__main__":
    print(f"{'room':12} {'files':>6} {'lines':>7} {'longest':>8}")
    for name, (n, total, longest) in rooms().items():
        print(f"{name:12} {n:6} {total:7} {longest:8}")
    print(
        f"{'all':12} {sum(r[0] for r in rooms().values()):6} {sum(r[1] for r in rooms().values()):7}"
    )
