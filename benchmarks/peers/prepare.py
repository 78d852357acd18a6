"""Makes of a GGUF file what llama.cpp and OpenVINO read, and a file of flags that names it all to the bench.

    ./run bench peers MODEL.gguf OUT --llama-server FILE --llama-weights Q4_K_M --openvino-python FILE
    ./run bench --model MODEL.gguf --cases c1,c2,c4 @OUT/peers.txt

llama.cpp reads the GGUF file itself. For OpenVINO its weights are dequantised (to_hugging_face) and quantised
anew by optimum-cli, which lies beside the Python of that environment: int4 in groups of 64, as OpenVINO recommends
for small models. What is there already is kept. A rival without a flag is left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from octavo.weights.load import open_model

EXPORT = ("export", "openvino", "--task", "text-generation-with-past")
INT4 = ("--weight-format", "int4", "--group-size", "64", "--ratio", "1.0", "--sym")
FORMATS = {"int4": INT4, "int8": ("--weight-format", "int8"), "bf16": ("--weight-format", "bf16")}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--llama-server", type=Path, help="path of llama-server")
    parser.add_argument(
        "--llama-weights", help="llama.cpp's name for the file's weights (default: the type of most of them)"
    )
    parser.add_argument(
        "--openvino-python", type=Path, help="of an environment with openvino-genai and optimum"
    )
    parser.add_argument(
        "--openvino-weights", default="int4", help=f"of {','.join(FORMATS)} (default: %(default)s)"
    )
    given = parser.parse_args(argv)
    formats = given.openvino_weights.split(",")
    if unknown := set(formats) - set(FORMATS):
        parser.error(f"--openvino-weights has {', '.join(sorted(unknown))}; there are {', '.join(FORMATS)}")
    for path in filter(None, (given.model, given.llama_server, given.openvino_python)):
        if not path.exists():
            parser.error(f"there is no {path}")
    if not (given.llama_server or given.openvino_python):
        parser.error("no rival: give --llama-server, --openvino-python or both")
    given.out.mkdir(parents=True, exist_ok=True)
    openvino = {}
    if given.openvino_python:
        openvino = {f: export(given.model, given.out, given.openvino_python, f) for f in formats}
    llama = {}
    if given.llama_server:
        llama = {given.llama_weights or main_type(given.model): given.model}
    words = flags(given.llama_server, llama, given.openvino_python, openvino)
    path = given.out / "peers.txt"
    path.write_text("\n".join(words) + "\n")
    print(f"{path}\n./run bench --model {given.model} @{path}")
    return 0


def export(model: Path, out: Path, python: Path, weights: str) -> Path:
    """The folder with `model` as OpenVINO reads it; made under another name first, so that it is whole or missing."""
    made = out / f"openvino-{weights}"
    if made.exists():
        return made
    plain = out / "hf"
    if not (plain / "tokenizer_config.json").exists():  # the last file that is written
        run([sys.executable, "-m", "benchmarks.peers.to_hugging_face", str(model), str(plain)])
    unfinished = out / f"{made.name}.unfinished"
    # The environment's own entry: `python` is a link in it, which may not be followed.
    command = [
        str(python.parent / "optimum-cli"),
        *EXPORT,
        "--model",
        str(plain),
        *FORMATS[weights],
        str(unfinished),
    ]
    run(command)
    unfinished.rename(made)
    return made


def flags(
    llama_server: Path | None, llama: dict[str, Path], openvino_python: Path | None, openvino: dict[str, Path]
) -> list[str]:
    """One word a line, as `@FILE` of the bench wants them. Paths are absolute: the bench may start elsewhere."""
    words, names = [], []
    for name, flag, program, models in (
        ("llama.cpp", "--llama-server", llama_server, llama),
        ("openvino", "--openvino-python", openvino_python, openvino),
    ):
        if program:
            names.append(name)
            words += [flag, os.path.abspath(program), f"--{flag[2:].partition('-')[0]}-models"]
            words += [f"{weights}={os.path.abspath(path)}" for weights, path in models.items()]
    return [*words, "--peers", ",".join(names)]


def main_type(model: Path) -> str:
    """The tensor type that most of the weights have: llama.cpp's own name of it tells the bits."""
    counts: Counter[str] = Counter()
    for info in open_model(str(model)).tensors.values():
        counts[info.type] += info.nbytes
    return counts.most_common(1)[0][0]


def run(command: list[str]) -> None:
    print(f"running {Path(command[0]).name} {' '.join(command[1:4])} ...", file=sys.stderr, flush=True)
    done = subprocess.run(
        command,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
