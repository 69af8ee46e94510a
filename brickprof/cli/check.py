"""``brickprof check``: judge a thing by itself: a configuration before a run, an operation outside a model.

Enters: a kind of thing and where it is. Leaves: verdicts with what they rest on; 0 clean, 1 violations, 2 wrong usage,
3 nothing to judge.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from brickprof.operators.inquiry import Inquiry

_CODES = {"PASS": 0, "FAIL": 1, "VACUOUS": 3, "NOT_EVALUATED": 3}


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Judge a configuration or an operation by itself.", rich_markup_mode=None)
    group.callback()(lambda: None)
    group.command("config")(config)
    group.command("operator")(operator)
    app.add_typer(group, name="check")


def config(
    file: Annotated[str, typer.Argument(metavar="FILE", help="YAML, TOML or JSON; Hugging Face's arguments too.")],
    thresholds: Annotated[
        list[str] | None, typer.Option("--set", metavar="CONTRACT.NAME=NUMBER", help="Another threshold.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Work out what a training configuration promises: steps, epochs, warm-up, peak rate, batch, horizon.

    Example: brickprof check config train.yaml
    """
    from brickprof import settings
    from brickprof.contracts import documents, plans
    from brickprof.contracts.terms import Terms
    from brickprof.reports import plan as shown

    chosen = settings.load({"thresholds": thresholds or None})
    document = documents.read(Path(file))
    opinion = plans.judge(document, Terms.of(chosen))
    if as_json:
        print(shown.to_json(document, opinion))
    else:
        from rich.console import Console

        shown.render(document, opinion, Console(highlight=False))
    raise typer.Exit(_CODES[opinion.verdict.value])


def operator(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Operations, such as gemm rmsnorm; default: all.")
    ] = None,
    candidate: Annotated[
        str,
        typer.Option(
            metavar="FUNCTION", help="Judge this in the operation's place: torch, or package.module:function."
        ),
    ] = "own",
    reference: Annotated[
        str, typer.Option(metavar="FUNCTION", help="The mathematics in plain torch, instead of the operation's own.")
    ] = "",
    like: Annotated[
        str, typer.Option(metavar="NAME", help="The operation whose inputs, rows and sizes a candidate borrows.")
    ] = "",
    dtype: Annotated[str, typer.Option(metavar="TYPES", help="fp32,bf16,fp16 or some of them; default: all.")] = "",
    sizes: Annotated[
        list[str] | None, typer.Option(metavar="NAME=N,...", help="A problem of this size; again for more.")
    ] = None,
    large: Annotated[bool, typer.Option("--large", help="Sizes as models have them; for a GPU.")] = False,
    transforms: Annotated[str, typer.Option(metavar="T1,...", help="Only these transforms, T1 to T7.")] = "",
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of inputs and upstream gradients.")] = 0,
    chain: Annotated[
        bool, typer.Option("--chain", help="RMSNorm, matmul, attention, LM head and logprob, one behind the other.")
    ] = False,
    replayed: Annotated[str, typer.Option("--replay", metavar="ID", help="Measure this drift of --from again.")] = "",
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="What an earlier check wrote with -o.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the JSON here too.")] = None,
    only_list: Annotated[bool, typer.Option("--list", help="Say what can be judged, and judge nothing.")] = False,
) -> None:
    """Judge an operation, ours, torch's or your own: is it accurate, and is a row's result its own?

    Four judgments for each type: forward and gradient, each against an fp32 gold (within a tolerance) and against
    itself (to the byte) when the row is alone, elsewhere in the batch, beside other rows, padded, chunked or packed.
    What fails has an id and can be replayed.

    Examples:

      brickprof check operator rmsnorm gemm

      brickprof check operator gemm --candidate torch --large --dtype bf16

      brickprof check operator --candidate mine:rmsnorm --reference mine:plain --like rmsnorm -o drifts.json

      brickprof check operator --replay 3f9a --from drifts.json
    """
    from brickprof.operators import inquiry
    from brickprof.reports import operators as shown

    if only_list:
        _show(inquiry.listed(), shown.render_list, as_json)
        return
    if replayed or source:
        raise typer.Exit(_replay(replayed, source, as_json))
    asked = inquiry.Inquiry(
        (*(names or []), *([like] if like else [])), candidate, reference,
        inquiry.types_of(dtype), tuple(inquiry.sizes_of(each) for each in sizes or []), large,
        inquiry.transforms_of(transforms), device, seed, chain,
    )  # fmt: skip
    raise typer.Exit(_answer(asked, as_json, out))


def _answer(asked: Inquiry, as_json: bool, out: Path | None) -> int:
    from brickprof.errors import OutputError
    from brickprof.reports import operators as shown

    with _progress() as tell:
        found = asked.answer(tell)
    if out is not None:
        try:
            out.write_text(shown.to_json(found) + "\n", "utf-8")
        except OSError as error:
            raise OutputError(f"{out} cannot be written: {error.strerror}.") from error
    _show(found, lambda document, console: shown.render(document, console, out), as_json)
    return _CODES[found["verdict"]]


def _replay(identity: str, source: Path | None, as_json: bool) -> int:
    import json

    from brickprof.errors import UnreadableInput, UsageError
    from brickprof.operators import drift, inquiry
    from brickprof.reports import drifts

    if not identity or source is None:
        raise UsageError("--replay and --from go together.", "Such as: --replay 3f9a --from drifts.json")
    try:
        recorded = drift.find(json.loads(source.read_text("utf-8")), identity)
    except (OSError, ValueError) as error:
        raise UnreadableInput(f"{source} cannot be read: {error}.") from error
    with _progress() as tell:
        found = inquiry.again(recorded, tell)
    document = drifts.replay(recorded.to_dict(), found.to_dict() if found else None)
    _show(document, drifts.render_replay, as_json)
    return 1 if found else 0


def _show(document: Any, render: Callable[[Any, Console], None], as_json: bool) -> None:
    from rich.console import Console

    from brickprof.reports import operators as shown

    if as_json:
        print(shown.to_json(document))
    else:
        render(document, Console(highlight=False))


@contextmanager
def _progress() -> Iterator[Callable[[str], None] | None]:
    """One line on a terminal that says what is being tried; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.status import Status
    from rich.text import Text

    console = Console(stderr=True)
    with Status("", console=console) as line:
        yield lambda what: line.update(Text(what[: max(console.width - 4, 0)]))
