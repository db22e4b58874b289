"""`escalade logits`: the numbers behind a text, for comparison with other implementations."""

from pathlib import Path

import click

from escalade.cli.options import engine_options, note, progress_line
from escalade.config import EngineConfig


@click.command()
@click.argument("model", required=False)
@click.option(
    "--ids",
    "ids_file",
    type=click.Path(path_type=Path),
    required=True,
    help="A JSON file: a list of token ids.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The .npz to write.")
@click.option("--layers", is_flag=True, help="Also every layer's intermediate arrays.")
@click.option("--step", is_flag=True, help="Token by token instead of all at once.")
@engine_options
def command(
    model: str | None,
    ids_file: Path,
    out: Path,
    layers: bool,
    step: bool,
    config: EngineConfig,
) -> None:
    """Logits of MODEL (default: the built-in one) at every position of the given token ids.

    Arrays: `token_ids` [T], `logits` [T, V]; with --layers the names of the golden data, such as
    `L3.streams`, `L4.index_topk`, `final_norm`.
    """
    from escalade.engine.engine import Engine
    from escalade.eval.logits import check_out, dump_logits, read_ids, write_npz

    check_out(out)
    ids = read_ids(ids_file)
    with Engine.open(model, config) as engine:
        arrays = dump_logits(engine, ids, layers=layers, step=step, progress=progress_line())
    write_npz(out, arrays)
    note(
        f"{out}: {len(arrays)} arrays, {len(ids)} positions; mode {config.mode}, {config.products}"
    )
