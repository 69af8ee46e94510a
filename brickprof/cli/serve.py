"""``brickprof serve``: runs on a small local web page, updating as they go.

Enters: runs, or folders of runs. Leaves: a server of this machine, until Ctrl-C; nothing is ever written.
"""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN|FOLDER", help="Runs, or folders of runs; default: brickprof-runs."),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; other than loopback, a token is asked for.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0: any that is free.")] = 0,
    token: Annotated[bool, typer.Option("--token", help="Ask for a token on loopback too.")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show runs on a local web page: a list, each run live, two or more compared, and the full report.

    Runs that appear in a FOLDER later appear on the page. Only this machine can reach it, unless --host says otherwise;
    then whoever opens it needs the token in the address that is printed. The page can change nothing.

    Examples:

      brickprof serve

      brickprof serve k3f9 m2x7 --port 8765 --open

      ssh -L 8765:localhost:8765 HOST brickprof serve --port 8765

    Exit codes: 0 ended by Ctrl-C; 2 no such run, or a port that is taken.
    """
    import secrets
    import webbrowser
    from pathlib import Path

    from brickprof import settings
    from brickprof.errors import NotARun, UsageError
    from brickprof.live.following import listable
    from brickprof.live.serving import Server, is_loopback
    from brickprof.live.shelf import Shelf
    from brickprof.run.places import locate
    from brickprof.text import clean

    folders = [] if runs else [Path(settings.load().out).absolute()]
    for path in map(Path, runs or ()):
        if path.is_dir():
            listable(path, path)
        folders.append((path if path.is_dir() else locate(path)).absolute())
    shelf = Shelf(folders)
    if not len(shelf) and runs:
        raise NotARun(f"{', '.join(map(clean, runs))}: no run is there.", "`brickprof run SCRIPT` makes one.")
    key = "" if is_loopback(host) and not token else secrets.token_urlsafe(24)
    try:
        server = Server(("127.0.0.1" if host == "localhost" else host, port), shelf, key)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"cannot listen at {clean(host)}:{port}: {getattr(error, 'strerror', None) or error}.",
            "Give another --port, or 0 for any that is free.",
        ) from None
    count = f"{len(shelf)} run{'s' * (len(shelf) != 1)}"
    print(f"brickprof: {count} at {server.url()}  (Ctrl-C ends it)", flush=True)
    if open_page:
        webbrowser.open(server.url())
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
