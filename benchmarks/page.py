"""All figures of docs/performance.md, measured and put there: kernels, growth, cases.

    ./run bench page --peers llama.cpp,vllm,openvino @PEERS.txt     some hours, on a quiet machine
    ./run bench page --only growth                one part
    ./run bench page --more NAME.json             figures of another model (`./run bench --out`) below the cases

Parts that are not measured keep what the page says. Everything else is a flag of `./run bench`, for the cases.
JSON files stay in build/bench/page.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import draw, growth, kernels, run_bench

FOLDER = Path("build/bench/page")
PARTS = ("kernels", "growth", "cases")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--only", default=",".join(PARTS), help="default: %(default)s")
    parser.add_argument(
        "--more", type=Path, action="append", default=[], help="another bench file; repeat it"
    )
    given, rest = parser.parse_known_args(argv)
    only = given.only.split(",")
    if unknown := set(only) - set(PARTS):
        parser.error(f"--only has {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    for path in given.more:
        if not path.exists():
            parser.error(f"--more: there is no {path}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = {part: FOLDER / f"{part}.json" for part in PARTS}
    quick = [word for word in rest if word == "--quick"]
    # A part that reports a failure (a request that failed, growth that is too fast) is drawn all the same.
    codes = []
    if "kernels" in only:
        codes.append(kernels.main(["--json", str(files["kernels"]), *quick]))
    if "growth" in only:
        codes.append(growth.main(["--json", str(files["growth"]), *quick]))
    if "cases" in only:
        codes.append(run_bench.main(["--out", str(files["cases"]), *rest]))
    words = [word for part in only if part != "cases" for word in (f"--{part}", str(files[part]))]
    benches = [*([files["cases"]] if "cases" in only else []), *given.more]
    draw.main([*words, *(["--bench", *map(str, benches)] if benches else [])])
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
